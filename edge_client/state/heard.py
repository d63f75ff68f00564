"""Notes about the coordinator's messages, so that a later process does not take an old message as new.

A broker may retain a refusal, or the message that a run is over, and send it to each later process. The file
is not part of device.json, whose format older versions also read. If it is lost, old messages may count once
more.
"""

from __future__ import annotations

import json
import logging
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Final

from protofleet.edge_client.state.device import DeviceState
from protofleet.edge_client.state.file import CONTENT_ERRORS, checksum, read_checked
from protofleet.protocol.link.clocks import Clock, days
from protofleet.protocol.link.device import DeviceLink
from protofleet.protocol.security.holders import other_keys
from protofleet.protocol.settings.reader import decode
from protofleet.protocol.storage.disk import Disk, is_full
from protofleet.protocol.wire.names import COORDINATOR

NAME: Final = "heard.json"
# Size of the file, which is filled with spaces so that the next note fits into the same place.
BYTES: Final = 512

log = logging.getLogger("protofleet.device")


@dataclass(frozen=True, slots=True)
class LastHeard:
    epoch: int = 0  # epoch of the newest coordinator that was heard
    sequence: int = 0  # highest sequence number of its messages
    over: str = ""  # the run whose end was heard


class HeardFile:
    """The file with the notes about the coordinator's messages.

    `clock` has already shown the time in the file, so if it shows a much earlier time now, it is not trusted.
    If the device was `renewed` since then, the clock is trusted: an operator renews the device after setting
    back a clock that was ahead.
    """

    def __init__(self, folder: Path, disk: Disk, clock: Clock, renewed: bool = False) -> None:
        self._path, self._disk = folder / NAME, disk
        self._last_time = 0  # the newest time that was stored, by a clock that was trusted
        self.last = self._read()
        self.clock = clock if renewed else clock.after(self._last_time)

    def note_message(self, epoch: int, sequence: int, durable: bool) -> None:
        """Store the number of a message.

        If `durable` is set, the note is on the disk before the device acts upon the message. Otherwise a
        power cut may undo the note.
        """
        if (epoch, sequence) > (self.last.epoch, self.last.sequence):
            self._save(replace(self.last, epoch=epoch, sequence=sequence), durable)

    def note_time(self) -> None:
        """Store the present time, before something is stored that a clock behind this time must not judge."""
        self._save(self.last, False)

    def forget(self) -> None:
        """Forget the epoch and the sequence number."""
        self._save(LastHeard(over=self.last.over), True)

    def note_run_end(self, run: str) -> None:
        if run != self.last.over:
            self._save(replace(self.last, over=run), True)

    def _save(self, last: LastHeard, durable: bool) -> None:
        self.last = last
        if self.clock.is_believable:
            self._last_time = int(self.clock.now())
        table, seen = asdict(last), {"seal": checksum(self._last_time), "time": self._last_time}
        text = json.dumps({"seal": checksum(table), "heard": table, "seen": seen})
        data = text.encode().ljust(BYTES)
        try:
            if durable or not self._has_taken_the_place(data):
                self._disk.replace(self._path, data, durable=durable)
        except OSError as error:  # it is only needed at the next start of the device
            if not is_full(error):
                raise

    def _has_taken_the_place(self, data: bytes) -> bool:
        """Overwrite the file in place, and return whether that was possible.

        This happens after each receipt, and a new file, with a name and a lock, would be most of its cost.
        """
        try:
            if self._path.stat().st_size != len(data):
                return False  # an earlier version wrote it
            self._disk.overwrite(self._path, data)
        except FileNotFoundError:
            return False
        return True

    def _read(self) -> LastHeard:
        try:
            table = json.loads(self._path.read_bytes())
            last = decode(LastHeard, read_checked(table, "heard"))
            if min(last.epoch, last.sequence) < 0:
                raise ValueError(f"epoch is {last.epoch}, sequence {last.sequence}")
            self._last_time = _read_time(table.get("seen"))
        except FileNotFoundError:
            return LastHeard()
        except CONTENT_ERRORS as error:
            log.warning(
                "%s is damaged (%.80s); an old message of the coordinator may count once more",
                self._path,
                error,
            )
            return LastHeard()
        return last


def _read_time(seen: object) -> int:
    """Return the stored time; 0 if the file is damaged or of an earlier version.

    With 0 the clock is trusted.
    """
    match seen:
        case {"seal": str() as seal, "time": int() as time} if seal == checksum(time):
            return time
    return 0


def open_heard_file(state: DeviceState, link: DeviceLink) -> HeardFile:
    """Open the file, and give its notes and a clock that knows the last time seen to the link."""
    wall = link.clock.after(state.previous_boot)
    heard = HeardFile(state.folder, state.disk, wall, state.renewed)
    link.clock = heard.clock
    coordinator = link.keyring.get(COORDINATOR)
    holder = coordinator.holder if coordinator else ""
    link.epoch = restore_epoch(state, heard, link.clock, holder)
    last = heard.last
    link.remember({COORDINATOR: (last.epoch, last.sequence, holder)} if last.epoch else {})
    return heard


def restore_epoch(state: DeviceState, heard: HeardFile, clock: Clock, coordinator: str) -> int:
    """Return the epoch below which messages are rejected.

    It is the highest that was heard, or 0 if that no longer counts.
    """
    epoch, known = max(state.saved.epoch, heard.last.epoch), state.holders.coordinator
    why = ""
    if epoch and other_keys(known, coordinator):
        why = "the coordinator has other keys now"
    elif seconds := clock.ahead(epoch):
        why = f"it lies {days(seconds)} ahead of this clock, so the clock of a coordinator was ahead once"
    if why:
        _forget(state, heard, epoch, why)
    state.set_coordinator(coordinator)
    return 0 if why else epoch


def forget_higher_epoch(state: DeviceState, heard: HeardFile, clock: Clock, epoch: int) -> None:
    """Forget a stored epoch that is higher than a heard one.

    The link has found that the stored one is far ahead of the clock.
    """
    stored = max(state.saved.epoch, heard.last.epoch)
    if epoch < stored:
        ahead = days(clock.ahead(stored))
        why = f"it lies {ahead} ahead of this clock, which has been set, and {epoch} has been heard"
        _forget(state, heard, stored, why)


def _forget(state: DeviceState, heard: HeardFile, epoch: int, why: str) -> None:
    log.warning("the epoch %d that was heard last is forgotten: %s", epoch, why)
    heard.forget()
    state.forget_epoch()
