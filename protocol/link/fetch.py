"""Fetch one object in blocks, and ask again for blocks that do not come.

Brokers give no back-pressure, and drop messages without notice. So a sender sends a block only if its
receiver has asked for it and has not received it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Final

from protofleet.protocol.link.block_count import BlockCount, CountedSpan
from protofleet.protocol.link.progress import ProgressReports, TransferProgress
from protofleet.protocol.storage.partial import Partial
from protofleet.protocol.wire.arrays import ON_THE_WIRE
from protofleet.protocol.wire.blocks import decrypted
from protofleet.protocol.wire.codec import MAX_RANGES
from protofleet.protocol.wire.kinds import Kinds
from protofleet.protocol.wire.messages import BlockRequest, Manifest

RETRY_SECONDS: Final = 1.0  # seconds without progress before the next request; they double up to the longest
LONGEST_RETRY_SECONDS: Final = 20.0
SILENT_SECONDS: Final = 8.0  # a sender is silent when its pause has grown to this many seconds
# Factor: a block is asked for again only after this many times the gap between the last two.
GAPS: Final = 2.0
LONGEST_GAP_SECONDS: Final = 4.0  # longest gap, in seconds, of a slow line: 130 kbit/s with blocks of 64 KiB

Send = Callable[[BlockRequest], None]


class ResponseTime:
    """The recent time between a request and its first block, over all fetches that share it.

    If a sender serves many fetches at a time, a block that waits for its turn is not lost.
    """

    def __init__(self) -> None:
        self.seconds = 0.0

    def note(self, seconds: float) -> None:
        """Adapt the response time to a new value: it rises fast and falls slowly."""
        more = min(seconds, LONGEST_GAP_SECONDS) - self.seconds
        self.seconds += more / 2 if more > 0 else more / 8

    @property
    def patience(self) -> float:
        return min(GAPS * self.seconds, SILENT_SECONDS)


class ObjectFetch:
    """A fetch of one object, with at most `window` blocks in flight."""

    def __init__(
        self, partial: Partial, send: Send, response_time: ResponseTime, retry: float = RETRY_SECONDS,
        kinds: Kinds = ON_THE_WIRE,
    ) -> None:  # fmt: skip
        """Start with the pause `retry` before a block is asked for again.

        `retry` is the pause that an earlier fetch from the same sender had reached, because a new offer is no
        progress.
        """
        self.partial, self._send, self._response_time = partial, send, response_time
        self.count = BlockCount(partial, kinds)
        self.asked: dict[int, float] = {}  # block -> time when it was asked for first
        self._oldest = float("inf")  # no block in `asked` was asked for before this time
        self._next = 0  # all blocks before this one are here, or were asked for
        self.retry = retry
        self._gap = 0.0  # recent seconds between two blocks
        # Time when the last block came, or when the first one was asked for.
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
        """Return whether any block has been asked for."""
        return self._next > 0

    @property
    def unasked(self) -> int:
        """Return the highest possible number of blocks that were never asked for."""
        return len(self.partial.have) - self._next

    def rekeyed(self, manifest: Manifest) -> bool:
        """Take over the key of this manifest if it is of the same object in the same blocks.

        Return False if it is not.
        """
        if replace(manifest, key=self.manifest.key) != self.manifest:
            return False
        self.partial.manifest = manifest
        return True

    def awaits(self, manifest: Manifest) -> bool:
        """Return whether the only block of this manifest is the block that this fetch waits for.

        It does not matter in which way the fetch was told of this block.
        """
        one_block = len(manifest.hashes) == len(self.partial.have) == 1
        return one_block and manifest.wire_name == self.manifest.wire_name

    def is_named(self, prefix: bytes) -> bool:
        """Return whether blocks with this prefix of an object's name belong to this fetch."""
        return self.manifest.wire_name[: len(prefix)] == prefix

    def take(self, index: int, data: memoryview, now: float) -> tuple[int, list[CountedSpan], bool]:
        """Decrypt and store a block.

        Return its number of bytes, the spans that can be counted now, and whether it is new.
        """
        plain = decrypted(self.manifest, index, data)
        fresh = self.store(index, plain, now)
        start = index * self.manifest.block
        return len(plain), self.count.came(start, start + len(plain), fresh), fresh

    def in_flight(self, now: float) -> int:
        """Return the number of blocks that may still come.

        A block that was asked for long ago does not count. So a sender that is silent, or that sometimes
        loses a block, does not delay others.
        """
        if self.is_silent:
            return 0
        # In this case all blocks count. The shorter test is for speed, because the method runs after every
        # block that comes.
        if now - self._oldest < SILENT_SECONDS:
            return len(self.asked)
        self._oldest = min(self.asked.values(), default=now)
        return sum(now - since < SILENT_SECONDS for since in self.asked.values())

    @property
    def is_silent(self) -> bool:
        return self.retry >= SILENT_SECONDS

    def await_unasked(self, now: float) -> None:
        """Wait for an object that comes without a request; later, ask for the blocks that do not come."""
        self._next = len(self.partial.have)
        self.asked = dict.fromkeys(range(self._next), now)
        self._oldest = min(self._oldest, now)
        self._nothing_since = now
        self.wake_at = now + self._pause

    def fill(self, window: int, now: float) -> None:
        """Ask for more blocks when at most half of the window is still in flight."""
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
            if not self._any_came:
                self._response_time.note(now - self._nothing_since)
            self._any_came, self.retry = True, RETRY_SECONDS
            gap = min(now - self._nothing_since, LONGEST_GAP_SECONDS)
            self._gap, self._nothing_since = max(gap, self._gap / 2), now
            self.wake_at = now + self._pause
        return fresh

    @property
    def _pause(self) -> float:
        return max(self.retry, GAPS * self._gap if self._any_came else self._response_time.patience)

    def progress(self, now: float) -> TransferProgress | None:
        """Return the progress of a long transfer every few seconds, otherwise None."""
        return self._reports.report(self.partial.bytes_here, now) if self._reports else None

    def wake(self, now: float, window: int) -> None:
        """Ask again for the missing blocks if no block has come for a while.

        If no block has come at all, ask only for the first one: the others may be on their way over a slow
        line, and a second copy of each would block the line for the same time again.
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
    """Return sorted indices as [first, past the last) pairs, as many as one message may carry."""
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
