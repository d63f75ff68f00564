"""Serving one object to a cohort: each block once for everybody, and again for a device that missed it.

A block goes out when every device that is expected has asked for it, or when nobody has for a short while: so the
cohort shares one copy, and no device waits for one that never asks. A large cohort takes its time: who asks again
while the broker still passes a copy on waits for that one, and of those that missed it only a few get one alone.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Final

from protofleet.protocol.link.fetch import indices
from protofleet.protocol.link.rate_limit import REPEAT_BURST, REPEAT_RATE, TokenBucket
from protofleet.protocol.wire.messages import BlockRequest, Manifest
from protofleet.protocol.wire.reasons import Reason, Rejected

LINGER_SECONDS: Final = 0.25  # a block waits for the rest of the cohort until nobody has asked for so long
LONGEST_LINGER_SECONDS: Final = 1.0
MAX_PENDING: Final = 256  # blocks that wait for the cohort: 16 MiB, as much as is fetched at a time
INACTIVE_SECONDS: Final = 2.0  # a device that has not asked for this long is no longer waited for
PASSED_ON_PER_SECOND: Final = 32 << 20  # bytes, by a broker to all together: 270 Mbit/s
LONGEST_PASSING_ON_SECONDS: Final = 10.0
ALONE_RATE: Final = 256.0  # blocks a second that go to single devices, of all together: 16 MiB
ALONE_BURST: Final = 256.0

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
        self._passed_on_at: dict[int, float] = {}  # block -> when all should have it that it was published to
        self._pending: dict[int, float] = {}  # block -> when it goes out at the latest
        self._pending_since: dict[int, float] = {}
        # Block that is pending -> who asked for it, in order.
        self._requested_by: dict[int, dict[str, None]] = {}
        self._sent: set[int] = set()
        self._cohort: set[str] = set()
        self._followed: set[str] = set()  # were sent it unasked, once
        self._repeats: dict[str, TokenBucket] = {}
        self._alone = TokenBucket(ALONE_RATE, ALONE_BURST)
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
            self._passed_on_at[0] = self._passed_on(len(devices), now)
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
        was_sent_it = again and device in self._followed  # unasked, and it has not come
        if fresh and not was_sent_it and (late or sent_at is None):  # those who are late share one more copy
            if not self._put_off(device, i, now):
                return
        elif again or not fresh:  # after a new start it does not know what it had asked for
            if i in self._pending:
                self._requested_by[i][device] = None
                return
            if again and now < self._passed_on_at.get(i, 0.0):
                return  # it is on its way
            bucket = self._repeats.setdefault(device, TokenBucket(REPEAT_RATE, REPEAT_BURST))
            if not (fresh or bucket.take(now)):
                return  # it will ask again
            if self._alone.take(now):
                self._publish(device, i)
            elif not was_sent_it:  # it has not subscribed to the broadcast, and will ask again
                self._put_off(device, i, now)
        self._asked[device].add(i)

    def _put_off(self, device: str, i: int, now: float) -> bool:
        """Until nobody else has asked for it for a while. False where too many blocks wait."""
        if i not in self._pending and len(self._pending) >= MAX_PENDING:
            return False
        since = self._pending_since.setdefault(i, now)
        self._pending[i] = min(now + LINGER_SECONDS, since + LONGEST_LINGER_SECONDS)
        self._requested_by.setdefault(i, {})[device] = None
        return True

    def wake(self, now: float) -> None:
        """Publish what everybody waits for, and what has waited long enough."""
        due = {i for i, latest in self._pending.items() if now >= latest} | self._asked_for_by_all(now)
        passed_on_at = self._passed_on(sum(len(self._requested_by[i]) for i in due), now)
        for i in sorted(due):
            del self._pending[i], self._pending_since[i]
            devices = list(self._requested_by.pop(i))
            with self._error_scope(devices[0]):
                self._publish_requested(i, devices, now, passed_on_at)
        if due and now >= min(self._first_asked.values()) + LINGER_SECONDS:
            self._expected.clear()
        self.wake_at = min(self._pending.values(), default=float("inf"))

    def _publish_requested(self, i: int, devices: list[str], now: float, passed_on_at: float) -> None:
        """To all; but to a single one that is late alone: the others have it, and their lines may be slow."""
        if len(devices) == 1 and i in self._published:
            self._publish(devices[0], i)
        else:
            self._publish(None, i)
            self._published[i], self._passed_on_at[i] = now, passed_on_at

    def _passed_on(self, copies: int, now: float) -> float:
        """When all should have it."""
        size = min(self.manifest.block, self.manifest.size)
        return now + min(copies * size / PASSED_ON_PER_SECOND, LONGEST_PASSING_ON_SECONDS)

    def _asked_for_by_all(self, now: float) -> set[int]:
        """Of the blocks that wait for the cohort. All of it is looked at only once nobody is expected any more."""
        fresh = self._pending.keys() - self._published.keys()
        if self._expected or not fresh:
            return set()
        waiting = [d for d, last in self._last_asked.items() if now - last < INACTIVE_SECONDS]
        return {i for i in fresh if all(i in self._asked[d] for d in waiting)}

    def _publish(self, device: str | None, index: int) -> None:
        self._send(device, index, index not in self._sent)
        self._sent.add(index)
