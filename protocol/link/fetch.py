"""Pulling one object in blocks. The sender may send what has been asked for and has not come, and nothing else.

Brokers give no back-pressure and drop without a word, so nothing is sent that its receiver did not ask for,
and what was asked for and did not come is asked for again.
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

RETRY_SECONDS: Final = 1.0  # without progress, before asking again; doubles up to the longest
LONGEST_RETRY_SECONDS: Final = 20.0
SILENT_SECONDS: Final = 8.0  # a sender is silent once it is this long before it is asked again
GAPS: Final = 2.0  # no block is asked for again before so many times as long as between the last two
LONGEST_GAP_SECONDS: Final = 4.0  # that counts as one of a slow line: 130 kbit/s with blocks of 64 KiB

Send = Callable[[BlockRequest], None]


class ResponseTime:
    """From a request to its first block, of late and over all fetches that share it: where many are served at a time,
    a block that waits its turn is not lost."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def note(self, seconds: float) -> None:
        """Rises fast and falls slowly."""
        more = min(seconds, LONGEST_GAP_SECONDS) - self.seconds
        self.seconds += more / 2 if more > 0 else more / 8

    @property
    def patience(self) -> float:
        return min(GAPS * self.seconds, SILENT_SECONDS)


class Fetch:
    """One object that is being received, at most `window` blocks of it in flight."""

    def __init__(
        self, partial: Partial, send: Send, response_time: ResponseTime, retry: float = RETRY_SECONDS,
        kinds: Kinds = ON_THE_WIRE,
    ) -> None:  # fmt: skip
        """`retry`: where an earlier fetch from the same sender had got to, as another offer is no progress."""
        self.partial, self._send, self._response_time = partial, send, response_time
        self.count = BlockCount(partial, kinds)
        self.asked: dict[int, float] = {}  # block -> when it was asked for first
        self._oldest = float("inf")  # no block of `asked` was asked for before this
        self._next = 0  # blocks before this one are here or asked for
        self.retry = retry
        self._gap = 0.0  # seconds between two blocks, of late
        self._nothing_since = float("-inf")  # when a block came last, or the first was asked for
        self._any_came = False
        self.wake_at = float("inf")
        self._reports: ProgressReports | None = None  # from the first request on

    @property
    def manifest(self) -> Manifest:
        return self.partial.manifest

    @property
    def object(self) -> bytes:
        return self.manifest.object

    @property
    def begun(self) -> bool:
        """Whether anything has been asked for."""
        return self._next > 0

    @property
    def unasked(self) -> int:
        """Blocks that were never asked for, at most."""
        return len(self.partial.have) - self._next

    def rekeyed(self, manifest: Manifest) -> bool:
        """The same object in the same blocks, under this manifest's key from now on; or False."""
        if replace(manifest, key=self.manifest.key) != self.manifest:
            return False
        self.partial.manifest = manifest
        return True

    def awaits(self, manifest: Manifest) -> bool:
        """Whether this manifest's only block is the one that comes here, whichever way it was told of."""
        one_block = len(manifest.hashes) == len(self.partial.have) == 1
        return one_block and manifest.wire_name == self.manifest.wire_name

    def is_named(self, prefix: bytes) -> bool:
        """Whether blocks that call their object this are ours."""
        return self.manifest.wire_name[: len(prefix)] == prefix

    def take(self, index: int, data: memoryview, now: float) -> tuple[int, list[CountedSpan], bool]:
        """Take a block as it came: its bytes, the spans that can be counted now, and whether it is new."""
        plain = decrypted(self.manifest, index, data)
        fresh = self.store(index, plain, now)
        start = index * self.manifest.block
        return len(plain), self.count.came(start, start + len(plain), fresh), fresh

    def in_flight(self, now: float) -> int:
        """Blocks that may still come. A sender that is silent or loses one now and then delays nobody else."""
        if self.is_silent:
            return 0
        if now - self._oldest < SILENT_SECONDS:  # all of them: this is asked after every block that comes
            return len(self.asked)
        self._oldest = min(self.asked.values(), default=now)
        return sum(now - since < SILENT_SECONDS for since in self.asked.values())

    @property
    def is_silent(self) -> bool:
        return self.retry >= SILENT_SECONDS

    def await_unasked(self, now: float) -> None:
        """It comes by itself; what has not come after a while is asked for."""
        self._next = len(self.partial.have)
        self.asked = dict.fromkeys(range(self._next), now)
        self._oldest = min(self._oldest, now)
        self._nothing_since = now
        self.wake_at = now + self._pause

    def fill(self, window: int, now: float) -> None:
        """Ask for more when at most half of the window is still in flight."""
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
        """Take a block; True if it is new."""
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
        """Every few seconds of a long transfer, else None."""
        return self._reports.report(self.partial.bytes_here, now) if self._reports else None

    def wake(self, now: float, window: int) -> None:
        """Nothing came for a while: ask again for what is missing.

        For the first of it alone while no block has come at all: the others may be on their way over a slow line,
        which a second copy of each would block for as long again.
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
    """Sorted indices as [first, past the last) pairs, as many as one message may carry."""
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
