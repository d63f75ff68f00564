"""Fetch one object in blocks, and request blocks again if they do not arrive.

A broker does not slow down a fast sender, and drops messages without notice. So a sender sends a block only
if the receiver has requested it and has not received it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Final

from protofleet.protocol.link.block_count import BlockCount, CountedSpan
from protofleet.protocol.link.progress import ProgressReports, TransferProgress
from protofleet.protocol.storage.partial import Partial
from protofleet.protocol.wire.arrays import ON_THE_WIRE
from protofleet.protocol.wire.blocks import DEFAULT_BLOCK, decrypted
from protofleet.protocol.wire.codec import MAX_RANGES
from protofleet.protocol.wire.kinds import Kinds
from protofleet.protocol.wire.messages import BlockRequest, Manifest

# Seconds without a new block before the missing blocks are requested again. The time doubles after each
# request, up to LONGEST_RETRY_SECONDS.
RETRY_SECONDS: Final = 1.0
LONGEST_RETRY_SECONDS: Final = 20.0
# If the pause between two requests is this number of seconds or longer, the sender counts as silent.
SILENT_SECONDS: Final = 8.0
# A block is late after this number of usual gaps between two blocks. Then the block may be requested again.
GAPS: Final = 2.0
# Longest gap between two blocks, in seconds; a longer measured time is treated as this time. Large blocks may take
# longer: the time of a block on the slowest line.
LONGEST_GAP_SECONDS: Final = 4.0
SLOWEST_LINE: Final = 8_000.0  # bytes per second, 64 kbit/s
# Bytes per second, 1 Mbit/s: the line that a receiver expects before it has measured one.
USUAL_LINE: Final = 125_000.0

Send = Callable[[BlockRequest], None]


class ResponseTime:
    """The recent time between a request and its first block, measured over several fetches.

    If a sender serves many fetches at a time, a late block is often not lost, but waits for its turn. So the times of
    one sender also raise `of_all`, the time of all senders, and a sender has the longer one of both. The time of all
    senders is at most LONGEST_GAP_SECONDS, so that a slow sender hardly delays requests to others.
    """

    def __init__(self, of_all: ResponseTime | None = None) -> None:
        self._seconds, self._block, self._of_all = 0.0, DEFAULT_BLOCK, of_all

    def seconds(self, block: int) -> float:
        """Return the time for a block of this many bytes, or 0 if nothing was measured.

        A larger block than the measured one needs more time. Below DEFAULT_BLOCK, the size makes hardly a difference.
        """
        own = self._seconds * max(1.0, block / self._block)
        return max(own, self._of_all.seconds(DEFAULT_BLOCK)) if self._of_all else own

    def note(self, seconds: float, block: int) -> None:
        """Adapt the response time to a new measurement: raise it fast, and lower it slowly."""
        before = self._seconds * max(1.0, block / self._block)
        self._seconds = before + (seconds - before) / (2 if seconds > before else 8)
        self._block = max(block, DEFAULT_BLOCK)
        if self._of_all:
            self._of_all.note(min(seconds, LONGEST_GAP_SECONDS), DEFAULT_BLOCK)


class ObjectFetch:
    """A fetch of one object, with at most `window` blocks in flight."""

    def __init__(
        self, partial: Partial, send: Send, response_time: ResponseTime, retry: float = RETRY_SECONDS,
        kinds: Kinds = ON_THE_WIRE,
    ) -> None:  # fmt: skip
        """Create a fetch that waits `retry` seconds before it requests a block again.

        The caller makes `retry` longer if an earlier fetch from the same sender failed. A new offer of the sender
        does not make `retry` shorter.
        """
        self.partial, self._send, self._response_time = partial, send, response_time
        self.count = BlockCount(partial, kinds)
        self.asked: dict[int, float] = {}  # maps each requested block to the time of its first request
        self._oldest = float("inf")  # no block in `asked` was requested before this time
        self._next = 0  # all blocks with a lower index are here or were requested
        self._first_block = min(self.manifest.block, self.manifest.size)
        self._longest_gap = max(LONGEST_GAP_SECONDS, self._first_block / SLOWEST_LINE)
        self.retry = retry
        if not response_time.seconds(self._first_block):
            self.retry = max(retry, min(GAPS * self._first_block / USUAL_LINE, LONGEST_GAP_SECONDS))
        self._gap = 0.0  # recent time between two blocks, in seconds
        # Time when the last block arrived; before any block, the time of the first request.
        self._nothing_since = float("-inf")
        self._any_came = False
        self.wake_at = float("inf")
        self._reports: ProgressReports | None = None  # created at the first request

    @property
    def manifest(self) -> Manifest:
        return self.partial.manifest

    @property
    def object(self) -> bytes:
        return self.manifest.object

    @property
    def begun(self) -> bool:
        """Return whether any block has been requested."""
        return self._next > 0

    @property
    def unasked(self) -> int:
        """Return an upper limit of the number of blocks that were never requested."""
        return len(self.partial.have) - self._next

    def rekeyed(self, manifest: Manifest) -> bool:
        """Replace the fetch's manifest by this manifest if they differ only in their keys.

        Return whether the manifests differ only in their keys or not at all.
        """
        if replace(manifest, key=self.manifest.key) != self.manifest:
            return False
        self.partial.manifest = manifest
        return True

    def awaits(self, manifest: Manifest) -> bool:
        """Return whether the only block of this manifest is the block that this fetch waits for.

        Manifests of the same block may differ in other fields, so only the name of the object is compared.
        """
        one_block = len(manifest.hashes) == len(self.partial.have) == 1
        return one_block and manifest.wire_name == self.manifest.wire_name

    def is_named(self, prefix: bytes) -> bool:
        """Return whether the object's name in the blocks begins with `prefix`."""
        return self.manifest.wire_name[: len(prefix)] == prefix

    def take(self, index: int, data: memoryview, now: float) -> tuple[int, list[CountedSpan], bool]:
        """Decrypt and store a block.

        Return the number of bytes of the block, the spans that can be counted now, and whether the block is
        new.
        """
        plain = decrypted(self.manifest, index, data)
        fresh = self.store(index, plain, now)
        start = index * self.manifest.block
        return len(plain), self.count.came(start, start + len(plain), fresh), fresh

    def in_flight(self, now: float) -> int:
        """Return the number of requested blocks that may still arrive.

        A block that was requested long ago does not count. So a sender that is silent, or that sometimes
        loses a block, does not delay other senders.
        """
        if self.is_silent:
            return 0
        # If the oldest request is recent, all blocks count. This shortcut saves time, because the method runs
        # after every block.
        if now - self._oldest < SILENT_SECONDS:
            return len(self.asked)
        self._oldest = min(self.asked.values(), default=now)
        return sum(now - since < SILENT_SECONDS for since in self.asked.values())

    @property
    def is_silent(self) -> bool:
        return self.retry >= SILENT_SECONDS

    def await_unasked(self, now: float) -> None:
        """Wait for an object that is sent without a request; `wake` later requests the blocks that are missing."""
        self._next = len(self.partial.have)
        self.asked = dict.fromkeys(range(self._next), now)
        self._oldest = min(self._oldest, now)
        self._nothing_since = now
        self.wake_at = now + self._pause

    def fill(self, window: int, now: float) -> None:
        """Request more blocks when at most half of the window is still in flight."""
        if len(self.asked) * 2 > window:
            return
        fresh: list[int] = []
        while len(self.asked) + len(fresh) < window and self._next < len(self.partial.have):
            if not self.partial.have[self._next]:
                fresh.append(self._next)
            self._next += 1
        if fresh:
            if self._reports is None:
                self._reports = ProgressReports(self.manifest.size, now)
            if not self.asked:
                self._nothing_since = now
            self.asked.update(dict.fromkeys(fresh, now))
            self._oldest = min(self._oldest, now)
            self._request(fresh, again=False)
            self.wake_at = now + self._pause

    def store(self, index: int, data: memoryview, now: float) -> bool:
        """Store a block, and return True if it is new."""
        fresh = self.partial.write(index, data)
        self.asked.pop(index, None)
        if fresh:
            gap = min(now - self._nothing_since, self._longest_gap)
            if not self._any_came:
                self._response_time.note(gap, self._first_block)
            self._any_came, self.retry = True, RETRY_SECONDS
            self._gap, self._nothing_since = max(gap, self._gap / 2), now
            self.wake_at = now + self._pause
        return fresh

    @property
    def _pause(self) -> float:
        usual = self._gap if self._any_came else self._response_time.seconds(self._first_block)
        return max(self.retry, GAPS * min(usual, self._longest_gap))

    def progress(self, now: float) -> TransferProgress | None:
        """Return the progress of a long transfer every few seconds, otherwise None."""
        return self._reports.report(self.partial.bytes_here, now) if self._reports else None

    def wake(self, now: float, window: int) -> None:
        """Request the missing blocks again if no block has arrived for a while.

        If this fetch has received no block yet, request only the first block. The other blocks may be on their way
        over a slow line. A second copy of each block would occupy the line for as long as the first copy.
        """
        if now < self.wake_at:
            return
        missing = [i for i, here in enumerate(self.partial.have) if not here][: max(1, window)]
        if self._any_came:
            self.asked = {i: self.asked.get(i, now) for i in missing}
        else:
            missing = missing[:1]
            self.asked = {i: self.asked.get(i, now) for i in (*missing, *self.asked)}
        self._oldest = min(self._oldest, now)
        self._next = max(self._next, missing[-1] + 1 if missing else 0)
        self._request(missing, again=True)
        self.retry = min(2 * self.retry, LONGEST_RETRY_SECONDS)
        self.wake_at = now + self._pause

    def _request(self, indices: list[int], again: bool) -> None:
        self._send(BlockRequest(self.object, ranges(indices), again))


def ranges(indices: Iterable[int]) -> tuple[tuple[int, int], ...]:
    """Return sorted indices as pairs (first, last + 1).

    One message may contain at most MAX_RANGES pairs. Further indices are left out.
    """
    found: list[tuple[int, int]] = []
    for i in indices:
        if found and found[-1][1] == i:
            found[-1] = (found[-1][0], i + 1)
        elif len(found) == MAX_RANGES:
            break
        else:
            found.append((i, i + 1))
    return tuple(found)


def indices(ranges: tuple[tuple[int, int], ...], blocks: int) -> list[int]:
    return [i for start, stop in ranges for i in range(start, min(stop, blocks))]
