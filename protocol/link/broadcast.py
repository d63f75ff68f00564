"""Serve one object to a cohort. Each block is sent once for all devices, and again for a device that missed it.

A block is sent when every expected device has requested it, or after a short time without further requests. So the
cohort shares one copy, and no device waits for a device that sends no request. With a large cohort the broker needs
time to deliver a copy to all devices. A device that requests the block again during this time waits for that copy. If
only a few devices missed the copy, the block is sent to each of these devices separately.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Final

from protofleet.protocol.link.fetch import indices
from protofleet.protocol.link.rate_limit import REPEAT_BURST, REPEAT_RATE, TokenBucket
from protofleet.protocol.wire.messages import BlockRequest, Manifest
from protofleet.protocol.wire.reasons import Reason, Rejected

LINGER_SECONDS: Final = 0.25  # a block is sent when no device has requested it for this many seconds
LONGEST_LINGER_SECONDS: Final = 1.0
MAX_PENDING: Final = 256  # largest number of blocks that wait to be sent to the cohort: 16 MiB
# A block does not wait for a device that has sent no request for this many seconds.
INACTIVE_SECONDS: Final = 2.0
# Bytes per second that a broker is assumed to deliver to all devices together; this is 270 Mbit/s.
PASSED_ON_PER_SECOND: Final = 32 << 20
LONGEST_PASSING_ON_SECONDS: Final = 10.0
ALONE_RATE: Final = 256.0  # blocks per second that are sent to single devices, in total for all devices
ALONE_BURST: Final = 256.0

# Used instead of a device's name for a block that no device has requested. It is sent to all devices on a separate
# topic.
UNASKED: Final = ""
# Function that sends a block. Its arguments are the device (None for all devices), the index of the block, and
# whether the block is sent for the first time.
Send = Callable[[str | None, int, bool], None]
# Context of the work for one device: an error inside this context counts as an error of this device.
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
        self._expected: set[str] = set()  # devices whose first request is still expected
        self._asked: dict[str, set[int]] = {}
        # Device -> time of its first request. A device subscribes to the broadcast before its first request.
        self._first_asked: dict[str, float] = {}
        self._last_asked: dict[str, float] = {}
        self._published: dict[int, float] = {}
        # Block -> time at which all devices should have received the published copy.
        self._passed_on_at: dict[int, float] = {}
        self._pending: dict[int, float] = {}  # block -> latest time to send it
        self._pending_since: dict[int, float] = {}
        # Pending block -> devices that requested it, in the order of their requests.
        self._requested_by: dict[int, dict[str, None]] = {}
        self._sent: set[int] = set()
        self._cohort: set[str] = set()
        self._followed: set[str] = set()  # devices to which the block was sent without a request
        self._repeats: dict[str, TokenBucket] = {}
        self._alone = TokenBucket(ALONE_RATE, ALONE_BURST)
        self.wake_at = float("inf")

    def expect(self, cohort: list[str], holding: set[str]) -> None:
        """Expect requests from the devices of the cohort that are not in `holding`.

        Devices in `holding` send no request, because they have the object already or receive it directly after their
        task.
        """
        self._cohort |= set(cohort)
        self._expected |= set(cohort) - holding - set(self._asked)

    def follow(self, devices: list[str], now: float) -> bool:
        """Send the object's only block to these devices after their tasks, without a request.

        Return False if the object has more than one block. If there is only one device, the block is sent to this
        device alone. A device to which the block was sent before does not get the block again, even if the device
        gets the task again after a hello. If the block was lost, the device requests the block.
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
        """Serve a request, and return the number of blocks that the device had not requested before."""
        if device not in self._cohort:
            raise Rejected(
                Reason.NOT_INVITED, f"{device} requests blocks of a broadcast that was not offered to it"
            )
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
        """Send a block at once, send it later, or ignore the request.

        A request of about 200 bytes can cause the sending of 4 MiB. So a device pays with tokens for each
        further request for the same block.
        """
        sent_at = self._published.get(i)
        late = sent_at is not None and sent_at < self._first_asked[device]
        # The block was sent to this device without a request, but did not arrive.
        was_sent_it = again and device in self._followed
        # The block is published once more for all devices that subscribed after it was published.
        if fresh and not was_sent_it and (late or sent_at is None):
            if not self._put_off(device, i, now):
                return
        elif again or not fresh:  # a restarted device repeats requests without setting `again`
            if i in self._pending:
                self._requested_by[i][device] = None
                return
            if again and now < self._passed_on_at.get(i, 0.0):
                return  # the broker is still delivering the block
            bucket = self._repeats.setdefault(device, TokenBucket(REPEAT_RATE, REPEAT_BURST))
            if not (fresh or bucket.take(now)):
                return  # the device will send the request again
            if self._alone.take(now):
                self._publish(device, i)
            # If the block was sent to this device without a request, the device has not subscribed to the broadcast's
            # topic. A later shared copy would not reach the device, so the device has to request the block again.
            elif not was_sent_it:
                self._put_off(device, i, now)
        self._asked[device].add(i)

    def _put_off(self, device: str, i: int, now: float) -> bool:
        """Send the block later, when no device has requested it for a short time.

        Return False if too many blocks wait already.
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
        """Publish a block to all devices, or to one device if only this device needs it again.

        If the other devices have the block already, a second copy to all devices would waste their bandwidth.
        """
        if len(devices) == 1 and i in self._published:
            self._publish(devices[0], i)
        else:
            self._publish(None, i)
            self._published[i], self._passed_on_at[i] = now, passed_on_at

    def _passed_on(self, copies: int, now: float) -> float:
        """Return the time at which the broker should have sent a block to `copies` devices."""
        size = min(self.manifest.block, self.manifest.size)
        return now + min(copies * size / PASSED_ON_PER_SECOND, LONGEST_PASSING_ON_SECONDS)

    def _asked_for_by_all(self, now: float) -> set[int]:
        """Return the waiting blocks that all active devices have requested.

        Return an empty set while the first request of a device is still expected.
        """
        fresh = self._pending.keys() - self._published.keys()
        if self._expected or not fresh:
            return set()
        waiting = [d for d, last in self._last_asked.items() if now - last < INACTIVE_SECONDS]
        return {i for i in fresh if all(i in self._asked[d] for d in waiting)}

    def _publish(self, device: str | None, index: int) -> None:
        self._send(device, index, index not in self._sent)
        self._sent.add(index)
