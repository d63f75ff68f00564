"""What has been heard of the coordinator, so that a later start of this device takes no old message for a new one.

A broker may keep a refusal, or the message that a run is over, and send it again to each later start. The file stands
beside device.json, whose form older versions read too. Where it is lost, old messages may count once more.
"""

from __future__ import annotations

import json
import logging
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Final

from protofleet.edge_client.state.device import DeviceState
from protofleet.edge_client.state.file import checksum
from protofleet.protocol.link.clocks import Clock, days
from protofleet.protocol.link.device import DeviceLink
from protofleet.protocol.security.holders import other_keys
from protofleet.protocol.settings.reader import decode
from protofleet.protocol.storage.disk import Disk, is_full
from protofleet.protocol.wire.names import COORDINATOR

NAME: Final = "heard.json"

log = logging.getLogger("protofleet.device")


@dataclass(frozen=True, slots=True)
class LastHeard:
    epoch: int = 0  # of the newest coordinator that was heard
    sequence: int = 0  # the highest of its messages
    over: str = ""  # the run whose end was heard


class HeardFile:
    """`clock` is what judges from now on: it has said the time before that stands in the file.

    Not where this device was `renewed` since: so does who has set a clock that was ahead.
    """

    def __init__(self, folder: Path, disk: Disk, clock: Clock, renewed: bool = False) -> None:
        self._path, self._disk = folder / NAME, disk
        self._seen = 0  # the newest time that was written down, and not by a clock that was behind it
        self.last = self._read()
        self.clock = clock if renewed else clock.after(self._seen)

    def note_message(self, epoch: int, sequence: int, durable: bool) -> None:
        """`durable`: before something is done about it; else a power cut may take it back."""
        if (epoch, sequence) > (self.last.epoch, self.last.sequence):
            self._save(replace(self.last, epoch=epoch, sequence=sequence), durable)

    def note_time(self) -> None:
        """Something is about to be written down that a clock behind this time shall not judge."""
        self._save(self.last, False)

    def forget(self) -> None:
        """What was heard binds nobody any more."""
        self._save(LastHeard(over=self.last.over), True)

    def note_run_end(self, run: str) -> None:
        if run != self.last.over:
            self._save(replace(self.last, over=run), True)

    def _save(self, last: LastHeard, durable: bool) -> None:
        self.last = last
        if self.clock.is_believable:
            self._seen = int(self.clock.now())
        table, seen = asdict(last), {"seal": checksum(self._seen), "time": self._seen}
        text = json.dumps({"seal": checksum(table), "heard": table, "seen": seen})
        try:
            self._disk.replace(self._path, text.encode(), durable=durable)
        except OSError as error:  # the device can do without, until it is started again
            if not is_full(error):
                raise

    def _read(self) -> LastHeard:
        try:
            table = json.loads(self._path.read_bytes())
            last = decode(LastHeard, table["heard"])
            if table["seal"] != checksum(table["heard"]) or min(last.epoch, last.sequence) < 0:
                raise ValueError("it is not what was written")
            self._seen = _time_in(table.get("seen"))
        except FileNotFoundError:
            return LastHeard()
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            log.warning(
                "%s is damaged (%.80s); an old message of the coordinator may count once more",
                self._path,
                error,
            )
            return LastHeard()
        return last


def _time_in(seen: object) -> int:
    """Nothing in a file of a version before this one, or where it is damaged: the clock is believed then."""
    match seen:
        case {"seal": str() as seal, "time": int() as time} if seal == checksum(time):
            return time
    return 0


def open_heard_file(state: DeviceState, link: DeviceLink) -> HeardFile:
    """The link goes on from what an earlier start has heard, and judges by a clock that knows what time it was."""
    wall = link.clock.after(state.started_last)
    heard = HeardFile(state.folder, state.disk, wall, state.renewed)
    link.clock = heard.clock
    coordinator = link.keyring.get(COORDINATOR)
    holder = coordinator.holder if coordinator else ""
    link.epoch = restore_epoch(state, heard, link.clock, holder)
    last = heard.last
    link.remember({COORDINATOR: (last.epoch, last.sequence, holder)} if last.epoch else {})
    return heard


def restore_epoch(state: DeviceState, heard: HeardFile, clock: Clock, coordinator: str) -> int:
    """The epoch below which no coordinator is heard: the highest that was, unless it binds nobody any more."""
    epoch, known = max(state.saved.epoch, heard.last.epoch), state.holders.coordinator
    why = ""
    if epoch and other_keys(known, coordinator):
        why = "the coordinator has other keys now"
    elif far := clock.ahead(epoch):
        why = f"it lies {days(far)} ahead of this clock, so that of a coordinator was ahead once"
    if why:
        _forget(state, heard, epoch, why)
    state.belongs_to_coordinator(coordinator)
    return 0 if why else epoch


def forget_higher_epoch(state: DeviceState, heard: HeardFile, clock: Clock, epoch: int) -> None:
    """Of an epoch that is heard: where a higher one is held, the link has found that far ahead of the clock."""
    held = max(state.saved.epoch, heard.last.epoch)
    if epoch < held:
        far = days(clock.ahead(held))
        _forget(
            state,
            heard,
            held,
            f"it lies {far} ahead of this clock, which has been set, and {epoch} is there",
        )


def _forget(state: DeviceState, heard: HeardFile, epoch: int, why: str) -> None:
    log.warning("the epoch %d that was heard last is forgotten: %s", epoch, why)
    heard.forget()
    state.forget_epoch()
