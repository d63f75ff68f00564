"""The device's own models that it keeps for an export: the last model and the best model by validation.

The models are written on the worker's thread. Each model is written to a new file, which then replaces the old file.
If writing fails, only this copy of the model is lost, and the training continues.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from protofleet.edge_client.serving.settings import PERSONAL
from protofleet.methods.contract.base import ClientHalf
from protofleet.methods.served.card import CardError
from protofleet.methods.served.kept import Kept, KeptOrigin, pieces_of_kept, read_kept
from protofleet.protocol.storage.disk import Disk

log = logging.getLogger("protofleet.device")

FOLDER: Final = "kept"
LAST, BEST = "last", "best"
# The disk must have room for this number of models. The last and the best model need a part of this room, and the
# next update needs the rest.
ROOM: Final = 4


def kept_file(folder: Path, chosen: str) -> Path:
    """Return the path of a kept model; `folder` is the device's own folder."""
    return folder / FOLDER / f"{chosen}.safetensors"


class KeptModels:
    """The kept models of one plan."""

    def __init__(self, folder: Path, origin: KeptOrigin, disk: Disk) -> None:
        self._folder, self._origin, self._disk = folder, origin, disk
        self._best: tuple[int, float] | None = self._best_of_before()
        self._failed = False

    def publish(self, kind: str, half: ClientHalf, number: int, metrics: Mapping[str, float]) -> None:
        if kind != PERSONAL:
            return
        try:
            self._keep(half, number, metrics)
        except Exception as error:  # noqa: BLE001 - a disk or a rule that this cannot handle must not end the training
            if not self._failed:
                log.warning(
                    "the device's own model is not kept: %s: %s; training goes on",
                    type(error).__name__,
                    error,
                )
            self._failed = True
        else:
            self._failed = False

    def take_unwritten(self) -> int:
        return 0  # Only versions of served models are counted.

    def _keep(self, half: ClientHalf, number: int, metrics: Mapping[str, float]) -> None:
        validation = metrics.get(f"accuracy.validation.{PERSONAL}")
        test = metrics.get(f"accuracy.test.{PERSONAL}")
        tests = {} if test is None else {"own": test}
        self._require_room(half)
        self._write(LAST, half, number, validation, tests)
        if validation is not None and self._is_best(number, validation):
            self._link_best()
            self._best = number, validation

    def _write(
        self, name: str, half: ClientHalf, number: int, validation: float | None, test: Mapping[str, float]
    ) -> None:
        path = kept_file(self._folder, name)
        self._disk.make(path.parent)
        with self._disk.fresh(path, durable=self._disk.durable) as fresh, fresh.open("wb") as file:
            for piece in pieces_of_kept(half, self._origin, number, validation, test):
                file.write(piece)

    def _link_best(self) -> None:
        """Make the file of the last model also the file of the best model.

        The next model gets a new file, so it does not change the file of the best model.
        """
        self._disk.link(kept_file(self._folder, LAST), kept_file(self._folder, BEST))

    def _is_best(self, number: int, validation: float) -> bool:
        """Return whether this model is better than all earlier models. An equal model is not better.

        If the known best model is from a later round, the run was started again or went back to an earlier round.
        Then the known best model is ignored.
        """
        return self._best is None or number < self._best[0] or validation > self._best[1]

    def _best_of_before(self) -> tuple[int, float] | None:
        """Return the round and the accuracy of this plan's best model in the folder; None if there is none."""
        try:
            kept: Kept = read_kept(kept_file(self._folder, BEST))
        except CardError:  # The file is missing, or another version of protofleet has written it.
            return None
        card = kept.card
        if card.plan_sha256 != self._origin.plan.digest.hex() or card.validation is None:
            return None
        return card.round, card.validation

    def _require_room(self, half: ClientHalf) -> None:
        """Raise OSError if this copy would leave too little room on the disk for the next update."""
        size = sum(value.nbytes for value in half.model.state_dict().values())
        free = self._disk.free_bytes(self._folder)
        if free < ROOM * size:
            raise OSError(
                f"the model has {size:,} bytes, but only {free:,} bytes are free, and the next update needs them"
            )
