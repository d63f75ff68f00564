"""Load a model that predicts, for `protofleet.load_model`.

The model is in the folder of a run, in an export, or in the folder of a board that serves the model.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from protofleet.lab.api.errors import public_errors
from protofleet.lab.api.samples import Inputs, samples_of
from protofleet.lab.export.formats import FILES, SAFETENSORS
from protofleet.lab.export.source import Wanted, find_model
from protofleet.lab.local.own_plugins import own_plugins
from protofleet.methods.nets.weights_file import WeightsFileError, read_weights
from protofleet.methods.served.card import Card, CardError, read_card
from protofleet.methods.served.card_file import CARD
from protofleet.methods.served.rebuild import rebuild
from protofleet.methods.served.served import Served
from protofleet.protocol.settings.reader import SettingsError

BATCH: Final = 256  # Maximum number of samples that pass through the network at once.
WEIGHTS: Final = FILES[SAFETENSORS]

Which: TypeAlias = Literal["best", "last"]


class Model:
    """A model that takes samples as they are stored (for example pixels from 0 to 255) and scales them itself."""

    def __init__(self, card: Card, module: Served) -> None:
        self.card, self.module = card, module

    def __repr__(self) -> str:
        of = f", of {self.card.device}" if self.card.device else ""
        shape = list(self.card.input.shape)
        return (
            f"<{self.card.method} after round {self.card.round}{of}: {shape} to {len(self.classes)} classes>"
        )

    @property
    def classes(self) -> tuple[str, ...]:
        """Return the names of the classes, in the order of the columns of `scores`."""
        return self.card.classes

    def predict(self, inputs: Inputs) -> list[str]:
        """Return the name of the predicted class for each sample."""
        return [self.classes[label] for label in self.scores(inputs).argmax(1).tolist()]

    @torch.inference_mode()
    def scores(self, inputs: Inputs) -> Tensor:
        """Return the scores, as an array of the shape [N, classes] for N samples."""
        samples = samples_of(inputs, self.card.input)
        pieces = [
            self.module(samples[start : start + BATCH].float()) for start in range(0, len(samples), BATCH)
        ]
        return torch.cat(pieces) if pieces else torch.empty(0, len(self.classes))

    def confusion(
        self, inputs: Inputs, labels: Tensor | NDArray[Any] | Sequence[int] | Sequence[str]
    ) -> Tensor:
        """Return the confusion matrix as int64 [classes, classes].

        Row i, column j has the number of samples of class i for which the model predicted class j.
        """
        truth = torch.as_tensor([self._label(one) for one in _listed(labels)], dtype=torch.int64)
        predicted = self.scores(inputs).argmax(1)
        if len(truth) != len(predicted):
            raise SettingsError(f"there are {len(truth)} labels for {len(predicted)} samples")
        count = len(self.classes)
        return (truth * count + predicted).bincount(minlength=count * count).view(count, count)

    def _label(self, one: int | str) -> int:
        if isinstance(one, str) and one in self.classes:
            return self.classes.index(one)
        if isinstance(one, int) and 0 <= one < len(self.classes):
            return one
        raise SettingsError(
            f"{one!r} is not a class of this model; the classes are {', '.join(self.classes[:8])}"
            f"{' ...' if len(self.classes) > 8 else ''}, numbered from 0"
        )


def _listed(labels: object) -> list[Any]:
    try:
        listed = np.asarray(labels).tolist()
    except (TypeError, ValueError, RuntimeError):
        listed = None
    if not isinstance(listed, list):
        raise SettingsError(f"labels is {type(labels).__name__}; give a list with one class for each sample")
    return listed


def load_model(
    folder: str | Path, device: str | None = None, which: Which = "best", plugins: Sequence[str | Path] = ()
) -> Model:
    """Load the model of a run or of an export, or the model that a board serves.

    For a run, `device` names the device whose own model is loaded. `which` is "best" (by validation) or
    "last". An export and a board have only one model, so these two arguments are not needed there.

    `plugins` lists the files with the user's own method or network, if the model was made with such files. A
    run keeps copies of these files, so they need not be named for a run.
    """
    place = Path(folder)
    with public_errors():
        named = own_plugins([str(path) for path in plugins]).allowed()
        if which not in ("best", "last"):
            raise SettingsError(f"the argument `which` is {which!r}, it must be 'best' or 'last'")
        if (single := folder_of_one(place)) is None:
            found = find_model(place, Wanted(which, device, plugins=named))
            return Model(found.card, found.served)
        card, served = read_model(single)
        if device not in (None, card.device):
            whose = f"the model of {card.device}" if card.device else "the model of all devices"
            raise SettingsError(f"device is {device!r}, but {single} holds only one model, {whose}")
        return Model(card, served)


def folder_of_one(place: Path) -> Path | None:
    """Return the folder of a single model: `place` itself, or the version to which a board's link `current` points.

    Return None if no card of a model is found. Then `place` may be the folder of a run.
    """
    for found in (place, place / "current", place / "models" / "current"):
        if (found / CARD).is_file():
            return found.resolve()
    return None


def read_model(folder: Path) -> tuple[Card, Served]:
    try:
        card = read_card((folder / CARD).read_bytes())
        return card, rebuild(card, read_weights(folder / WEIGHTS))
    except (CardError, WeightsFileError) as error:
        raise SettingsError(f"{folder}: {error}") from None
    except FileNotFoundError:
        raise SettingsError(
            f"there is no {WEIGHTS} in {folder}; export the model again, and add safetensors to --format"
        ) from None
