"""Serving one object to a cohort: each block once for everybody, and again for a device that missed it.

A block goes out when every device that is expected has asked for it, or a short while after the first
has: so the cohort shares one copy, and no device waits for one that never asks.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Final

from protofleet.protocol.link.fetch import indices
from protofleet.protocol.link.rate_limit import REPEAT_BURST, REPEAT_RATE, TokenBucket
from protofleet.protocol.wire.messages import BlockRequest, Manifest
from protofleet.protocol.wire.reasons import Reason, Rejected

LINGER_SECONDS: Final = 0.25  # how long a block waits for the rest of the cohort to ask for it
MAX_PENDING: Final = 256  # blocks that wait for the cohort: 16 MiB, as much as is fetched at a time
INACTIVE_SECONDS: Final = 2.0  # a device that has not asked for this long is no longer waited for

UNASKED: Final = ""  # to all who hear it without asking, and not to all who have asked
Send = Callable[[str | None, int, bool], None]  # (to one device or to all, block, for the first time)
# Around what is done for one device: an error of ours in there is put down to it.
ErrorScope = Callable[[str], contextlib.AbstractContextManager[None]]


class Broadcast:
    def __init__(
        self,
        manifest: Manifest,
        send: Send,
        error_scope: ErrorScope = lambda device: contextlib.nullcontext(),
    ) -> None:
        self.manifest, self._send, self._error_scope = manifest, send, error_scope
        self._blocks = len(manifest.hashes)
        self._expected: set[str] = set()  # have not asked yet
        self._asked: dict[str, set[int]] = {}
        self._first_asked: dict[str, float] = {}  # first asked, hence subscribed, at
        self._last_asked: dict[str, float] = {}
        self._published: dict[int, float] = {}
        self._pending: dict[int, float] = {}  # block -> when it goes out at the latest
        self._requested_by: dict[int, str] = {}  # block that is pending -> who asked for it first
        self._sent: set[int] = set()
        self._cohort: set[str] = set()
        self._followed: set[str] = set()  # were sent it unasked, once
        self._repeats: dict[str, TokenBucket] = {}
        self.wake_at = float("inf")

    def expect(self, cohort: list[str], holding: set[str]) -> None:
        """`holding` will not ask: they have it, or it follows its task."""
        self._cohort |= set(cohort)
        self._expected |= set(cohort) - holding - set(self._asked)

    def follow(self, devices: list[str], now: float) -> bool:
        """One block, unasked, behind the task of each of these: to a single one alone. False where it is longer.

        Who was sent it before asks for it where it was lost: a hello brings the task again, and not the block.
        """
        if self._blocks > 1:
            return False
        devices = [device for device in devices if device not in self._followed]
        self._followed.update(devices)
        for device in devices:
            self._cohort.add(device)
            self._expected.discard(device)
        if not devices:
            return True
        if len(devices) > 1:
            self._send(UNASKED, 0, 0 not in self._sent)
        else:
            self._send(devices[0], 0, 0 not in self._sent)
        self._sent.add(0)
        return True

    def requested(self, device: str, request: BlockRequest, now: float) -> int:
        """How many blocks it asks for that it had not asked for before; those it gets for nothing."""
        if device not in self._cohort:
            raise Rejected(Reason.NOT_INVITED, f"{device} wants a broadcast that is not for it")
        self._expected.discard(device)
        self._first_asked.setdefault(device, now)
        self._last_asked[device] = now
        asked = self._asked.setdefault(device, set())
        blocks = indices(request.ranges, self._blocks)
        fresh = [i for i in blocks if i not in asked]
        for i in blocks:
            self._serve(device, i, request.again, i not in asked, now)
        self.wake(now)
        return len(fresh)

    def _serve(self, device: str, i: int, again: bool, fresh: bool, now: float) -> None:
        """A request is about 200 bytes, what it names up to 4 MiB: only the first one costs no tokens."""
        sent_at = self._published.get(i)
        late = sent_at is not None and sent_at < self._first_asked[device]
        missed = sent_at is not None and not fresh  # after a new start it does not know what it had asked for
        if again or missed:
            bucket = self._repeats.setdefault(device, TokenBucket(REPEAT_RATE, REPEAT_BURST))
            if not (fresh or bucket.take(now)):
                return  # it will ask again
            self._emit(device, i)
        elif (late or sent_at is None) and i not in self._pending:  # those who are late share one more copy
            if len(self._pending) >= MAX_PENDING:
                return
            self._pending[i], self._requested_by[i] = now + LINGER_SECONDS, device
        self._asked[device].add(i)

    def wake(self, now: float) -> None:
        """Publish what everybody waits for, and what has waited long enough."""
        due = {i for i, latest in self._pending.items() if now >= latest} | self._asked_for_by_all(now)
        for i in sorted(due):
            del self._pending[i]
            with self._error_scope(self._requested_by.pop(i)):
                self._emit(None, i)
                self._published[i] = now
        if due and now >= min(self._first_asked.values()) + LINGER_SECONDS:
            self._expected.clear()
        self.wake_at = min(self._pending.values(), default=float("inf"))

    def _asked_for_by_all(self, now: float) -> set[int]:
        """Of the blocks that wait for the cohort. All of it is looked at only once nobody is expected any more."""
        fresh = self._pending.keys() - self._published.keys()
        if self._expected or not fresh:
            return set()
        waiting = [d for d, last in self._last_asked.items() if now - last < INACTIVE_SECONDS]
        return {i for i in fresh if all(i in self._asked[d] for d in waiting)}

    def _emit(self, device: str | None, index: int) -> None:
        self._send(device, index, index not in self._sent)
        self._sent.add(index)
