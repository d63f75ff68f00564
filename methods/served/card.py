"""The content of card.json, which describes a model, its origin, its input and its output."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import typing
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from torch import Tensor

from protofleet.methods.contract.plan import Network, Plan
from protofleet.methods.nets.weights_file import NAMES
from protofleet.methods.plugins.errors import PlugInError
from protofleet.methods.served.scaling import Input
from protofleet.protocol.settings.reader import SettingsError, decode, encode

FORMAT: Final = 1
LARGEST_CARD: Final = 1 << 24  # The largest size of a card in bytes.


class CardError(ValueError):
    """The error about a card, or about a file that must match it, with a message of one line."""


@dataclass(frozen=True)
class TensorPlace:
    """The place of a tensor's bytes in a template."""

    at: int
    dtype: str  # Name of the type in safetensors.
    shape: tuple[int, ...]


@dataclass(frozen=True)
class Card:
    method: str
    classes: tuple[str, ...]
    input: Input
    network: Network
    rule: dict[str, Any]  # Kind of the rule, and the settings of that kind.
    plan: dict[str, Any]  # Plan of the run; all parties have the same plan.
    tensors: str  # SHA-256 over names, types, shapes and numbers of the tensors.
    format: int = FORMAT
    name: str = ""  # Name of the run.
    paper: str = ""
    way: str = "predict"
    round: int = 0  # The model is from the end of this round; 0 means that it is older than the first round.
    chosen: Literal["last", "best"] = "last"
    device: str | None = None  # Device that owns the model; None: it is the model of all devices.
    validation: float | None = None  # Accuracy on validation samples.
    test: dict[str, float] = field(default_factory=dict)  # Accuracy on test samples by domain.
    parameters: int = 0
    bytes: int = 0
    plan_sha256: str = ""
    plugins: dict[str, str] = field(default_factory=dict)
    software: str = ""
    made: str = ""  # Time in UTC at which the model was exported.
    files: dict[str, str] = field(default_factory=dict)  # SHA-256 of each file by its name.
    # Place of each tensor's bytes in model.onnx. Only the card of a template has these places.
    offsets: dict[str, TensorPlace] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.format != FORMAT:
            raise ValueError(
                f"format is {self.format}, but this version reads {FORMAT}; update protofleet on this machine"
            )

    def text(self) -> str:
        table = {"device": None, "validation": None, **encode(self)}
        table["input"] |= {"kind": self.input.kind, "to": [-1, 1]}
        if self.input.kind == "image":
            # Pillow resizes images in another way than protofleet, so a user should give images of the right size.
            table["input"]["resize"] = "as protofleet"
        if not self.offsets:
            del table["offsets"]
        return json.dumps(table, indent=1, allow_nan=False) + "\n"


def read_card(text: bytes) -> Card:
    """Return the card of a text, or raise CardError if the text is not a card.

    Unknown keys are ignored, because a later version has more keys.
    """
    try:
        table = json.loads(text[: LARGEST_CARD + 1])
        return decode(Card, _known(Card, table), "card")
    except (SettingsError, TypeError) as error:
        raise CardError(str(error)) from None
    except (ValueError, RecursionError):
        raise CardError("it is not JSON, so it is not the card of a model") from None


def matching(card: Card, name: str, content: bytes) -> bytes:
    """Return the content of a file that the card names.

    Raise CardError if the hash of the content differs from the hash in the card.
    """
    said, found = card.files.get(name), hashlib.sha256(content).hexdigest()
    if said is None:
        raise CardError(f"the card names no file {name}; export the model again in the format of this file")
    if found != said:
        raise CardError(
            f"{name} is not the file that the card names: its SHA-256 is {found[:12]}..., not {said[:12]}...; "
            "copy the folder again, or export the model again"
        )
    return content


def plan_of(card: Card) -> Plan:
    """Return the plan of a card; raise CardError if protofleet lacks the method or network of the plan."""
    try:
        return decode(Plan, card.plan, "card.plan")
    except PlugInError as error:
        way_out = "name its file: predict or export --plugin FILE, or load_model(..., plugins=[FILE])"
        raise CardError(f"{error}; {way_out}") from None
    except (SettingsError, LookupError) as error:
        raise CardError(str(error)) from None


def sha256_of_tensors(tensors: Mapping[str, Tensor]) -> str:
    digest = hashlib.sha256()
    for name, value in sorted(tensors.items()):
        array = value.detach().cpu().contiguous()
        digest.update(json.dumps([name, NAMES[value.dtype], list(value.shape)]).encode())
        digest.update(array.numpy().astype(array.numpy().dtype.newbyteorder("<")).tobytes())
    return digest.hexdigest()


def _known(cls: Any, table: Any) -> Any:
    """Return the table with only the keys that the class has as fields; inner tables are treated in the same way."""
    if not isinstance(table, dict):
        return table
    hints = typing.get_type_hints(cls)
    found = {f.name: table[f.name] for f in dataclasses.fields(cls) if f.name in table}
    return {
        name: _known(hints[name], value) if dataclasses.is_dataclass(hints[name]) else value
        for name, value in found.items()
    }
