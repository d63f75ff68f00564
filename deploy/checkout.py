"""The checkout that this package runs from, where it is one: what our wheels and images are built of."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[1]  # where it was installed, if it is no checkout
PACKAGES: Final = (
    "protofleet", "protocol", "runtime", "methods", "edge_client", "coordinator", "deploy", "experiments",
)  # fmt: skip
PROJECT_FILES: Final = ("pyproject.toml", "README.md", "LICENSE", "NOTICE")


def is_checkout() -> bool:
    """Not so where protofleet was installed as a wheel."""
    return (ROOT / "pyproject.toml").exists()


def build_folder() -> Path:
    """For what is built once and kept: in the checkout, or in this user's cache."""
    return ROOT / "build" if is_checkout() else _user_cache() / "build"


def _user_cache() -> Path:
    try:
        return Path.home() / ".cache" / "protofleet"
    except RuntimeError:  # a user without an entry, as containers have them
        return Path(tempfile.gettempdir()) / "protofleet"


def source_files() -> list[Path]:
    found = [ROOT / name for name in PROJECT_FILES]
    for package in PACKAGES:
        found += (p for p in (ROOT / package).rglob("*") if p.is_file() and "__pycache__" not in p.parts)
    return sorted(found)


def copy_sources(folder: Path) -> None:
    """Nothing that an earlier build has left behind gets into the copy."""
    for path in source_files():
        target = folder / path.relative_to(ROOT)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, target)
