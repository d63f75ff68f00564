"""Notes about the coordinator's messages, so that a later process recognizes old messages.

A broker may retain a refusal or an end-of-run message. Then the broker sends this old message to each later process
of the device. The notes are not in device.json, because older versions of protofleet read device.json and do
not know the notes. If the notes are lost, an old message may take effect once more.
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
# Size of the file. Spaces fill the file to this size, so that the next notes can overwrite the file in place.
BYTES: Final = 512

log = logging.getLogger("protofleet.device")


@dataclass(frozen=True, slots=True)
class LastHeard:
    epoch: int = 0  # highest epoch of the received messages
    sequence: int = 0  # highest sequence number of the messages with this epoch
    over: str = ""  # the last run whose end the coordinator has reported


class HeardFile:
    """The file with the notes about the coordinator's messages.

    The file also has the newest time that the clock has shown. If `clock` shows a much earlier time now, the clock is
    not trusted. But if the device has got a new record since its last start (`renewed`), the clock is trusted: an
    operator who sets back a wrong clock also renews the record of the device.
    """

    def __init__(self, folder: Path, disk: Disk, clock: Clock, renewed: bool = False) -> None:
        self._path, self._disk = folder / NAME, disk
        self._last_time = 0  # the newest time in the file, which a trusted clock has shown
        self.last = self._read()
        self.clock = clock if renewed else clock.after(self._last_time)

    def note_message(self, epoch: int, sequence: int, durable: bool) -> None:
        """Store the epoch and the sequence number of a message.

        If `durable` is true, the note is synced to the disk at once, before the device acts on the message. Otherwise
        a power cut may lose the note.
        """
        if (epoch, sequence) > (self.last.epoch, self.last.sequence):
            self._save(replace(self.last, epoch=epoch, sequence=sequence), durable)

    def note_time(self) -> None:
        """Store the present time, so that a clock that is behind this time is not trusted later."""
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
        except OSError as error:
            # Only the next process needs the notes, so a full disk must not end this process.
            if not is_full(error):
                raise

    def _has_taken_the_place(self, data: bytes) -> bool:
        """Overwrite the file in place, and return whether that was possible.

        The notes are saved after each receipt. A new file each time would take much longer.
        """
        try:
            if self._path.stat().st_size != len(data):
                return False  # An earlier version of protofleet has written the file with another size.
            self._disk.overwrite(self._path, data)
        except FileNotFoundError:
            return False
        return True

    def _read(self) -> LastHeard:
        try:
            table = json.loads(self._path.read_bytes())
            last = decode(LastHeard, read_checked(table, "heard"))
            if min(last.epoch, last.sequence) < 0:
                raise ValueError(
                    f"epoch is {last.epoch}, and sequence is {last.sequence}; both must be 0 or more"
                )
            self._last_time = _read_time(table.get("seen"))
        except FileNotFoundError:
            return LastHeard()
        except CONTENT_ERRORS as error:
            log.warning(
                "%s is damaged (%.80s); an old message of the coordinator may take effect once more",
                self._path,
                error,
            )
            return LastHeard()
        return last


def _read_time(seen: object) -> int:
    """Return the stored time; 0 if the time is damaged or missing. A file of an earlier version has no time.

    If the result is 0, every clock is trusted.
    """
    match seen:
        case {"seal": str() as seal, "time": int() as time} if seal == checksum(time):
            return time
    return 0


def open_heard_file(state: DeviceState, link: DeviceLink) -> HeardFile:
    """Open the file with the notes, and give the notes to the link.

    The link also gets a clock that is compared with the stored time.
    """
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

    This epoch is the highest received epoch. It is 0 if the coordinator has other keys now, or if the highest
    received epoch is too far ahead of the clock.
    """
    epoch, known = max(state.file.epoch, heard.last.epoch), state.holders.coordinator
    why = ""
    if epoch and other_keys(known, coordinator):
        why = "the coordinator has other keys now"
    elif seconds := clock.ahead(epoch):
        why = f"it is {days(seconds)} ahead of this clock, so the clock of a coordinator was ahead once"
    if why:
        _forget(state, heard, epoch, why)
    state.set_coordinator(coordinator)
    return 0 if why else epoch


def forget_higher_epoch(state: DeviceState, heard: HeardFile, clock: Clock, epoch: int) -> None:
    """Forget the stored epoch if it is higher than the epoch of an accepted message.

    The link has accepted the message because the stored epoch is far ahead of the clock.
    """
    stored = max(state.file.epoch, heard.last.epoch)
    if epoch < stored:
        ahead = days(clock.ahead(stored))
        why = f"it is {ahead} ahead of this clock, which was corrected, and epoch {epoch} has been received"
        _forget(state, heard, stored, why)


def _forget(state: DeviceState, heard: HeardFile, epoch: int, why: str) -> None:
    log.warning("the last known epoch, %d, is forgotten: %s", epoch, why)
    heard.forget()
    state.forget_epoch()
