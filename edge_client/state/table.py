"""The file device.json on the disk, with its copies: it is read at the start, and replaced in one step.

All runs of a device are in this one file. So one rename is the one step with which an update of any run counts.
"""

from __future__ import annotations

import contextlib
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import TypeAlias

from protofleet.edge_client.state.file import RunEntry, StateFile, encode_state_file, read_state_file
from protofleet.edge_client.state.holders import NAME, Holders, read_holders, write_holders
from protofleet.edge_client.state.recovery import StateFiles, recover
from protofleet.protocol.link.clocks import MOST_AHEAD
from protofleet.protocol.privacy.ledger import PrivateRelease
from protofleet.protocol.security.holders import same_record
from protofleet.protocol.storage.disk import Disk, write_whole
from protofleet.protocol.storage.folder_lock import held
from protofleet.protocol.storage.store import DamagedError, NewerFormatError, ObjectStore
from protofleet.protocol.user_error import UserError

FileId: TypeAlias = tuple[int, int, int]


def file_id(path: Path) -> FileId:
    """Return numbers that identify the file at this path; they change when the file is replaced."""
    found = path.stat()
    return found.st_ino, found.st_mtime_ns, found.st_size


class TakenOverError(UserError, RuntimeError):
    """The error of a process after a later process of the device has taken over the folder.

    The results of the earlier process are dropped.
    """


class StateTable:
    """The stored state of all runs of a device, and the boots of the device."""

    def __init__(self, folder: Path, disk: Disk) -> None:
        self.disk, self.folder = disk, folder
        self._files = StateFiles(folder)
        self.store = ObjectStore(folder / "objects", disk=disk)
        recovered = recover(self._files, self.store)
        self.saved, self.fallbacks = recovered.saved, int(recovered.fell_back)
        self.previous: list[RunEntry] = recovered.previous  # the entries before the last update
        # The id of device.json on the disk, and the boot in this file.
        self._known: tuple[FileId, int] | None = None
        self._own_boot = self.saved.boot  # If device.json has another boot, another process has taken over.
        self.holders = read_holders(folder)
        self.renewed = False  # whether the device has received a new record for its keys since the last start
        # Boot of the last start. A boot is the time of the clock at the start. If the clock now shows an earlier
        # time, the clock is behind.
        self.previous_boot = 0
        self.several = self.saved.several  # whether the coordinator leads several runs
        self.most_runs = 1  # largest number of runs in which the device takes part at the same time
        # Run -> the run whose place it takes when it begins, and whether it begins with the half of that run.
        self._replaces: dict[str, tuple[str, bool]] = {}

    def boot(self, clock: int, holder: str = "") -> int:
        """Choose, store and return the boot of this process.

        The boot is higher than every earlier boot of the same keys, even if the clock was set back.
        """
        with self.locked():
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
            self.save(replace(self.saved, boot=boot))
            self._own_boot = boot
        return boot

    def forget_epoch(self) -> None:
        """Forget the stored epoch."""
        with self.locked():
            runs = [replace(entry, epoch=0) for entry in self.saved.runs]
            self.save(replace(self.saved, epoch=0, runs=runs))

    def set_coordinator(self, coordinator: str) -> None:
        """Store the holder of the coordinator's keys; epochs that are stored from now on belong to this holder."""
        with self.locked():
            self._save_holders(replace(self.holders, coordinator=coordinator))

    def is_superseded(self, boot: int, mine: int) -> bool:
        """Return whether `boot` belongs to a later process of the same name; `mine` is the boot of this process.

        If `boot` belongs to a later process, store `boot`. Then the next boot of this device is higher than `boot`,
        even if the clock is behind.
        """
        with self.locked():
            # A later process that uses this folder has already written its boot to the disk.
            if boot > max(mine, self.saved.boot, self._boot_on_disk()):
                self._save_holders(replace(self.holders, boot=boot))
                self.save(replace(self.saved, boot=boot))
                self._own_boot = boot
        return boot > mine

    def begin(self, entry: RunEntry) -> None:
        """Add the entry of a run that begins.

        If the coordinator leads only one run, the new entry replaces all other entries, and their objects are
        removed. Otherwise, it replaces an entry of the same run. It also replaces entries of runs that are over, if
        the device has no other place for it, and the entry of the run whose place it takes.
        """
        with self.locked():
            self.check_not_taken_over()
            entry, gone = self._in_place_of(entry)
            others = [one for one in self.saved.runs if one.run not in gone] if self.several else []
            while len(others) >= self.most_runs and any(one.over for one in others):
                others.remove(next(one for one in others if one.over))
            epoch = max(self.saved.epoch, entry.epoch) if self.several else entry.epoch
            runs = [*others, entry]
            self.save(StateFile(self.saved.boot, epoch, self.several, runs, self.saved.releases))
            self._replaces.pop(entry.run, None)
            if others:
                return
            self.disk.remove(self._files.previous)
            self.previous = []
        self.store.sweep()
        self.store.keep({bytes.fromhex(name) for name in entry.objects()})

    def replace(self, old: str, new: str, keeps_half: bool) -> None:
        """Let the run `new` take the place of the run `old` when it begins, in the same write of device.json."""
        self._replaces = {new: (old, keeps_half)}

    def _in_place_of(self, entry: RunEntry) -> tuple[RunEntry, set[str]]:
        """Return the entry of a run that begins, with the half that it keeps, and the runs whose entries it replaces.

        Only the half goes over: no update of the earlier run answers a question of this run.
        """
        old, keeps_half = self._replaces.get(entry.run, ("", False))
        before = self.saved.entry(old) if old else RunEntry()
        if keeps_half and before.plan == entry.plan and not before.lost:
            entry = replace(entry, half=before.half)
        return entry, {entry.run, old} - {""}

    def replace_entry(self, entry: RunEntry) -> None:
        with self.locked():
            self.check_not_taken_over()
            self.save(self.saved.with_entry(entry))

    def save_answer(self, entry: RunEntry, release: PrivateRelease | None = None) -> None:
        """Save the entry of a run with a new update, and keep the state before the update.

        `release` is the line of the ledger for an update with noise. The caller has locked the folder.
        """
        before = self.saved.runs
        releases = [*self.saved.releases, release] if release else self.saved.releases
        saved = replace(
            self.saved.with_entry(entry), epoch=max(entry.epoch, self.saved.epoch), releases=releases
        )
        self.save(saved, keep=True)
        self.previous = before

    def objects(self) -> set[str]:
        """Return the names of all objects that the present and the previous state need."""
        return {
            *(name for entry in self.saved.runs for name in entry.objects()),
            *(name for entry in self.previous for name in entry.objects_for_return()),
        }

    def locked(self) -> AbstractContextManager[None]:
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

    def check_not_taken_over(self) -> None:
        """Raise TakenOverError if another process of this device has written its boot into device.json.

        Any boot in device.json that is not the boot of this process is from another process. The other boot may
        be lower, because boots start again when the device gets new keys.
        """
        if (boot := self._boot_on_disk()) not in (0, self._own_boot):
            raise TakenOverError(
                f"another process of this device has taken over {self.folder}, with boot number {boot}; this "
                f"process, with boot number {self._own_boot}, stops"
            )

    def save(self, saved: StateFile, keep: bool = False) -> None:
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
