"""The template of ONNX files: the tensors of each version are put into it, without a package for ONNX."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Final

from torch import Tensor

from protofleet.methods.served.card import Card, CardError, matching, read_card
from protofleet.methods.served.card_file import CARD
from protofleet.methods.served.scaling import Input
from protofleet.methods.served.template import fill

ONNX: Final = "model.onnx"


class Template:
    """The template in a folder that `protofleet export --template` has written."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def filled(self, tensors: Mapping[str, Tensor], takes: Input) -> bytes:
        """Return the ONNX file with these tensors.

        `takes` is the input of the model that has these tensors. This input must equal the template's input. The
        tensors do not contain the scaling of samples, so the file keeps the scaling of the template.
        """
        card, model = self._content
        if card.input != takes:
            its, own = (f"{list(one.shape)} from {one.range_in_words()}" for one in (card.input, takes))
            raise CardError(
                f"models.template {self._folder} takes samples of {its}, but this device's samples are {own}; export "
                "the template from the folder of a device whose samples have the same scale"
            )
        try:
            return fill(model, card, tensors)
        except CardError as error:
            raise CardError(f"models.template {self._folder}: {error}") from None

    @cached_property
    def _content(self) -> tuple[Card, bytes]:
        try:
            card = read_card((self._folder / CARD).read_bytes())
            return card, matching(card, ONNX, (self._folder / ONNX).read_bytes())
        except OSError as error:
            way_out = "it names a folder that `protofleet export --template` has written"
            raise CardError(f"models.template {self._folder}: {error.strerror}; {way_out}") from None
        except CardError as error:
            raise CardError(f"models.template {self._folder}: {error}") from None
