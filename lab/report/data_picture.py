"""Write the picture of `protofleet data FILE --picture` to a file.

The file is an HTML page with the picture and its table, or an SVG with only the picture.
"""

from __future__ import annotations

from html import escape
from pathlib import Path
from typing import Final

from protofleet.lab.report.data_bubbles import bubbles
from protofleet.lab.report.data_counts import FleetCounts
from protofleet.lab.report.html_page import page
from protofleet.lab.report.sections.data import data_section
from protofleet.protocol.settings.reader import SettingsError
from protofleet.runtime.command.errors import RunError

FORMS: Final = (".html", ".svg")
STYLE: Final = (
    "<style>text{font:12px system-ui,sans-serif;fill:#5b6875}.title{font-weight:600;fill:#16202a}"
    ".grid{stroke:#dde3e8}@media(prefers-color-scheme:dark){svg{background:#12181e}text{fill:#9fb0bf}"
    ".title{fill:#e8edf2}.grid{stroke:#33414d}}</style>"
)


def picture_path(given: str, settings: Path) -> Path:
    """Return the given path. If it is empty, return the path of an HTML page next to the settings file."""
    if not given:
        return settings.with_name(f"{settings.stem}-data.html")
    path = Path(given)
    if path.suffix.lower() not in FORMS:
        raise SettingsError(
            f"--picture is {given!r}, it must end in .html (with the numbers as a table) or .svg; name the settings "
            "files before --picture"
        )
    return path


def write_picture(fleet: FleetCounts, path: Path) -> None:
    if path.suffix.lower() == ".svg":
        text = bubbles(fleet, STYLE) + "\n"
    else:
        title = f"Data of {len(fleet.devices)} device{'s' if len(fleet.devices) != 1 else ''}"
        text = page(title, f"<h1>{escape(title)}</h1>{data_section(fleet)}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise RunError(
            f"{path} cannot be written: {error.strerror}; name another path with --picture PATH"
        ) from None
