"""Serve one object to a cohort: each block once for all devices, and again for a device that missed it.

A block is sent when every expected device has asked for it, or when no device has asked for it for a short
while. So the cohort shares one copy, and no device waits for a device that never asks. With a large cohort
the broker needs time to pass a copy on. A device that asks again during this time waits for that copy. Of the
devices that missed it, only a few get a copy of their own.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Final

from protofleet.protocol.link.fetch import indices
from protofleet.protocol.link.rate_limit import REPEAT_BURST, REPEAT_RATE, TokenBucket
from protofleet.protocol.wire.messages import BlockRequest, Manifest
from protofleet.protocol.wire.reasons import Reason, Rejected

LINGER_SECONDS: Final = 0.25  # seconds without a request for a block, after which the block is sent
LONGEST_LINGER_SECONDS: Final = 1.0
MAX_PENDING: Final = 256  # blocks that wait for the cohort: 16 MiB, as much as is fetched at a time
INACTIVE_SECONDS: Final = 2.0  # seconds without a request, after which the cohort does not wait for a device
PASSED_ON_PER_SECOND: Final = 32 << 20  # bytes that a broker passes on to all devices together: 270 Mbit/s
LONGEST_PASSING_ON_SECONDS: Final = 10.0
ALONE_RATE: Final = 256.0  # blocks a second that go to single devices, for all of these together: 16 MiB
ALONE_BURST: Final = 256.0

UNASKED: Final = ""  # addresses a block to all devices that did not ask for it, on a topic of its own
# Sends a block: (one device, or None for all; block; whether it is sent for the first time).
Send = Callable[[str | None, int, bool], None]
# Context of work for one device: an error in it is attributed to this device.
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
        self._expected: set[str] = set()  # devices that have not asked yet
        self._asked: dict[str, set[int]] = {}
        # Device -> time of its first request; it had subscribed by then.
        self._first_asked: dict[str, float] = {}
        self._last_asked: dict[str, float] = {}
        self._published: dict[int, float] = {}
        # Block -> time when all devices that it was published to should have it.
        self._passed_on_at: dict[int, float] = {}
        self._pending: dict[int, float] = {}  # block -> latest time to send it
        self._pending_since: dict[int, float] = {}
        # Pending block -> devices that asked for it, in order.
        self._requested_by: dict[int, dict[str, None]] = {}
        self._sent: set[int] = set()
        self._cohort: set[str] = set()
        self._followed: set[str] = set()  # devices that were sent the block before they asked for it
        self._repeats: dict[str, TokenBucket] = {}
        self._alone = TokenBucket(ALONE_RATE, ALONE_BURST)
        self.wake_at = float("inf")

    def expect(self, cohort: list[str], holding: set[str]) -> None:
        """Expect requests from the devices of the cohort that are not in `holding`.

        Devices in `holding` will not ask: they have the object, or it follows their task.
        """
        self._cohort |= set(cohort)
        self._expected |= set(cohort) - holding - set(self._asked)

    def follow(self, devices: list[str], now: float) -> bool:
        """Send the only block after the tasks of these devices, although they have not asked for it.

        Return False if the object has more than one block. If there is only one device, only this device gets
        the block. A device that was sent the block before does not get it again: its hello brings the task
        again, but not the block. If the block was lost, the device asks for it.
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
        """Serve a request, and return the number of blocks that the device had not requested before.

        These blocks cost the device no tokens.
        """
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
        """Send a block, put it off, or ignore the request.

        A request is about 200 bytes long, and the blocks that it names may be 4 MiB. So only the first
        request for a block costs no tokens.
        """
        sent_at = self._published.get(i)
        late = sent_at is not None and sent_at < self._first_asked[device]
        # The block was sent before a request, and has not come.
        was_sent_it = again and device in self._followed
        # Devices that are late share one more copy.
        if fresh and not was_sent_it and (late or sent_at is None):
            if not self._put_off(device, i, now):
                return
        elif again or not fresh:  # after a restart a device does not know what it has asked for
            if i in self._pending:
                self._requested_by[i][device] = None
                return
            if again and now < self._passed_on_at.get(i, 0.0):
                return  # the block is still being passed on
            bucket = self._repeats.setdefault(device, TokenBucket(REPEAT_RATE, REPEAT_BURST))
            if not (fresh or bucket.take(now)):
                return  # the device will ask again
            if self._alone.take(now):
                self._publish(device, i)
            elif not was_sent_it:  # the device has not subscribed to the broadcast, and will ask again
                self._put_off(device, i, now)
        self._asked[device].add(i)

    def _put_off(self, device: str, i: int, now: float) -> bool:
        """Send the block after a while without further requests for it.

        Return False if too many blocks wait.
        """
        if i not in self._pending and len(self._pending) >= MAX_PENDING:
            return False
        since = self._pending_since.setdefault(i, now)
        self._pending[i] = min(now + LINGER_SECONDS, since + LONGEST_LINGER_SECONDS)
        self._requested_by.setdefault(i, {})[device] = None
        return True

    def wake(self, now: float) -> None:
        """Publish the blocks that all devices wait for, and the blocks that have waited long enough."""
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
        """Publish a block to all devices, or to one device if only this one needs it again.

        In the second case the other devices have the block, and their lines may be slow.
        """
        if len(devices) == 1 and i in self._published:
            self._publish(devices[0], i)
        else:
            self._publish(None, i)
            self._published[i], self._passed_on_at[i] = now, passed_on_at

    def _passed_on(self, copies: int, now: float) -> float:
        """Return the time when all devices should have a block."""
        size = min(self.manifest.block, self.manifest.size)
        return now + min(copies * size / PASSED_ON_PER_SECOND, LONGEST_PASSING_ON_SECONDS)

    def _asked_for_by_all(self, now: float) -> set[int]:
        """Return the waiting blocks that all active devices have asked for.

        The blocks are compared only when no device is expected any more.
        """
        fresh = self._pending.keys() - self._published.keys()
        if self._expected or not fresh:
            return set()
        waiting = [d for d, last in self._last_asked.items() if now - last < INACTIVE_SECONDS]
        return {i for i in fresh if all(i in self._asked[d] for d in waiting)}

    def _publish(self, device: str | None, index: int) -> None:
        self._send(device, index, index not in self._sent)
        self._sent.add(index)
