"""An exported ONNX file into which each version's numbers are put, on a board that has no package for ONNX."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Final

from torch import Tensor

from protofleet.methods.served.card import Card, CardError, matching, read_card
from protofleet.methods.served.card_file import CARD
from protofleet.methods.served.template import fill

MODEL: Final = "model.onnx"


class Template:
    """The folder that `protofleet export --template` has written."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def filled(self, tensors: Mapping[str, Tensor]) -> bytes:
        card, model = self._content
        try:
            return fill(model, card, tensors)
        except CardError as error:
            raise CardError(f"models.template {self._folder}: {error}") from None

    @cached_property
    def _content(self) -> tuple[Card, bytes]:
        try:
            card = read_card((self._folder / CARD).read_bytes())
            return card, matching(card, MODEL, (self._folder / MODEL).read_bytes())
        except CardError as error:
            raise CardError(f"models.template {self._folder}: {error}") from None
