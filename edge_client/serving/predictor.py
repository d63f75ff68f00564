"""Predict the classes of pictures with a served or exported model. The model's folder has the file card.json."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from protofleet.edge_client.data.images.image_files import named_pictures
from protofleet.edge_client.serving.publisher import WEIGHTS
from protofleet.edge_client.serving.template import ONNX
from protofleet.methods.nets.weights_file import WeightsFileError, read_weights
from protofleet.methods.served.card import Card, CardError, matching, read_card
from protofleet.methods.served.card_file import CARD
from protofleet.methods.served.rebuild import rebuild
from protofleet.protocol.settings.input_shape import InputShape
from protofleet.protocol.settings.reader import SettingsError

# Function from pictures [B, C, H, W] to the scores of the classes [B, classes].
Scores: TypeAlias = Callable[[NDArray[np.float32]], NDArray[np.float32]]

IMAGE: Final = "image"


@dataclass(frozen=True)
class Prediction:
    label: str
    probability: float
    probabilities: Mapping[str, float]  # name of each class -> its probability; the sum is 1


@dataclass(frozen=True)
class Predictor:
    folder: Path
    card: Card
    scores: Scores

    def predict(self, path: Path) -> Prediction:
        """Predict the class of a picture, or raise DataError if the file is not a picture."""
        scores = self.scores(self._picture(path))[0].astype(np.float64)
        shares = np.exp(scores - scores.max())
        shares /= shares.sum()
        best = int(scores.argmax())
        named = zip(self.card.classes, shares.tolist(), strict=True)
        return Prediction(self.card.classes[best], float(shares[best]), dict(named))

    def _picture(self, path: Path) -> NDArray[np.float32]:
        """Return a picture's values, from 0 to 255. The picture gets the model's size and channels."""
        pixels = named_pictures([path], InputShape(self.card.input.shape))
        found: NDArray[np.float32] = pixels.astype(np.float32)
        return found


def open_model(folder: Path, onnx: bool = False) -> Predictor:
    """Open the model in a folder, or raise SettingsError if the folder has no model that this program can use."""
    card = card_in(folder)
    if card.input.kind != IMAGE:
        raise SettingsError(
            f"{folder} has a model for a {card.input.kind} of the shape {list(card.input.shape)}, but predict reads "
            "only pictures; load the model from Python"
        )
    if importlib.util.find_spec("PIL") is None:
        raise SettingsError("reading pictures needs the package pillow: pip install pillow")
    try:
        return Predictor(folder, card, _of_onnx(folder, card) if onnx else _of_torch(folder, card))
    except (CardError, WeightsFileError) as error:
        raise SettingsError(f"{folder}: {error}") from None


def card_in(folder: Path) -> Card:
    try:
        return read_card((folder / CARD).read_bytes())
    except FileNotFoundError:
        raise SettingsError(f"{folder} holds no model: the file {CARD} is missing") from None
    except CardError as error:
        raise SettingsError(f"{folder / CARD}: {error}") from None


def _of_torch(folder: Path, card: Card) -> Scores:
    path = folder / WEIGHTS
    if not path.is_file():
        raise SettingsError(f"there is no {WEIGHTS} in {folder}; use --onnx if the folder has a {ONNX}")
    model = rebuild(card, read_weights(path))

    @torch.inference_mode()
    def scores(samples: NDArray[np.float32]) -> NDArray[np.float32]:
        found: NDArray[np.float32] = model(torch.from_numpy(samples)).numpy()
        return found

    return scores


def _of_onnx(folder: Path, card: Card) -> Scores:
    path = folder / ONNX
    if not path.is_file():
        raise SettingsError(
            f"there is no {ONNX} in {folder}; set models.template on the device, or do not use --onnx"
        )
    try:
        import onnxruntime
    except ImportError:
        raise SettingsError("--onnx needs the package onnxruntime: pip install onnxruntime") from None
    # The file is read only once, so exactly the checked bytes are used.
    content = matching(card, ONNX, path.read_bytes())
    try:
        session = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])
    except Exception as error:  # noqa: BLE001 - its errors differ from version to version
        raise SettingsError(f"{path} cannot be used: {' '.join(str(error).split())[:200]}") from None
    name = session.get_inputs()[0].name

    def scores(samples: NDArray[np.float32]) -> NDArray[np.float32]:
        found: NDArray[np.float32] = session.run(None, {name: samples})[0]
        return found

    return scores
