"""The store of the global model with the best validation accuracy; the spool keeps the newest model.

The validation accuracy in a record belongs to the model with which the round began. When the round ends, the
spool still has a snapshot of that model. So the model is not written again: the snapshot gets a second name
in the folder of this store. Only a model that all present devices have measured can be chosen. The choice
follows the same rule as in the summary (`coordinator/models/choice.py`).

If the server half keeps answers, a snapshot has the answers of devices. So when the answer of a removed device is
deleted, the stored model is deleted too (`delete_best`). `export --best` then exports the newest model.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from protofleet.coordinator.models.choice import Validation
from protofleet.coordinator.observe.curves import measured_by_all
from protofleet.coordinator.observe.record import ByView, RoundRecord
from protofleet.coordinator.spool.spool import Spool
from protofleet.protocol.storage.disk import is_full
from protofleet.protocol.storage.store import ObjectStore

log = logging.getLogger("protofleet.coordinator")

GLOBAL: Final = "global"


@dataclass(frozen=True, slots=True)
class Best:
    """The stored model, which is the state of the server half at the start of `round`."""

    round: int
    object: bytes


class BestModel:
    """A sink of the journal that stores the best model, for methods whose paper reports the global model."""

    def __init__(self, spool: Spool, lines: Iterable[Mapping[str, Any]]) -> None:
        """Restore the choice of earlier processes; `lines` are the lines of rounds.jsonl so far."""
        self._spool, self._folder = spool, best_folder(spool.folder)
        self._noted: set[int] = set()  # Rounds whose accuracy was already compared with the best accuracy.
        self._chosen: tuple[int, Validation] | None = None
        for line in lines:
            if measured_by_all(line, GLOBAL):
                self._note(line["round"], line.get("validation", {}), line.get("validation_by_device", {}))
        self._unwritten = 0  # Round of a chosen model that did not fit on the disk; 0 if there is none.

    def entry(self, what: str, details: Mapping[str, Any]) -> None:
        """Try again to store a model that did not fit on the disk before."""
        if self._unwritten:
            self._keep(self._unwritten)

    def round_ended(self, record: RoundRecord) -> None:
        if record.is_of_all(GLOBAL):
            self._note(record.round, record.validation, record.validation_by_device)
        if self._chosen is None or self._chosen[0] != record.round:
            return
        kept = read_best(self._spool.folder)  # It may have been deleted since this object has written it.
        if kept is None or kept.round != record.round:
            self._keep(record.round)

    def _note(self, number: int, by_domain: ByView, by_device: ByView) -> None:
        """Compare the model of a round with the best model so far; a repeated round is not compared again."""
        if number in self._noted or not by_domain.get(GLOBAL):
            return
        self._noted.add(number)
        point = Validation(by_domain[GLOBAL], by_device.get(GLOBAL, {}))
        if self._chosen is None or point.is_better_than(self._chosen[1]):
            self._chosen = number, point

    def _keep(self, number: int) -> None:
        self._unwritten = 0
        saved = self._spool.saved_round(number)
        if saved is None:
            log.warning(
                "the model of round %d has the best validation accuracy, but its snapshot was deleted, so the model "
                "cannot be stored",
                number,
            )
            return
        disk = self._spool.disk
        store = ObjectStore(self._folder, disk=disk, within=self._folder.parent)
        try:
            name = store.put_once(saved.state, same_disk=self._spool.snapshots).object
            said = {"round": number, "object": name.hex()}
            disk.replace(self._folder / "best.json", (json.dumps(said, allow_nan=False) + "\n").encode())
        except OSError as error:
            if not is_full(error):
                raise
            self._unwritten = number
            log.error(
                "the model with the best validation accuracy could not be stored: %s; the coordinator tries again "
                "at the next event of the run",
                error,
            )
            return
        store.keep({name})


def best_folder(spool: Path) -> Path:
    return spool / "best"


def delete_best(spool: Spool) -> None:
    """Delete the stored model, because its state has the answer of a device that was removed.

    Call this function before the save that deletes the older snapshots. If the process dies between the two, the
    replay may store the model again from such a snapshot, and then deletes it again before it saves.
    """
    folder, disk = best_folder(spool.folder), spool.disk
    if folder.is_dir():
        disk.remove(folder / "best.json")
        ObjectStore(folder, disk=disk, make=False).keep(set())
        disk.sync(folder)


def read_best(spool: Path) -> Best | None:
    """Return the stored best model; None if no model is stored."""
    try:
        said = json.loads((best_folder(spool) / "best.json").read_bytes())
        return Best(int(said["round"]), bytes.fromhex(said["object"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None
