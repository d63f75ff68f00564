"""Ship the ONNX template for a fleet's boards: a folder on the operator's machine is copied next to the wheels.

If the settings name an absolute path that does not exist on this machine, the template must be on the boards
already.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from protofleet.methods.served.card_file import CARD
from protofleet.protocol.settings.reader import SettingsError

ONNX: Final = "model.onnx"
WAY_OUT: Final = "`protofleet export RUN --template --out DIR` writes a template"


def seen_from(table: Mapping[str, Any], base: Path) -> dict[str, Any]:
    """Return the settings of a device with the absolute path of the template.

    `base` is the folder of the fleet's file.
    """
    models = table.get("models")
    named = models.get("template") if isinstance(models, Mapping) else None
    if not isinstance(named, str) or not named:
        return dict(table)
    whole = base.absolute() / Path(named).expanduser()
    if not Path(named).expanduser().is_absolute() and not whole.is_dir():
        raise SettingsError(
            f"device.models.template is {named!r}, but the folder {whole} does not exist; {WAY_OUT}"
        )
    return {**table, "models": {**table["models"], "template": str(whole)}}


def template_files(table: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the files of the template that are shipped; raise SettingsError if the template is not valid."""
    models = table.get("models")
    named = models.get("template") if isinstance(models, Mapping) else None
    if not isinstance(named, str) or not named or not Path(named).is_dir():
        return ()
    folder, wrong = Path(named), ""
    try:
        card, content = json.loads((folder / CARD).read_bytes()), (folder / ONNX).read_bytes()
        if not card.get("offsets"):
            wrong = f"its {CARD} has no offsets, because it was exported without --template"
        elif card["files"][ONNX] != hashlib.sha256(content).hexdigest():
            wrong = f"its {ONNX} is not the file that its {CARD} was written for"
    except OSError as error:
        wrong = f"{error.filename}: {error.strerror}"
    except (ValueError, KeyError, TypeError, AttributeError):
        wrong = f"its {CARD} is not a valid card of an export"
    if wrong:
        raise SettingsError(
            f"device.models.template is {named}, which is not a valid template: {wrong}; {WAY_OUT}"
        )
    return str(folder / CARD), str(folder / ONNX)


def at_the_host(table: Mapping[str, Any], folder: str) -> dict[str, Any]:
    """Return the settings for the host. If a template is shipped, its path is `folder`."""
    if not template_files(table):
        return dict(table)
    return {**table, "models": {**table["models"], "template": folder}}


def put_beside_wheels(files: tuple[str, ...], folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for one in files:
        (folder / Path(one).name).write_bytes(Path(one).read_bytes())
