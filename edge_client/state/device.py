"""The device's data that survive a reboot: the half's state and the last answers, always consistent.

One JSON file names the objects. A training counts when that file has been replaced. The file and the state
from before the last training are kept as well. If something is damaged, the device falls back to them, and
the last question gets the same answer again.
"""

from __future__ import annotations

import contextlib
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
from protofleet.protocol.link.clocks import MOST_AHEAD
from protofleet.protocol.security.holders import same_record
from protofleet.protocol.storage.disk import Disk, write_whole
from protofleet.protocol.storage.folder_lock import held
from protofleet.protocol.storage.store import DamagedError, NewerFormatError, ObjectStore
from protofleet.protocol.wire.messages import Arrays

FileId: TypeAlias = tuple[int, int, int]


def file_id(path: Path) -> FileId:
    """Return numbers that change when another file takes the place of this one."""
    found = path.stat()
    return found.st_ino, found.st_mtime_ns, found.st_size


class TakenOverError(RuntimeError):
    """An error for a process whose folder a later process of this device uses: its results are dropped."""


class DeviceState:
    def __init__(self, folder: Path, durable: bool = True, disk: Disk | None = None) -> None:
        self.disk = disk or Disk(durable)
        self.folder = folder
        self._files = StateFiles(folder)
        self.store = ObjectStore(folder / "objects", disk=self.disk)
        recovered = recover(self._files, self.store)
        self.saved, self.fallbacks = recovered.saved, int(recovered.fell_back)
        self._previous_half = recovered.previous_half  # the half of the generation before this one
        self.previous_inputs = recovered.previous_inputs  # the inputs of that generation
        self._known: tuple[FileId, int] | None = None  # id of the newest file, and the boot in it
        self._own_boot = self.saved.boot  # another boot on the disk belongs to a process that has taken over
        self.holders = read_holders(folder)
        self.renewed = False  # whether its keys have a new record since the last start
        self.previous_boot = 0  # the boot before this one: a time that this clock has shown

    def boot(self, clock: int, holder: str = "") -> int:
        """Return the number of this start.

        It is above every earlier boot of the same holder, even if the clock was set back.
        """
        with self._locked():
            known = self.holders = read_holders(self.folder)
            earlier = {self.saved.boot}
            # If this error is raised here, the copies of the file have just shown that its format number is
            # damaged.
            with contextlib.suppress(NewerFormatError):
                earlier.add(self._boot_on_disk())
            if known.own:  # else the numbers come from a version without this check
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
        """Store the holder of the epochs that are stored from now on."""
        with self._locked():
            self._save_holders(replace(self.holders, coordinator=coordinator))

    def is_superseded(self, boot: int, mine: int) -> bool:
        """Return whether a later process has this name.

        If so, the next boot will be above its boot, whatever the clock shows.
        """
        with self._locked():
            # If a later process of this folder has written the boot itself, it is not raised.
            if boot > max(mine, self.saved.boot, self._boot_on_disk()):
                self._save_holders(replace(self.holders, boot=boot))
                self._save(replace(self.saved, boot=boot))
                self._own_boot = boot
        return boot > mine

    @property
    def last_round(self) -> int:
        """Return the last round that was answered in this run; 0 if there is none."""
        return max((answer.round for answer in self.saved.answers), default=0)

    def begin(self, run: str, plan: str, epoch: int = 0) -> None:
        """Join a run, and remove the state of the run before."""
        if (self.saved.run, self.saved.plan) == (run, plan):
            return
        with self._locked():
            self._check_not_taken_over()
            self._save(StateFile(boot=self.saved.boot, run=run, plan=plan, epoch=epoch))
            self.disk.remove(self._files.previous)
            self._previous_half = self.previous_inputs = ""
        self.store.sweep()
        self.store.keep(set())

    def half(self) -> Arrays | None:
        return self.store.open(bytes.fromhex(self.saved.half)) if self.saved.half else None

    def fix_inputs(self, number: int, listing: Arrays) -> None:
        """Store the list that round `number` learns from, before it does.

        A process that is killed in this round continues with the same list.
        """
        name = self.store.put(listing).object.hex()
        with self._locked():
            self._check_not_taken_over()
            self._save(replace(self.saved, inputs=name, inputs_round=number))

    def answer_to(self, question: str) -> Answer | None:
        return next((a for a in self.saved.answers if a.question == question), None)

    def save_answer(self, answer: Answer, half: Arrays, epoch: int = 0) -> None:
        """Save the state, the answer and the epoch of the question, which become durable together."""
        name = self.store.put(half).object.hex() if half else ""
        with self._locked():
            self._check_not_taken_over()
            before = self.saved
            answers = [a for a in before.answers if a.round == answer.round]
            saved = replace(
                before, epoch=max(epoch, before.epoch), half=name, broadcast=answer.base,
                answers=[*answers, answer][-KEPT_ANSWERS:], lost=None,
            )  # fmt: skip
            self._save(saved, keep=True)
            self._previous_half, self.previous_inputs = before.half, before.inputs

    def cannot_answer(self, question: str) -> str:
        """Return why a question cannot be answered, or "".

        A question cannot be answered if an earlier answer is lost.
        """
        lost = self.saved.lost
        if lost is None or lost.question == question:
            return ""
        lost_message = (
            f"the answer to round {lost.round} {lost.phase} is lost, and so is the broadcast it was made from"
        )
        return f"{lost_message}; {recovery_advice(self.folder)}"

    def needed_bytes(self, base: bytes) -> int:
        """Estimate the bytes on the disk of the answer to this broadcast and of the state after it."""
        last = self.saved.answers[-1].object if self.saved.answers else ""
        known = [self.store.size(bytes.fromhex(name)) for name in (self.saved.half, last) if name]
        return 2 * max([self.store.size(base) if base else 0, *known])

    def keep_only(self, needed: set[bytes]) -> None:
        """Remove all objects but those of the two generations and those that are still needed."""
        kept = {self._previous_half, self.previous_inputs, *self._objects()}
        self.store.keep({bytes.fromhex(name) for name in kept if name} | needed)

    def _locked(self) -> AbstractContextManager[None]:
        """Lock the folder, so that its processes and this process's threads take turns.

        The loop may get a message about another process of this device while the worker saves an answer.
        """
        return held(self.folder)

    def _save_holders(self, holders: Holders) -> None:
        if not (holders.own or holders.coordinator):
            return
        if holders != self.holders or not (self.folder / NAME).exists():
            write_holders(self.folder, self.disk, holders)
            self.holders = holders

    def _check_not_taken_over(self) -> None:
        """Raise TakenOverError if another process of this device has written its boot.

        The boots are compared for equality only: with new keys they start again, so the other process may
        have a lower one.
        """
        if (boot := self._boot_on_disk()) not in (0, self._own_boot):
            raise TakenOverError(
                f"another process of this device has taken over {self.folder}, with boot number {boot}; this "
                f"one, {self._own_boot}, stops"
            )

    def _save(self, saved: StateFile, keep: bool = False) -> None:
        """Write the contents to the disk, and only then use them.

        Contents that could not be written do not count.
        """
        self._write(saved, keep)
        self.saved = saved

    def _boot_on_disk(self) -> int:
        """Return the boot in the file, which is mostly the file that this process has written itself."""
        try:
            found = file_id(self._files.newest)
            if self._known is None or found != self._known[0]:
                self._known = (found, read_state_file(self._files.newest.read_bytes()).boot)
        except (FileNotFoundError, DamagedError):
            return 0
        return self._known[1]

    def _lower_boot_of_previous(self, boot: int) -> None:
        """Lower the boot of the previous generation as well.

        With a higher boot it would look newer than the newest file.
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
        }

    def _write(self, saved: StateFile, keep: bool = False) -> None:
        """Replace the file and its copies; if `keep` is set, the old file becomes the previous generation."""
        files, text = self._files, encode_state_file(saved)
        with self.disk.new_file(files.newest, content=text) as fresh:
            self.disk.sync(fresh)
            if keep and files.newest.exists():
                self.disk.link(files.newest, files.previous)
            for copy in files.copies:
                copy.unlink(missing_ok=True)  # a missing copy is better than one of another generation
            self.disk.rename(fresh, files.newest)
            self._known = (file_id(files.newest), saved.boot)
            self.disk.sync(self.folder)
        # Copies help only if the file gets damaged, so a full disk may go without them.
        with contextlib.suppress(OSError):
            for copy in files.copies:
                write_whole(copy, text)
