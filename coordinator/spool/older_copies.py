"""The detection of older copies: the folder of this coordinator, or of a device, may be an older copy.

A run must not go on from an older copy without a warning, because the training after the copy is lost and the
results differ.

The coordinator's folder is an older copy if rounds.jsonl has a later round, or if devices have sent updates for
a later round. In this case, the operator must decide how to go on. A device's folder is an older copy if the
hello of the device names an earlier update than the last update that the coordinator has accepted from the device.
The device takes part without the last update.

Messages that point to an older copy are counted for each device. A few devices are not enough: the coordinator's
folder counts as an older copy only if more than half of all enrolled devices have sent updates for a later round.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Final

from protofleet.coordinator.spool.spool import AskedBroadcast, Spool
from protofleet.protocol.link.rate_limit import TokenBucket
from protofleet.protocol.security.keyfiles import keep_to_ourselves
from protofleet.protocol.settings.reader import SettingsError
from protofleet.protocol.storage.store import DamagedError
from protofleet.protocol.wire.messages import Hello

log = logging.getLogger("protofleet.coordinator")

# Seconds in which devices can report a later round. This is enough time for two hellos of each device. So the
# reports of many devices arrive, and a single lying device has little effect.
LISTEN_SECONDS: Final = 30.0
# Seconds between two log lines about one device; the first few lines are logged at once.
LOG_SECONDS: Final = 3600.0
LOG_BURST: Final = 5.0
# The party whose folder is an older copy: this coordinator, or a device.
OURS, ITS_OWN = "coordinator", "device"


class OlderCopyError(DamagedError):
    """The error raised when other data of the run are newer than this folder."""


def require_newest(spool: Spool, written: int) -> None:
    """Raise OlderCopyError if rounds.jsonl has a line of a round that has not begun in this folder.

    The line of a round is written after the round has begun in the newest folder. So such a line shows that
    this folder is an older copy.
    """
    if written > spool.newest_round:
        raise OlderCopyError(describe(spool, f"rounds.jsonl has round {written}", written))


def describe(spool: Spool, sign: str, written: int) -> str:
    at, onward = "knows of no round", ""
    if spool.newest_round:
        at = f"stands at round {spool.newest_round}"
    if spool.newest_round and written < spool.final_round:
        onward = (
            f"go on from it with `protofleet go-on {spool.folder.parent} --from-round {written + 1}`, where what was "
            "learned since is lost; or "
        )
    return (
        f"{spool.folder} is an older copy: it {at}, and {sign}. Put the newest copy back; or {onward}begin the run "
        "anew under another name"
    )


def go_on_from(folder: Path, round: int) -> None:
    """Let the run go on from an older copy of the coordinator's folder, in a round that has no updates yet."""
    if not (folder / "spool.sqlite").exists():
        raise SettingsError(
            f"{folder} holds no run: there is no spool.sqlite in it; give the run's folder, such as runs/demo"
        )
    keep_to_ourselves(folder)
    spool = Spool(folder)
    try:
        # Check the round first, because `take_over` stops a coordinator that uses the folder now.
        spool.require_later_round(round)
        spool.index.take_over()
        spool.skip_to(round)
    except ValueError as error:
        raise SettingsError(str(error)) from None
    finally:
        spool.close()


class OlderCopyDetector:
    """A detector of older copies. It uses the objects that devices hold and the updates that devices have sent."""

    def __init__(self, spool: Spool, patience: float, enrolled: Callable[[], int]) -> None:
        """Set up the detector; `enrolled` returns the number of enrolled devices.

        `enrolled` takes a while, because it reads the records of all devices. So it is called rarely.
        """
        self._spool, self._listen, self._enrolled = spool, min(patience, LISTEN_SECONDS), enrolled
        # (device, owner of the folder) -> number of messages that point to an older copy of the folder.
        self.counted: Counter[tuple[str, str]] = Counter()
        # Limits of the number of log lines, with the same keys as `counted`.
        self._log_limits: dict[tuple[str, str], TokenBucket] = {}
        # Devices that hold a broadcast that was never sent from this folder.
        self._hold_unknown: set[str] = set()
        # Device -> round of its update, if this round has not begun according to the folder.
        self._ahead: dict[str, int] = {}
        self._judged_boots: dict[str, int] = {}  # Device -> its boot that was checked last.
        self._listening_since = float("inf")
        self.wake_at = float("inf")

    def start_listening(self, now: float) -> None:
        self._listening_since = now
        if self._ahead:
            self.wake_at = now + self._listen

    def answered(self, device: str, round: int, now: float) -> None:
        """Record an update for a round. According to this folder, the round has not begun."""
        if round <= self._spool.newest_round or self._ahead.get(device, 0) >= round:
            return
        self._ahead[device] = round
        if self._count_and_may_log(device, OURS, now):
            log.error("%s has answered round %d, but the newest round in %s is %d", device, round, self._spool.folder,
                      self._spool.newest_round)  # fmt: skip
        self.wake_at = max(now, self._listening_since + self._listen)

    def holds_unknown(self, device: str) -> bool:
        """Return whether the device holds a broadcast that was never sent from this folder."""
        return device in self._hold_unknown

    def verdict(self, present: Collection[str], now: float) -> str:
        """Return why this coordinator must stop; "" if it can go on.

        The coordinator must stop if more than half of the present devices and more than half of the enrolled
        devices know a later round. So a single device cannot end the run while all others are absent.
        """
        self._warn_if_most_know_more(present)
        if now < self.wake_at:
            return ""
        self.wake_at = float("inf")
        ahead = {device: round for device, round in self._ahead.items() if round > self._spool.newest_round}
        who = sorted(ahead.keys() & set(present))
        if not _are_most(who, len(present)) or not _are_most(who, enrolled := self._enrolled()):
            return ""
        written = max(ahead[device] for device in who)
        return describe(
            self._spool,
            f"{len(who)} of {enrolled} devices ({_first_three(who)}) have answered round {written}",
            written,
        )

    def _warn_if_most_know_more(self, present: Collection[str]) -> None:
        """Warn once if most of the present devices know more about the run than this folder.

        This is only a warning, because such devices may hold objects of another run, and devices of an
        earlier version do not name the rounds of their updates.
        """
        ahead = {device for device, round in self._ahead.items() if round > self._spool.newest_round}
        who = sorted((ahead | self._hold_unknown) & set(present))
        if self._spool.fallbacks["folder"] or not _are_most(who, len(present)):
            return
        if len(who) < 2 and self._enrolled() > 1:
            return
        self._spool.fallbacks["folder"] = 1
        log.error(
            "%d of %d devices (%s) know more of this run than %s. If that folder is an older copy, no round "
            "can end, because a device sends no updates for rounds before its last round. In this case, put the "
            "newest copy back; or see `protofleet go-on --help`; or begin the run anew under another name",
            len(who), len(present), _first_three(who), self._spool.folder,
        )  # fmt: skip

    def _count_and_may_log(self, device: str, whose: str, now: float) -> bool:
        """Count a message that points to an older copy, and return whether it may be logged.

        The number of log lines is limited, because one device must not fill the log.
        """
        self.counted[device, whose] += 1
        return self._log_limits.setdefault((device, whose), TokenBucket(1 / LOG_SECONDS, LOG_BURST)).take(now)

    def _note_unknown_broadcast(self, device: str, now: float) -> None:
        if device in self._hold_unknown or not self._spool.knows_all_broadcasts:
            return
        self._hold_unknown.add(device)
        if self._count_and_may_log(device, OURS, now):
            log.error("%s holds a broadcast that is unknown to %s", device, self._spool.folder)

    def hello_received(self, hello: Hello, boot: int, base: bytes, now: float) -> None:
        """Check whether a device that was started again still has the state of its last accepted update."""
        device, holds = hello.device, hello.holds
        self._spool.note_held_objects(device, holds)
        known = {name: place for name in holds if (place := self._spool.asked_broadcast(name))}
        if holds and not known and base not in holds:
            self._note_unknown_broadcast(device, now)
            return
        self._hold_unknown.discard(device)
        if self._judged_boots.get(device) != boot:
            if hello.phase:
                behind = self._behind_by_answer(hello, boot)
            else:
                behind = self._behind_by_broadcasts(device, holds, known, boot, base)
            self._judged_boots[device] = boot
            if behind and self._count_and_may_log(device, ITS_OWN, now):
                log.error(
                    "%s has answered %s: its folder is an older copy, was emptied, or was damaged. The device "
                    "takes part with this folder. Its later training is lost, so the results of the run differ",
                    device, behind,
                )  # fmt: skip

    def _behind_by_answer(self, hello: Hello, boot: int) -> str:
        """Describe the updates that the device has lost; return "" if it has lost none.

        The last update that the hello names is compared with the accepted updates.
        """
        accepted = self._spool.answered_before_boot(hello.device, boot)
        if not accepted or hello.round > accepted[-1][0]:
            return ""
        newest, earlier, said = accepted[-1], accepted[:-1], (hello.round, hello.phase, hello.base)
        if hello.round == newest[0] and said not in earlier:
            return ""  # The hello names the newest accepted update, or a later update that was not accepted.
        phase = f" {newest[1]}" if hello.round == newest[0] else ""
        held = f"what it answered in round {hello.round}" + (phase and f" {hello.phase}")
        return f"round {newest[0]}{phase}, and came back holding {held if hello.round else 'nothing'}"

    def _behind_by_broadcasts(
        self,
        device: str,
        holds: Collection[bytes],
        known: Mapping[bytes, AskedBroadcast],
        boot: int,
        base: bytes,
    ) -> str:
        """Describe the updates that the device has lost; return "" if it has lost none.

        An earlier version of a device does not name its last update in a hello. So this function compares the
        broadcasts that the device holds with the broadcast of its last accepted update.
        """
        last = self._spool.last_answer(device)
        if last is None or last.boot == boot or last.base in holds or base in holds:
            return ""
        if not (holds or last.holds) or any(place.number > last.number for place in known.values()):
            # The device never reports what it holds, or it holds a broadcast that is newer than its last accepted
            # update.
            return ""
        what = f"what it answered in round {max(p.round for p in known.values())}" if known else "nothing"
        return f"round {last.round}, and came back holding {what}"


def _are_most(who: Collection[str], of: int) -> bool:
    return 2 * len(who) > of


def _first_three(who: list[str]) -> str:
    return ", ".join(who[:3]) + (" ..." if len(who) > 3 else "")
