"""The vectors to which a rule is applied: the arrays of a group on the disk, or the rows of one class."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from protofleet.methods.contract.base import Payload
from protofleet.methods.parts.averaging import SLICE, flat_slice


@dataclass(frozen=True)
class ArrayPoints:
    """The vectors that consist of the numbers of several arrays; only one slice of all devices is in memory."""

    payloads: Sequence[Payload]
    sizes: Mapping[str, int]  # Array -> its count of numbers.
    broadcast: Payload

    def slices(self) -> Iterator[tuple[Tensor, Tensor]]:
        for name in self.sizes:
            for start, stop in self.ranges(name):
                yield self.slice(name, start, stop)

    def ranges(self, name: str) -> Iterator[tuple[int, int]]:
        step = max(1, SLICE // len(self.payloads))
        for start in range(0, self.sizes[name], step):
            yield start, min(start + step, self.sizes[name])

    def slice(self, name: str, start: int, stop: int) -> tuple[Tensor, Tensor]:
        """Return the numbers [start, stop) of an array, of all devices [m, n] and of the broadcast [n]."""
        x = torch.stack([flat_slice(payload, name, start, stop).double() for payload in self.payloads])
        sent = self.broadcast.get(name)
        if sent is None or sent.numel() != self.sizes[name]:
            return x, x.new_zeros(stop - start)
        return x, sent.reshape(-1)[start:stop].to(x)


@dataclass(frozen=True)
class RowPoints:
    """The rows of one class [m, D], and the row of the broadcast [D], which is zero if no row was sent."""

    rows: Tensor
    broadcast: Tensor

    def slices(self) -> Iterator[tuple[Tensor, Tensor]]:
        yield self.rows, self.broadcast
