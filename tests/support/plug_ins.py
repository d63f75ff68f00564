"""Plug-ins that tests write: the FedExP of docs/adding-a-method.md, a network, data, and an installed package."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final

DOCS: Final = Path(__file__).parents[2] / "docs"


def block(page: str, name: str) -> str:
    """Return the Python code block of a page of docs/ that has this name."""
    (found,) = re.findall(
        rf"^```python {name}\n(.*?)^```", (DOCS / page).read_text(), re.MULTILINE | re.DOTALL
    )
    return str(found)


def sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def installed_package(site: Path, name: str, files: Mapping[str, str], entries: Mapping[str, str]) -> Path:
    """Write a package into a site folder as pip does, and return its dist-info folder.

    pip writes the sources and, in RECORD, their hashes. `entries` maps a group to lines "name = module:object".
    """
    about = site / f"{name.replace('-', '_')}-1.2.dist-info"
    about.mkdir(parents=True)
    rows = []
    for path, text in files.items():
        (site / path).parent.mkdir(parents=True, exist_ok=True)
        (site / path).write_text(text)
        digest = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).decode().rstrip("=")
        rows.append(f"{path},sha256={digest},{len(text.encode())}")
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.2\n")
    groups = (f"[protofleet.{group}]\n{lines}\n" for group, lines in entries.items())
    (about / "entry_points.txt").write_text("\n".join(groups))
    (about / "RECORD").write_text(
        "\n".join([*rows, f"{about.name}/RECORD,,", f"{about.name}/METADATA,,", ""])
    )
    return about
