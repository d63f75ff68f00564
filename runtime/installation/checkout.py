"""Find the checkout from which this package runs, if there is one.

Wheels and images are built from this checkout.
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Final

# The root of the checkout, or the folder into which protofleet is installed.
ROOT: Final = Path(__file__).parents[2]
PACKAGES: Final = (
    "protofleet", "protocol", "runtime", "methods", "edge_client", "coordinator", "federation", "lab", "deploy",
    "experiments",
)  # fmt: skip
PROJECT_FILES: Final = ("pyproject.toml", "README.md", "LICENSE", "NOTICE")


def is_checkout() -> bool:
    """Return whether protofleet runs from a checkout, and not from an installed wheel."""
    return (ROOT / "pyproject.toml").exists()


def build_folder() -> Path:
    """Return the folder for built files that are kept; it is in the checkout or in this user's cache."""
    return ROOT / "build" if is_checkout() else _user_cache() / "build"


def _user_cache() -> Path:
    try:
        return Path.home() / ".cache" / "protofleet"
    except RuntimeError:  # The user has no home folder, for example in a container.
        return Path(tempfile.gettempdir()) / "protofleet"


def source_files() -> list[Path]:
    found = [ROOT / name for name in PROJECT_FILES]
    for package in PACKAGES:
        found += (p for p in (ROOT / package).rglob("*") if p.is_file() and "__pycache__" not in p.parts)
    return sorted(found)


def copy_sources(folder: Path) -> None:
    """Copy the sources into a folder, without files of earlier builds."""
    for path in source_files():
        target = folder / path.relative_to(ROOT)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, target)
