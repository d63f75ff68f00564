"""Export a model of a run to a folder: files, a card and a short program. If an export fails, nothing is written."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Final

from protofleet.lab.export.check import check_files, require_check
from protofleet.lab.export.folder import new_folder, require_place
from protofleet.lab.export.formats import FILES, ONNX, PT2, SAFETENSORS, encoded, has_onnx, require_onnx
from protofleet.lab.export.program import program_for
from protofleet.lab.export.source import ExportedModel, Wanted, find_model
from protofleet.lab.export.template import template_of
from protofleet.methods.served.card import Card, CardError
from protofleet.methods.served.card_file import CARD
from protofleet.methods.served.rebuild import words_of
from protofleet.protocol.settings.reader import SettingsError
from protofleet.runtime.command.errors import RunError
from protofleet.runtime.installation.extras import install_hint

PROGRAM: Final = "predict.py"
DEFAULT_OUT: Final = "models"
SUFFIXES: Final = frozenset(Path(name).suffix for name in FILES.values())

Say = Callable[[str], None]


@dataclass(frozen=True)
class Order:
    """The choices of the user about an export."""

    run: Path
    wanted: Wanted = field(default_factory=Wanted)
    formats: tuple[
        str, ...
    ] = ()  # Names of file formats; empty for all formats that can be written on this machine.
    out: Path | None = None
    template: bool = False
    check: bool = False
    software: str = ""  # The version of protofleet that writes the export.

    def __post_init__(self) -> None:
        if self.template and self.formats and ONNX not in self.formats:
            raise SettingsError(
                "--template needs the format ONNX; add onnx to --format, or leave out one of the two options"
            )
        if self.out is not None and self.out.suffix in SUFFIXES and not self.out.is_dir():
            raise SettingsError(
                f"--out is {self.out}, which is the name of a file; name a folder for {FILES[ONNX]} and "
                "the other files"
            )

    def place(self) -> Path:
        own = [self.wanted.device] if self.wanted.device else []
        return self.out or self.run.joinpath(DEFAULT_OUT, *own, self.wanted.chosen)


@dataclass(frozen=True)
class Exported:
    folder: Path
    card: Card
    # File -> largest difference between the scores of the file and the scores of the model, divided by the model's
    # largest score.
    checked: Mapping[str, float]

    def as_object(self) -> dict[str, Any]:
        files = [*self.card.files, CARD]
        return {
            "folder": str(self.folder), "files": files, "round": self.card.round, "chosen": self.card.chosen,
            "device": self.card.device, "way": self.card.way, "tensors": self.card.tensors,
            "checked": dict(self.checked),
        }  # fmt: skip


def export_model(order: Order, say: Say) -> Exported:
    place = order.place()
    if order.run.is_dir():  # If the run does not exist, find_model raises a better error below.
        require_place(place)
    # The model is found before the formats are printed, so that only the error is printed if there is no such model.
    model = find_model(order.run, order.wanted)
    formats = _formats(order, say)
    if order.check:
        require_check(formats)
    say(_words(model.card))
    if model.assumed:
        say(model.assumed)
    with new_folder(place) as folder:
        card = _write(model, formats, order.template, folder, order.software)
        checked = check_files(folder, model.served, card, formats, say) if order.check else {}
    return Exported(place, card, checked)


def _formats(order: Order, say: Say) -> tuple[str, ...]:
    """Return each chosen format once, with safetensors first."""
    if order.template or ONNX in order.formats:
        require_onnx()
    if order.formats:
        return tuple(name for name in FILES if name in order.formats)
    if has_onnx():
        return (SAFETENSORS, ONNX)
    say(f"without the packages onnx and onnxscript a .pt2 file is written instead: {install_hint('export')}")
    return (SAFETENSORS, PT2)


def _write(
    model: ExportedModel, formats: tuple[str, ...], template: bool, folder: Path, software: str
) -> Card:
    """Write the files. The card is written last, because it has the hashes of the other files."""
    card = replace(
        model.card, software=software, made=datetime.now(timezone.utc).isoformat(timespec="seconds")
    )
    files = {}
    for name in formats:
        try:
            if name == ONNX and template:
                content, card = template_of(model.served, card)
            else:
                content = encoded(name, model.served, card)
        except CardError as error:
            raise RunError(str(error)) from None
        files[FILES[name]] = content
    files[PROGRAM] = program_for(card, formats).encode()
    card = replace(card, files={name: hashlib.sha256(content).hexdigest() for name, content in files.items()})
    for name, content in {**files, CARD: card.text().encode()}.items():
        (folder / name).write_bytes(content)
    return card


def _words(card: Card) -> str:
    whose = f"{card.device}'s own model" if card.device else "the model of all"
    rule = words_of(card.rule)
    validation = "" if card.validation is None else f", {card.validation:.1%} on validation samples"
    return (
        f"{card.method}: {whose} after round {card.round} ({card.chosen}){validation}; it predicts by {rule}; "
        f"{card.parameters:,} parameters, {len(card.classes)} classes"
    )
