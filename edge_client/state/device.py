"""The data of a device that survive a reboot: the half's state and the last updates of each run, which fit together.

The JSON file device.json names the objects with these data. A training is recorded when a new device.json has
replaced the old device.json. The old device.json and the state before the last training are kept too. If a file is
damaged, the device returns to the earlier state and computes the same update for the last task again.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from protofleet.edge_client.state.file import KEPT_ANSWERS, Answer, RunEntry, StateFile
from protofleet.edge_client.state.holders import Holders
from protofleet.edge_client.state.masked import MaskedState
from protofleet.edge_client.state.recovery import recovery_advice
from protofleet.edge_client.state.residuals import Residuals
from protofleet.edge_client.state.table import StateTable, TakenOverError
from protofleet.protocol.privacy.ledger import PrivateRelease
from protofleet.protocol.storage.disk import Disk
from protofleet.protocol.storage.store import ObjectStore
from protofleet.protocol.wire.messages import Arrays
from protofleet.protocol.wire.names import EVALUATE

__all__ = ["DeviceState", "TakenOverError"]


class DeviceState:
    """The stored state of a device, as one of its runs sees it.

    `of` returns an object for another run. All these objects share one file, one store and one boot.
    """

    def __init__(self, folder: Path, durable: bool = True, disk: Disk | None = None) -> None:
        """Read the state in this folder; the object is for the run that was begun last."""
        self._table = StateTable(folder, disk or Disk(durable))
        self._run = self._table.saved.newest_run

    def of(self, run: str) -> DeviceState:
        """Return an object for another run."""
        other = copy.copy(self)
        other._run = run
        return other

    def follow(self, run: str) -> None:
        """Use this object for another run from now on."""
        self._run = run

    @property
    def table(self) -> StateTable:
        return self._table

    @property
    def file(self) -> StateFile:
        """Return the contents of device.json, with all runs."""
        return self._table.saved

    @property
    def saved(self) -> RunEntry:
        """Return the stored entry of this run; it is empty before the run has begun."""
        return self._table.saved.entry(self._run)

    @property
    def releases(self) -> list[PrivateRelease]:
        """Return the ledger: all updates with noise that this device has made, in all runs."""
        return self._table.saved.releases

    @property
    def folder(self) -> Path:
        return self._table.folder

    @property
    def disk(self) -> Disk:
        return self._table.disk

    @disk.setter
    def disk(self, disk: Disk) -> None:
        self._table.disk = disk

    @property
    def store(self) -> ObjectStore:
        return self._table.store

    @property
    def fallbacks(self) -> int:
        """Return 1 if a file was damaged at the start, so that a copy or an older state is used; otherwise 0."""
        return self._table.fallbacks

    @property
    def holders(self) -> Holders:
        return self._table.holders

    @property
    def renewed(self) -> bool:
        """Return whether the device has received a new record for its keys since the last start."""
        return self._table.renewed

    @property
    def previous_boot(self) -> int:
        """Return the boot of the last start."""
        return self._table.previous_boot

    @property
    def previous_inputs(self) -> str:
        """Return the object with the list of samples before the last update."""
        return next((one.inputs for one in self._table.previous if one.run == self._run), "")

    def boot(self, clock: int, holder: str = "") -> int:
        """Choose, store and return the boot of this process."""
        return self._table.boot(clock, holder)

    def forget_epoch(self) -> None:
        """Forget the stored epoch."""
        self._table.forget_epoch()

    def set_coordinator(self, coordinator: str) -> None:
        """Store the holder of the coordinator's keys; epochs that are stored from now on belong to this holder."""
        self._table.set_coordinator(coordinator)

    def is_superseded(self, boot: int, mine: int) -> bool:
        """Return whether `boot` belongs to a later process of the same name; `mine` is the boot of this process."""
        return self._table.is_superseded(boot, mine)

    @property
    def last_round(self) -> int:
        """Return the last round of this run for which there is an update; 0 if there is no update."""
        return self.saved.last_round

    def begin(self, run: str, plan: str, epoch: int = 0) -> None:
        """Join a run.

        If the coordinator leads one run at a time, remove the state of the earlier run.
        """
        known = self._table.saved.entry(run)
        if (known.run, known.plan) != (run, plan):
            self._table.begin(RunEntry(run=run, plan=plan, epoch=epoch))
        elif known.over:  # The run goes on after all.
            self._table.replace_entry(replace(known, over=False))
        self._run = run

    def end_run(self) -> None:
        """Record that this run is over, so that another run may take its place."""
        if (entry := self.saved).run and not entry.over:
            self._table.replace_entry(replace(entry, over=True))

    def half(self) -> Arrays | None:
        saved = self.saved
        return self.store.open(bytes.fromhex(saved.half)) if saved.half else None

    def fix_inputs(self, number: int, listing: Arrays) -> None:
        """Store the list of samples for round `number`; call this before the training of the round.

        If the process is killed in this round, the next process continues with the same list.
        """
        name = self.store.put(listing).object.hex()
        self._table.replace_entry(replace(self.saved, inputs=name, inputs_round=number))

    def answer_to(self, question: str) -> Answer | None:
        return next((a for a in self.saved.answers if a.question == question), None)

    def save_answer(
        self, answer: Answer, half: Arrays, epoch: int = 0, residuals: Sequence[Residuals] = (),
        is_reference: bool = False, masked: MaskedState | None = None, release: PrivateRelease | None = None,
    ) -> None:  # fmt: skip
        """Save the state, the update, its residuals and the epoch of the task, all in one step.

        `is_reference` says that a later broadcast may be a delta from the broadcast of the task. `masked` is the
        attempt to which the update belongs, in a run that sums masked updates; None keeps the saved attempt.
        `release` is the line of the ledger for an update with noise.
        """
        name = self.store.put(half).object.hex() if half else ""
        with self._table.locked():
            self._table.check_not_taken_over()
            before = self.saved
            # An evaluation deletes no answers of the last round, so that the device can measure what they show.
            answers = [a for a in before.answers if a.round == answer.round or answer.phase == EVALUATE]
            references = {**before.references, answer.phase: answer.base} if is_reference else {}
            saved = replace(
                before, references=references, epoch=max(epoch, before.epoch), half=name, broadcast=answer.base,
                answers=[*answers, answer][-KEPT_ANSWERS:], lost=None, residuals=list(residuals),
                masked=masked or before.masked,
            )  # fmt: skip
            self._table.save_answer(saved, release)

    def save_masked(self, masked: MaskedState) -> None:
        """Save the end of an attempt to which this device does not answer any more."""
        self._table.replace_entry(replace(self.saved, masked=masked))

    def metrics_of(self, phase: str) -> Mapping[str, float]:
        """Return the metrics of the last update of a phase; they are empty if there is no such update."""
        found = (answer.metrics for answer in reversed(self.saved.answers) if answer.phase == phase)
        return next(found, {})

    def cannot_answer(self, question: str) -> str:
        """Return why no update can be computed for a task, or "".

        If an update was lost, only the task of this update can be done, because later tasks need its result.
        """
        lost = self.saved.lost
        if lost is None or lost.question == question:
            return ""
        lost_message = (
            f"the update for round {lost.round} {lost.phase} is lost, and its broadcast is lost too"
        )
        return f"{lost_message}; {recovery_advice(self.folder)}"

    def needed_bytes(self, base: bytes) -> int:
        """Estimate the disk space, in bytes, of the update to the broadcast `base` and of the state after it."""
        saved = self.saved
        last = saved.answers[-1].object if saved.answers else ""
        known = [self.store.size(bytes.fromhex(name)) for name in (saved.half, last) if name]
        return 2 * max([self.store.size(base) if base else 0, *known])

    def keep_only(self, needed: set[bytes]) -> None:
        """Remove all objects except those of the present and the previous state, and those in `needed`."""
        self.store.keep({bytes.fromhex(name) for name in self._table.objects()} | needed)
