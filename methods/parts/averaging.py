"""Averages over all replies of a cohort. They need memory for one array and a slice of another array.

For example, a coordinator with 20 updates of 45 MB on its disk never has two updates in memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final

from torch import Tensor

from protofleet.methods.contract.base import Payload, Reply
from protofleet.methods.contract.bridge import LazyPayload
from protofleet.methods.contract.liveness import report_progress

SLICE: Final = 1 << 20  # Count of numbers that are summed at a time; in float64 they take 8 MB.


def weighted_mean(
    replies: Sequence[Reply], names: Iterable[str], weights: Mapping[str, float] | None = None
) -> Mapping[str, Tensor]:
    """Return the mean of each array over all replies. The weights are the numbers of examples (FedAvg, alg. 1).

    The weights are equal if no device has examples. A method may give its own `weights` by device; their sum need
    not be 1. A late update counts less (`Reply.weight`). The mean of an array is computed when the array is read.
    Arrays of whole numbers (num_batches_tracked) are not averaged: the array of the first device is used.
    """
    return WeightedMean(shares_of(replies, weights), names)


def shares_of(
    replies: Sequence[Reply], weights: Mapping[str, float] | None = None
) -> list[tuple[Reply, float]]:
    """Return the share of each reply in the mean, ordered by device; the order of arrival has no effect."""
    ordered = sorted(replies, key=lambda reply: reply.device)
    own = [float(reply.examples) if weights is None else weights[reply.device] for reply in ordered]
    own = own if sum(own) else [1.0] * len(ordered)
    found = [w * reply.weight for w, reply in zip(own, ordered, strict=True)]
    total = sum(found)
    return [(r, w / total) for r, w in zip(ordered, found, strict=True)]


def plain_mean(replies: Sequence[Reply], names: Iterable[str]) -> Mapping[str, Tensor]:
    """Return the mean in which each device counts once."""
    return weighted_mean([replace(reply, examples=1) for reply in replies], names)


class WeightedMean(Mapping[str, Tensor]):
    def __init__(self, shares: Sequence[tuple[Reply, float]], names: Iterable[str]) -> None:
        self._shares = [share for _, share in shares]
        self._payloads = [reply.payload for reply, _ in shares]
        self._names = tuple(names)

    def __getitem__(self, name: str) -> Tensor:
        if name not in self._names:
            raise KeyError(name)
        first = self._payloads[0]
        # An array from the disk is a new tensor, so it needs no copy.
        mean = first[name] if isinstance(first, LazyPayload) else first[name].clone()
        if mean.is_floating_point():
            flat = mean.view(-1)
            for start in range(0, flat.numel(), SLICE):
                self._sum_slice(name, flat[start : start + SLICE], start)
        return mean

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    def _sum_slice(self, name: str, first: Tensor, start: int) -> None:
        """Replace a slice of the first device's array, in place, by the mean of all devices."""
        total = first.double() * self._shares[0]
        for payload, share in zip(self._payloads[1:], self._shares[1:], strict=True):
            total.add_(flat_slice(payload, name, start, start + len(first)), alpha=share)
        first.copy_(total)


def flat_slice(payload: Payload, name: str, start: int, stop: int) -> Tensor:
    """Return the numbers [start, stop) of the flattened array; read no other numbers from the disk."""
    report_progress()
    if isinstance(payload, LazyPayload):
        return payload.flat(name, start, stop)
    return payload[name].reshape(-1)[start:stop]
