"""Pulling one object in blocks. The sender may send what has been asked for and has not come, and nothing else.

Brokers give no back-pressure and drop without a word, so nothing is sent that its receiver did not ask for,
and what was asked for and did not come is asked for again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Final

from protofleet.protocol.storage.store import Partial
from protofleet.protocol.wire.arrays import Body
from protofleet.protocol.wire.blocks import decrypted, kinds_in
from protofleet.protocol.wire.codec import MAX_RANGES
from protofleet.protocol.wire.messages import BlockRequest, Manifest

RETRY_SECONDS: Final = 1.0  # without progress, before asking again; doubles up to the longest
LONGEST_RETRY_SECONDS: Final = 20.0
SILENT_SECONDS: Final = 8.0  # a sender is silent once it is this long before it is asked again

Send = Callable[[BlockRequest], None]


class Fetch:
    """One object that is being received, at most `window` blocks of it in flight."""

    def __init__(self, partial: Partial, send: Send, retry: float = RETRY_SECONDS) -> None:
        """`retry`: where an earlier fetch from the same sender had got to, as another offer is no progress."""
        self.partial, self._send = partial, send
        self.asked: dict[int, float] = {}  # block -> when it was asked for first
        self._next = 0  # blocks before this one are here or asked for
        self.retry = retry
        self.wake_at = float("inf")

    @property
    def manifest(self) -> Manifest:
        return self.partial.manifest

    @property
    def object(self) -> bytes:
        return self.manifest.object

    def rekeyed(self, manifest: Manifest) -> bool:
        """The same object in the same blocks, under this manifest's key from now on; or False."""
        if replace(manifest, key=self.manifest.key) != self.manifest:
            return False
        self.partial.manifest = manifest
        return True

    def is_named(self, prefix: bytes) -> bool:
        """Whether blocks that call their object this are ours."""
        return self.manifest.wire_name[: len(prefix)] == prefix

    def take(self, index: int, data: memoryview, now: float) -> tuple[dict[str, int], bool]:
        """A block as it came: the tensor bytes in it by kind, and whether it is new."""
        plain = decrypted(self.manifest, index, data)
        fresh = self.store(index, plain, now)
        if not self.manifest.parts:  # one block, which is the whole body
            return Body(lambda first, stop: plain[first:stop], len(plain)).kinds, fresh
        start = index * self.manifest.block
        return kinds_in(self.manifest, start, start + len(plain)), fresh

    def in_flight(self, now: float) -> int:
        """Blocks that may still come. A sender that is silent or loses one now and then delays nobody else."""
        if self.is_silent:
            return 0
        return sum(now - since < SILENT_SECONDS for since in self.asked.values())

    @property
    def is_silent(self) -> bool:
        return self.retry >= SILENT_SECONDS

    def await_unasked(self, now: float) -> None:
        """It comes by itself; what has not come after a while is asked for."""
        self._next = len(self.partial.have)
        self.asked = dict.fromkeys(range(self._next), now)
        self.wake_at = now + self.retry

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
            self.asked.update(dict.fromkeys(fresh, now))
            self._request(fresh, again=False)
            self.wake_at = now + self.retry

    def store(self, index: int, data: memoryview, now: float) -> bool:
        """Take a block; True if it is new."""
        fresh = self.partial.write(index, data)
        self.asked.pop(index, None)
        if fresh:
            self.retry = RETRY_SECONDS
            self.wake_at = now + self.retry
        return fresh

    def wake(self, now: float, window: int) -> None:
        """Nothing came for a while: ask again for what is missing."""
        if now < self.wake_at:
            return
        missing = [i for i, here in enumerate(self.partial.have) if not here][: max(1, window)]
        self.asked = {i: self.asked.get(i, now) for i in missing}
        self._next = max(self._next, missing[-1] + 1 if missing else 0)
        self._request(missing, again=True)
        self.retry = min(2 * self.retry, LONGEST_RETRY_SECONDS)
        self.wake_at = now + self.retry

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
