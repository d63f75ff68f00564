"""Implement `protofleet predict`: predict the classes of pictures with a model."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from protofleet.cli.model import LOOKED_IN, found_versions
from protofleet.protocol.user_error import FAILED
from protofleet.runtime.command.arguments import Subparsers
from protofleet.runtime.interrupts import held_interrupts

if TYPE_CHECKING:
    from protofleet.cli.new_pictures import NewPictures
    from protofleet.edge_client.serving.predictor import Prediction, Predictor

MOST_NAMED: Final = 3  # Largest number of folders in an error message, and of pictures in the last message.
LOOK_SECONDS: Final = 0.5  # Seconds between two checks of a watched folder.


def add_predict(commands: Subparsers) -> None:
    command = commands.add_parser("predict", help="predict the classes of pictures with a model")
    command.add_argument("image", type=Path, nargs="*", help="a picture of any size, or a folder of pictures")
    command.add_argument(
        "--watch",
        type=Path,
        metavar="FOLDER",
        help="predict each new picture of this folder, one line each, until Ctrl-C",
    )
    command.add_argument(
        "--model", type=Path, metavar="DIR",
        help="folder of a version or of an export, or folder of a device, to use the version that it serves "
        "(default: the folder that `protofleet model` finds)",
    )  # fmt: skip
    command.add_argument("--onnx", action="store_true", help="run model.onnx; needs the package onnxruntime")
    command.add_argument(
        "--plugin", type=Path, action="append", default=[], metavar="FILE",
        help="your own method or network that the model was made with; not needed for --onnx",
    )  # fmt: skip
    command.add_argument(
        "--json",
        action="store_true",
        help="print one object, and nothing else, on standard output; with --watch, one object per line",
    )
    command.set_defaults(command=predict)


def predict(options: argparse.Namespace) -> int:
    from protofleet.protocol.settings.reader import SettingsError

    if bool(options.image) == bool(options.watch):
        raise SettingsError("name pictures, or use --watch FOLDER")
    if options.watch and not options.watch.is_dir():
        wrong = f"{options.watch} is a file, and --watch takes a folder; name the picture without --watch"
        raise SettingsError(
            wrong if options.watch.exists() else f"there is no folder {options.watch} to watch"
        )
    with held_interrupts():
        from protofleet.edge_client.serving import predictor  # noqa: F401 - imports torch and slow modules
    if options.plugin:
        from protofleet.lab.local.own_plugins import own_plugins

        own_plugins(list(map(str, options.plugin)))
    chosen = ChosenModel(options.model, options.onnx)
    return watch(options, chosen) if options.watch else predict_all(options, chosen)


class ChosenModel:
    """The chosen model. In a folder with links, the model is the version to which the link `current` points.

    A later call of `now` may return another version, because the link may change.
    """

    def __init__(self, folder: Path | None, onnx: bool) -> None:
        self._folder, self._onnx = folder, onnx
        self._open: Predictor | None = None

    def now(self) -> Predictor:
        from protofleet.edge_client.serving.predictor import open_model

        folder = self._where()
        if self._open is None or self._open.folder != folder:
            self._open = open_model(folder, self._onnx)
        return self._open

    def _where(self) -> Path:
        """Return the folder of the version without links, because a link may change while the files are read."""
        from protofleet.methods.served.card_file import CARD
        from protofleet.protocol.settings.reader import SettingsError

        if self._folder is not None and (self._folder / CARD).is_file():
            return self._folder.resolve()
        versions = found_versions(self._folder)
        if versions is None:
            raise SettingsError(self._nothing_there())
        if (current := versions.named("current")) is None:
            raise SettingsError(
                f"no version is served in {versions.folder}: the link `current` is missing; name the folder of a "
                "version with --model"
            )
        return current.folder.resolve()

    def _nothing_there(self) -> str:
        from protofleet.lab.export.mistaken import no_model

        if self._folder is not None:
            return no_model(self._folder)
        looked = ", ".join(map(str, LOOKED_IN))
        return (
            f"there is no version of a model in {looked}, the default folders; use --model DIR with a folder that "
            "`protofleet export` has written, or with the folder of a device that serves its models"
        )


def predict_all(options: argparse.Namespace, chosen: ChosenModel) -> int:
    from protofleet.edge_client.data.errors import DataError

    model, found, code = chosen.now(), list[dict[str, Any]](), 0
    for path in _pictures(options.image):
        try:
            prediction = model.predict(path)
        except DataError as error:
            print(f"protofleet: {error}", file=sys.stderr)
            code = FAILED
            continue
        found.append(_row(path, prediction))
        if not options.json:
            print(_line(path, prediction), flush=True)
    if options.json:
        print(json.dumps({"model": _about(model), "predictions": found}, indent=1, allow_nan=False))
    return code


def _pictures(given: list[Path]) -> Iterator[Path]:
    from protofleet.edge_client.data.images.image_files import image_files_in
    from protofleet.protocol.settings.reader import SettingsError

    for path in given:
        if not path.is_dir():
            yield path
            continue
        if not (inside := image_files_in(path)):
            raise SettingsError(_no_picture_in(path))
        yield from inside


def _no_picture_in(folder: Path) -> str:
    below = sorted(one for one in folder.iterdir() if one.is_dir() and one.name[0] != ".")
    if not below:
        return f"there is no picture in the folder {folder}"
    few = _few([str(one) for one in below])
    return (
        f"there is no picture in the folder {folder} itself, and its subfolders are not searched: name {few}"
    )


def _few(names: list[str]) -> str:
    return ", ".join(names[:MOST_NAMED]) + (" ..." if names[MOST_NAMED:] else "")


def watch(
    options: argparse.Namespace,
    chosen: ChosenModel,
    pause: Callable[[float], None] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> int:
    from protofleet.cli.new_pictures import NewPictures

    done, new = 0, None
    try:
        chosen.now()
        new = NewPictures(options.watch, clock)
        print(f"watching {options.watch}; Ctrl-C ends it", file=sys.stderr, flush=True)
        while True:
            pause(LOOK_SECONDS)
            for path in new.arrived():
                done += _predict_one(options, chosen, new, path)
    except KeyboardInterrupt:
        late = _named(new.waiting() if new else [])
        print(f"{done} picture{'s' * (done != 1)} predicted{late}", file=sys.stderr)
    return 0


def _named(waiting: list[Path]) -> str:
    return f", {len(waiting)} not yet ({_few([path.name for path in waiting])})" if waiting else ""


def _predict_one(options: argparse.Namespace, chosen: ChosenModel, new: NewPictures, path: Path) -> bool:
    from protofleet.edge_client.data.errors import DataError

    model = chosen.now()
    try:
        prediction = model.predict(path)
    except DataError as error:
        if new.is_broken(path):
            print(f"protofleet: {error}", file=sys.stderr, flush=True)
        return False
    if not new.is_as_tried(path):
        return False
    if options.json:
        print(json.dumps({**_row(path, prediction), "model": model.folder.name}, allow_nan=False), flush=True)
    else:
        print(_line(path, prediction), flush=True)
    return True


def _row(path: Path, prediction: Prediction) -> dict[str, Any]:
    return {
        "image": str(path), "class": prediction.label, "probability": prediction.probability,
        "probabilities": dict(prediction.probabilities),
    }  # fmt: skip


def _line(path: Path, prediction: Prediction) -> str:
    return f"{path}  {prediction.label}  {prediction.probability:.1%}"


def _about(model: Predictor) -> dict[str, Any]:
    card = model.card
    return {"folder": str(model.folder), "method": card.method, "round": card.round, "tensors": card.tensors}
