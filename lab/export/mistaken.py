"""Make messages for a user who names a wrong folder.

Each message describes the given folder, and suggests the right folder.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from protofleet.coordinator.models.saved import SPOOL
from protofleet.edge_client.trainer.kept_models import LAST, kept_file
from protofleet.methods.served.card_file import CARD
from protofleet.protocol.settings.suggest import there_are

CURRENT: Final = "current"
SHOWN: Final = 5  # Maximum number of folders that a message suggests.
RUN: Final = "name a folder such as runs/demo"


def is_run(folder: Path) -> bool:
    """Return whether the folder is a run's folder or its coordinator's folder."""
    return (folder / "coordinator" / SPOOL).exists() or (folder / SPOOL).exists()


def is_device(folder: Path) -> bool:
    return kept_file(folder, LAST).exists()


def no_run(folder: Path) -> str:
    """Return a message about a folder that contains nothing to export."""
    if wrong := _no_folder(folder, "a run's folder"):
        return wrong
    if (folder / CARD).is_file():
        return f"{folder} is a model already (it has a {CARD}); other files of it are made of the run that it is from"
    if served := _served(folder):
        return (
            f"{folder} is of a device that serves its models: {served / CURRENT} is one, as files; for others name "
            "the run, or a device's folder with kept models in it"
        )
    if inside := _inside(folder, lambda one: is_run(one) or is_device(one)):
        return f"{folder} is no run, and holds some: name one of them, {inside}"
    return f"{folder} holds no run: there is no coordinator/{SPOOL} in it, and no device's kept model; {RUN}"


def no_model(folder: Path) -> str:
    """Return a message about a folder that contains no model for predictions."""
    if wrong := _no_folder(folder, "the folder of a model, such as an export's or a device's"):
        return wrong
    if is_run(folder) or is_device(folder):
        made = next(iter(sorted((folder / "models").glob(f"*/{CARD}"))), None)
        if made is not None:
            return f"{folder} is no model, and one of it has been exported: say --model {made.parent}"
        return f"{folder} is no model yet: `protofleet export {folder}` makes one, {folder}/models/last, for --model"
    return _no_versions_in(folder) + "; or name what `protofleet export` has written"


def no_versions(folder: Path) -> str:
    """Return a message about a folder without versions of a model; a command wanted to use these versions."""
    if wrong := _no_folder(folder, "the folder of a device that serves its models"):
        return wrong
    if (folder / CARD).is_file():
        return (
            f"{folder} is one model; name the folder of a device, with versions of it and the link {CURRENT}"
        )
    return _no_versions_in(folder)


def _no_versions_in(folder: Path) -> str:
    if inside := _inside(folder, lambda one: _served(one) is not None):
        return f"there is no version of a model in {folder} itself: name one of {inside}"
    return (
        f"there is no version of a model in {folder}: name the folder of a device that has [models] in its settings "
        "and has been in a round since, and be a user who may read it"
    )


def _no_folder(path: Path, wanted: str) -> str:
    if path.is_dir():
        return ""
    if path.exists():
        return f"{path} is a file; name {wanted}"
    beside = sorted(one.name for one in _folders(path.parent))
    return f"there is no folder {path}" + (
        f"; {there_are(path.name, beside, SHOWN)}" if beside else f"; name {wanted}"
    )


def _served(folder: Path) -> Path | None:
    return next((one for one in (folder, folder / "models") if (one / CURRENT / CARD).is_file()), None)


def _inside(folder: Path, fits: Callable[[Path], bool]) -> str:
    """List the matching folders one or two levels down, for example in `runs` or in a run's `devices`."""
    upper = list(_folders(folder))
    found = [one for one in upper if fits(one)] or [one for up in upper for one in _folders(up) if fits(one)]
    return ", ".join(map(str, sorted(found)[:SHOWN])) + (" ..." if len(found) > SHOWN else "")


def _folders(folder: Path) -> Iterator[Path]:
    try:
        yield from (one for one in folder.iterdir() if one.is_dir() and one.name[0] != ".")
    except OSError:  # The folder does not exist, or the current user may not read it.
        return
