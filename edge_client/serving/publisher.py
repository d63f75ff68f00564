"""The publisher, which writes versions of the device's model on the worker's thread.

If a version cannot be written, only this version is lost, and the training continues. Each failure is counted. Only
the first of several failures in a row is logged.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from importlib import metadata
from pathlib import Path
from typing import Final

from torch import Tensor

from protofleet.edge_client.serving.settings import GLOBAL, PERSONAL, ModelSettings
from protofleet.edge_client.serving.template import ONNX, Template
from protofleet.edge_client.serving.versions import ModelVersions, Version
from protofleet.methods.contract.base import ClientHalf
from protofleet.methods.contract.plan import Network, Plan
from protofleet.methods.nets.weights_file import sha256_of_file, write_weights
from protofleet.methods.served.card import Card, CardError, sha256_of_tensors
from protofleet.methods.served.card_file import CARD
from protofleet.methods.served.rebuild import described
from protofleet.methods.served.scaling import Input, Scale, input_of
from protofleet.methods.served.served import Served, served
from protofleet.protocol.settings.reader import encode
from protofleet.protocol.storage.disk import Disk, NoRoom

WEIGHTS: Final = "model.safetensors"
# The free bytes on the disk must be at least this number times the model's bytes. They are needed for the version,
# and for the next update and the next state of the training.
ROOM: Final = 4
EXPECTED: Final = (OSError, NoRoom, CardError)

log = logging.getLogger("protofleet.device")


@dataclass(frozen=True)
class ModelOrigin:
    """The origin of a model, which the model's card names."""

    device: str
    network: Network | None  # the device's own network, if it has one


class ModelPublisher:
    """The publisher of the models of a trainer, for all plans of this trainer."""

    def __init__(self, settings: ModelSettings, state: Path, origin: ModelOrigin, disk: Disk) -> None:
        self._settings, self.origin = settings, origin
        self.versions = ModelVersions(settings.folder_in(state), settings.keep, disk)
        self._template = Template(Path(settings.template)) if settings.template else None
        self._unwritten, self._failed = 0, False
        self._without_global = False  # whether the warning that the method has no global model was logged

    def of(self, plan: Plan, classes: Sequence[str], scale: Scale | None = None) -> PublishedModels:
        """Return the destination for the models of a plan; `scale` is the scale of the device's data."""
        reports = plan.variant.reports
        if (kind := self._settings.kind(reports)) == GLOBAL and reports == PERSONAL:
            self._say_without_global(plan.method)
        # If the names of the classes are unknown, the labels are used as names.
        names = tuple(classes) or tuple(str(label) for label in range(plan.classes))
        return PublishedModels(self, plan, names, kind, input_of(plan, scale))

    def attempt(self, write: Callable[[], None]) -> None:
        try:
            write()
        except Exception as error:  # noqa: BLE001 - a rule or a disk that this cannot handle must not end the training
            self._unwritten += 1
            self._warn(error)
        else:
            self._failed = False

    def take_unwritten(self) -> int:
        unwritten, self._unwritten = self._unwritten, 0
        return unwritten

    def write(self, card: Card, model: Served, *, waits: bool) -> None:
        """Write a version; `card` is complete except for the hashes of the files."""
        self._need_room(2 * card.bytes if self._template else card.bytes)
        tensors = model.state_dict()

        def fill(folder: Path) -> None:
            write_weights(folder / WEIGHTS, tensors)
            if self._template is not None:
                (folder / ONNX).write_bytes(self._template.filled(tensors, card.input))
            files = {path.name: sha256_of_file(path) for path in sorted(folder.iterdir())}
            (folder / CARD).write_text(replace(card, files=files).text())

        self.versions.write(version_of(card, self.versions.folder), fill, waits=waits)

    def _need_room(self, wanted: int) -> None:
        self.versions.disk.make(self.versions.folder)
        free = self.versions.disk.free_bytes(self.versions.folder)
        if free < ROOM * wanted:
            raise NoRoom(
                f"a version takes {wanted} bytes, and training needs space as well, but only {free} bytes are free"
            )

    def _warn(self, error: Exception) -> None:
        """Log a warning, but only for the first failure since a version was written."""
        if not self._failed:
            why = str(error) if isinstance(error, EXPECTED) else f"{type(error).__name__}: {error}"
            log.warning(
                "no version of the model is written to %s: %s; training goes on", self.versions.folder, why
            )
        self._failed = True

    def _say_without_global(self, method: str) -> None:
        if not self._without_global:
            words = "set models.serve to personal or auto"
            log.warning(
                "models.serve is global, but %s has no global model, so no model is served: %s", method, words
            )
        self._without_global = True


@dataclass(frozen=True)
class PublishedModels:
    """The destination for the models of one plan's jobs."""

    publisher: ModelPublisher
    plan: Plan
    classes: tuple[str, ...]
    kind: str
    takes: Input

    def publish(self, kind: str, half: ClientHalf, number: int, measured: Mapping[str, float]) -> None:
        """Write a version of the half's model, if the settings serve models of this kind.

        Round 0 is left out: its weights are the first weights of the run, before any training.
        """
        if kind == self.kind and number > 0:
            self.publisher.attempt(lambda: self._write(half, number, measured))

    def take_unwritten(self) -> int:
        return self.publisher.take_unwritten()

    def _write(self, half: ClientHalf, number: int, measured: Mapping[str, float]) -> None:
        model = served(half, self.takes)
        card = self._card(model, number, measured)
        self.publisher.write(card, model, waits=self.kind == PERSONAL)

    def _card(self, model: Served, number: int, measured: Mapping[str, float]) -> Card:
        plan, origin, tensors = self.plan, self.publisher.origin, model.state_dict()
        test = measured.get(f"accuracy.test.{self.kind}")
        return Card(
            plan.method, self.classes, self.takes, origin.network or plan.network,
            described(model.rule), encode(plan), sha256_of_tensors(tensors), paper=plan.load().paper, round=number,
            device=origin.device if self.kind == PERSONAL else None,
            validation=measured.get(f"accuracy.validation.{self.kind}"), test={} if test is None else {"own": test},
            parameters=count(tensors), bytes=sum(value.nbytes for value in tensors.values()),
            plan_sha256=plan.digest.hex(), software=software(),
            made=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        )  # fmt: skip


def software() -> str:
    try:
        return metadata.version("protofleet")
    except metadata.PackageNotFoundError:
        # The program runs from a checkout, and the package is not installed.
        return ""


def count(tensors: Mapping[str, Tensor]) -> int:
    return sum(value.numel() for value in tensors.values() if value.is_floating_point())


def version_of(card: Card, folder: Path) -> Version:
    """Return the version in the card's file, for a comparison with other versions."""
    kind = PERSONAL if card.device else GLOBAL
    return Version(0, folder, card.plan_sha256, card.round, card.validation, card.tensors, kind, card.made)
