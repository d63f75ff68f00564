"""The data of a device that survive a reboot: the half's state and the last updates, which always fit together.

The JSON file device.json names the objects with these data. A training is recorded when a new device.json has
replaced the old device.json. The old device.json and the state before the last training are kept too. If a file is
damaged, the device returns to the earlier state and computes the same update for the last task again.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import TypeAlias

from protofleet.edge_client.state.file import (
    KEPT_ANSWERS,
    Answer,
    StateFile,
    encode_state_file,
    read_state_file,
)
from protofleet.edge_client.state.holders import NAME, Holders, read_holders, write_holders
from protofleet.edge_client.state.recovery import StateFiles, recover, recovery_advice
from protofleet.edge_client.state.residuals import Residuals, objects_in
from protofleet.protocol.link.clocks import MOST_AHEAD
from protofleet.protocol.security.holders import same_record
from protofleet.protocol.storage.disk import Disk, write_whole
from protofleet.protocol.storage.folder_lock import held
from protofleet.protocol.storage.store import DamagedError, NewerFormatError, ObjectStore
from protofleet.protocol.wire.messages import Arrays

FileId: TypeAlias = tuple[int, int, int]


def file_id(path: Path) -> FileId:
    """Return numbers that identify the file at this path; they change when the file is replaced."""
    found = path.stat()
    return found.st_ino, found.st_mtime_ns, found.st_size


class TakenOverError(RuntimeError):
    """The error of a process after a later process of the device has taken over the folder.

    The results of the earlier process are dropped.
    """


class DeviceState:
    def __init__(self, folder: Path, durable: bool = True, disk: Disk | None = None) -> None:
        self.disk = disk or Disk(durable)
        self.folder = folder
        self._files = StateFiles(folder)
        self.store = ObjectStore(folder / "objects", disk=self.disk)
        recovered = recover(self._files, self.store)
        self.saved, self.fallbacks = recovered.saved, int(recovered.fell_back)
        # Objects with the residuals before the last update.
        self._previous_residuals = recovered.previous_residuals
        self._previous_half = recovered.previous_half  # object with the half's state before the last update
        # Object with the list of samples before the last update.
        self.previous_inputs = recovered.previous_inputs
        # The id of device.json on the disk, and the boot in this file.
        self._known: tuple[FileId, int] | None = None
        self._own_boot = self.saved.boot  # If device.json has another boot, another process has taken over.
        self.holders = read_holders(folder)
        self.renewed = False  # whether the device has received a new record for its keys since the last start
        # Boot of the last start. A boot is the time of the clock at the start. If the clock now shows an earlier
        # time, the clock is behind.
        self.previous_boot = 0

    def boot(self, clock: int, holder: str = "") -> int:
        """Choose, store and return the boot of this process.

        The boot is higher than every earlier boot of the same keys, even if the clock was set back.
        """
        with self._locked():
            known = self.holders = read_holders(self.folder)
            earlier = {self.saved.boot}
            # `recover` has found copies with the usual format, so a newer format number in the file is damage.
            with contextlib.suppress(NewerFormatError):
                earlier.add(self._boot_on_disk())
            # Drop boots that are far ahead of the clock, but only if `own` is not empty. If `own` is empty, all
            # boots are from an earlier version of protofleet, which did not store holders.
            if known.own:
                earlier = {boot for boot in earlier if boot <= clock + MOST_AHEAD}
                earlier.add(known.boot if same_record(known.own, holder) else 0)
                self.renewed = not same_record(known.own, holder)
            self.previous_boot = max(earlier)
            boot = max(clock, *(boot + 1 for boot in earlier))
            if boot < self.saved.boot:
                self._lower_boot_of_previous(boot)
            self._save_holders(replace(known, own=holder, boot=boot))
            self._save(replace(self.saved, boot=boot))
            self._own_boot = boot
        return boot

    def forget_epoch(self) -> None:
        """Forget the stored epoch."""
        with self._locked():
            self._save(replace(self.saved, epoch=0))

    def set_coordinator(self, coordinator: str) -> None:
        """Store the holder of the coordinator's keys; epochs that are stored from now on belong to this holder."""
        with self._locked():
            self._save_holders(replace(self.holders, coordinator=coordinator))

    def is_superseded(self, boot: int, mine: int) -> bool:
        """Return whether `boot` belongs to a later process of the same name; `mine` is the boot of this process.

        If `boot` belongs to a later process, store `boot`. Then the next boot of this device is higher than `boot`,
        even if the clock is behind.
        """
        with self._locked():
            # A later process that uses this folder has already written its boot to the disk.
            if boot > max(mine, self.saved.boot, self._boot_on_disk()):
                self._save_holders(replace(self.holders, boot=boot))
                self._save(replace(self.saved, boot=boot))
                self._own_boot = boot
        return boot > mine

    @property
    def last_round(self) -> int:
        """Return the last round of this run for which there is an update; 0 if there is no update."""
        return max((answer.round for answer in self.saved.answers), default=0)

    def begin(self, run: str, plan: str, epoch: int = 0) -> None:
        """Join a run, and remove the state of the earlier run."""
        if (self.saved.run, self.saved.plan) == (run, plan):
            return
        with self._locked():
            self._check_not_taken_over()
            self._save(StateFile(boot=self.saved.boot, run=run, plan=plan, epoch=epoch))
            self.disk.remove(self._files.previous)
            self._previous_half = self.previous_inputs = ""
            self._previous_residuals = set()
        self.store.sweep()
        self.store.keep(set())

    def half(self) -> Arrays | None:
        return self.store.open(bytes.fromhex(self.saved.half)) if self.saved.half else None

    def fix_inputs(self, number: int, listing: Arrays) -> None:
        """Store the list of samples for round `number`; call this before the training of the round.

        If the process is killed in this round, the next process continues with the same list.
        """
        name = self.store.put(listing).object.hex()
        with self._locked():
            self._check_not_taken_over()
            self._save(replace(self.saved, inputs=name, inputs_round=number))

    def answer_to(self, question: str) -> Answer | None:
        return next((a for a in self.saved.answers if a.question == question), None)

    def save_answer(
        self, answer: Answer, half: Arrays, epoch: int = 0, residuals: Sequence[Residuals] = (),
        is_reference: bool = False,
    ) -> None:  # fmt: skip
        """Save the state, the update, its residuals and the epoch of the task, all in one step.

        `is_reference` says that a later broadcast may be a delta from the broadcast of the task.
        """
        name = self.store.put(half).object.hex() if half else ""
        with self._locked():
            self._check_not_taken_over()
            before = self.saved
            answers = [a for a in before.answers if a.round == answer.round]
            references = {**before.references, answer.phase: answer.base} if is_reference else {}
            saved = replace(
                before, references=references, epoch=max(epoch, before.epoch), half=name, broadcast=answer.base,
                answers=[*answers, answer][-KEPT_ANSWERS:], lost=None, residuals=list(residuals),
            )  # fmt: skip
            self._save(saved, keep=True)
            self._previous_half, self.previous_inputs = before.half, before.inputs
            self._previous_residuals = objects_in(before.residuals)

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
        last = self.saved.answers[-1].object if self.saved.answers else ""
        known = [self.store.size(bytes.fromhex(name)) for name in (self.saved.half, last) if name]
        return 2 * max([self.store.size(base) if base else 0, *known])

    def keep_only(self, needed: set[bytes]) -> None:
        """Remove all objects except those of the present and the previous state, and those in `needed`."""
        kept = {self._previous_half, self.previous_inputs, *self._previous_residuals, *self._objects()}
        self.store.keep({bytes.fromhex(name) for name in kept if name} | needed)

    def _locked(self) -> AbstractContextManager[None]:
        """Lock the folder against other processes of the device and other threads of this process.

        For example, the loop may handle a message about another process while the worker saves an update.
        """
        return held(self.folder)

    def _save_holders(self, holders: Holders) -> None:
        if not (holders.own or holders.coordinator):
            return
        if holders != self.holders or not (self.folder / NAME).exists():
            write_holders(self.folder, self.disk, holders)
            self.holders = holders

    def _check_not_taken_over(self) -> None:
        """Raise TakenOverError if another process of this device has written its boot into device.json.

        Any boot in device.json that is not the boot of this process is from another process. The other boot may
        be lower, because boots start again when the device gets new keys.
        """
        if (boot := self._boot_on_disk()) not in (0, self._own_boot):
            raise TakenOverError(
                f"another process of this device has taken over {self.folder}, with boot number {boot}; this "
                f"process, with boot number {self._own_boot}, stops"
            )

    def _save(self, saved: StateFile, keep: bool = False) -> None:
        """Write the contents to the disk; if the disk accepts them, use the new contents from now on."""
        self._write(saved, keep)
        self.saved = saved

    def _boot_on_disk(self) -> int:
        """Return the boot in device.json; read the file only if another process has replaced it."""
        try:
            found = file_id(self._files.newest)
            if self._known is None or found != self._known[0]:
                self._known = (found, read_state_file(self._files.newest.read_bytes()).boot)
        except (FileNotFoundError, DamagedError):
            return 0
        return self._known[1]

    def _lower_boot_of_previous(self, boot: int) -> None:
        """Set the boot in the file of the previous state to at most `boot`.

        If this file had a higher boot than device.json, it would seem to be newer than device.json.
        """
        path = self._files.previous
        try:
            previous = read_state_file(path.read_bytes())
        except (FileNotFoundError, DamagedError, NewerFormatError):
            return
        self.disk.replace(path, encode_state_file(replace(previous, boot=min(previous.boot, boot))))

    def _objects(self) -> set[str]:
        return {
            self.saved.half,
            self.saved.broadcast,
            self.saved.inputs,
            *(a.object for a in self.saved.answers),
            *objects_in(self.saved.residuals),
            *self.saved.references.values(),
        }

    def _write(self, saved: StateFile, keep: bool = False) -> None:
        """Replace the file and its copies; if `keep` is true, keep the old file as the previous state."""
        files, text = self._files, encode_state_file(saved)
        with self.disk.new_file(files.newest, content=text) as fresh:
            self.disk.sync(fresh)
            if keep and files.newest.exists():
                self.disk.link(files.newest, files.previous)
            for copy in files.copies:
                copy.unlink(missing_ok=True)  # A missing copy is better than a copy with the earlier state.
            self.disk.rename(fresh, files.newest)
            self._known = (file_id(files.newest), saved.boot)
            self.disk.sync(self.folder)
        # The copies of device.json are needed only if device.json gets damaged. On a full disk, they may be missing.
        with contextlib.suppress(OSError):
            for copy in files.copies:
                write_whole(copy, text)
