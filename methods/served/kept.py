"""The file of a device's own trained model, with all ways in which the model can predict.

A way to predict is a rule and its tensors. If several ways have the same tensor, this tensor is stored once. Exports
are made from this file. The format of the file is safetensors.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor

from protofleet.methods.contract.base import ClientHalf
from protofleet.methods.contract.plan import Network, Plan
from protofleet.methods.nets.weights_file import (
    WeightsFileError,
    pieces_of_weights,
    read_weights,
    said_about,
)
from protofleet.methods.served.card import Card, CardError, read_card, sha256_of_tensors
from protofleet.methods.served.rebuild import described
from protofleet.methods.served.scaling import Scale, input_of
from protofleet.methods.served.served import PREDICT, as_exported, rules_of, tensors_of
from protofleet.protocol.settings.reader import encode
from protofleet.protocol.settings.suggest import there_are

ABOUT: Final = "protofleet"  # Key of our entry in the metadata of the file.


@dataclass(frozen=True)
class KeptOrigin:
    """The origin of a device's model, for the card in the model's file."""

    plan: Plan
    device: str
    network: Network
    classes: tuple[str, ...]
    scale: Scale | None = None  # Scale of the device's data, if the data have one.


@dataclass(frozen=True)
class Kept:
    """The content of a file with a kept model; `card` is the card for the way `predict`."""

    card: Card
    # Way to predict -> its rule, and the names of its tensors in the file.
    ways: Mapping[str, Mapping[str, Any]]
    path: Path = field(default_factory=Path)

    def model(self, way: str = PREDICT) -> tuple[Card, dict[str, Tensor]]:
        """Return the card and the tensors of a way to predict.

        Raise CardError if the way does not exist or the file is damaged.
        """
        if way not in self.ways:
            raise CardError(f"the prediction mode {way!r} does not exist; {there_are(way, self.ways)}")
        try:
            stored, said = read_weights(self.path), self.ways[way]
            tensors = {name: stored[place] for name, place in said["tensors"].items()}
            sha256 = sha256_of_tensors(tensors)
            if sha256 != said["sha256"]:
                raise CardError(f"{self.path} is damaged: its tensors are not those that were written")
            # The card's results are from the mode `predict`. The cards of other prediction modes have no results.
            card = self.card if way == PREDICT else replace(self.card, validation=None, test={})
            return replace(card, way=way, rule=said["rule"], tensors=sha256), tensors
        except (KeyError, TypeError, AttributeError, WeightsFileError) as error:
            raise CardError(f"{self.path} is damaged: {str(error)[:200]}") from None


def pieces_of_kept(
    half: ClientHalf, origin: KeptOrigin, number: int, validation: float | None, test: Mapping[str, float]
) -> Iterator[bytes]:
    """Yield the file, tensor by tensor."""
    stored: dict[str, Tensor] = {}
    ways: dict[str, dict[str, Any]] = {}
    for way, rule in rules_of(half).items():
        tensors = tensors_of(half, rule)
        places = {name: _place(name, way, value, stored) for name, value in tensors.items()}
        stored |= {places[name]: value for name, value in tensors.items()}
        said = {"rule": described(as_exported(rule)), "tensors": places, "sha256": sha256_of_tensors(tensors)}
        ways[way] = said
    own = ways[PREDICT]
    plan, numbers = origin.plan, [stored[place] for place in own["tensors"].values()]
    card = Card(
        plan.method, origin.classes, input_of(plan, origin.scale), origin.network, own["rule"], encode(plan),
        own["sha256"], paper=plan.load().paper, round=number, device=origin.device, validation=validation,
        test=dict(test),
        parameters=sum(value.numel() for value in numbers if value.is_floating_point()),
        bytes=sum(value.nbytes for value in numbers), plan_sha256=plan.digest.hex(),
    )  # fmt: skip
    yield from pieces_of_weights(stored, {ABOUT: json.dumps({"card": card.text(), "ways": ways})})


def _place(name: str, way: str, value: Tensor, stored: Mapping[str, Tensor]) -> str:
    """Return the name under which a tensor is stored in the file.

    If the way `predict` has the same tensor under `name`, the tensor is not stored again, and `name` is returned.
    """
    common = stored.get(name)
    if way == PREDICT or (common is not None and common.shape == value.shape and torch.equal(common, value)):
        return name
    return f"{way}/{name}"


def read_kept(path: Path) -> Kept:
    """Read a file, or raise CardError if the file has another form or is from another version."""
    try:
        about = json.loads(said_about(path)[ABOUT])
        card, ways = read_card(about["card"].encode()), about["ways"]
    except (OSError, KeyError, ValueError, TypeError, AttributeError, RecursionError) as error:
        raise CardError(f"{path} cannot be read: {str(error)[:200]}") from None
    return Kept(card, ways, path)
