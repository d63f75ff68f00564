"""Caps for the numbers of samples that devices claim.

The server half uses three claims as weights: an update's number of examples, an update's arrays with counts of
samples, and the counts in a hello. The caps are applied before the server half gets these claims.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from protofleet.coordinator.round.weights import weight_cap
from protofleet.methods.contract.base import Member, Reply
from protofleet.methods.contract.bridge import LazyPayload
from protofleet.methods.contract.contribution import capped
from protofleet.methods.contract.wants import TensorSpec


class CappedCounts(LazyPayload):
    """The arrays of an update. Each array that counts samples is scaled so that its sum is about `most` or less."""

    def __init__(self, whole: LazyPayload, counts: Collection[str], most: int) -> None:
        self._whole, self._counts, self._most = whole, counts, most

    def __getitem__(self, name: str) -> Tensor:
        found = self._whole[name]
        return at_most(found, self._most) if name in self._counts else found

    def dtype_and_shape(self, name: str) -> tuple[str, tuple[int, ...]]:
        return self._whole.dtype_and_shape(name)

    def flat(self, name: str, start: int, stop: int) -> Tensor:
        if name in self._counts:
            return self[name].reshape(-1)[start:stop]
        return self._whole.flat(name, start, stop)

    def __contains__(self, name: object) -> bool:
        return name in self._whole

    def __iter__(self) -> Iterator[str]:
        return iter(self._whole)

    def __len__(self) -> int:
        return len(self._whole)


def at_most(counts: Tensor, most: int) -> Tensor:
    """Scale counts so that they add up to about `most`. A count above 0 stays at least 1."""
    return torch.from_numpy(capped(counts.cpu().numpy(), most)).to(counts)


def capped_replies(
    replies: Sequence[Reply], wants: Mapping[str, TensorSpec], factor: float
) -> Sequence[Reply]:
    """Cap the examples and sample counts of each update at `factor` times the median of the claimed examples."""
    cap = weight_cap([reply.examples for reply in replies], factor)
    if math.isinf(cap):
        return replies
    counts = [name for name, spec in wants.items() if spec.of_examples and spec.capped]
    most = int(cap)
    return [_capped_reply(reply, counts, most) for reply in replies]


def _capped_reply(reply: Reply, counts: Sequence[str], most: int) -> Reply:
    payload = reply.payload
    if isinstance(payload, LazyPayload):
        payload = CappedCounts(payload, counts, most) if counts else payload
    else:  # A kept answer, which is in memory.
        payload = {**payload, **{name: at_most(payload[name], most) for name in counts if name in payload}}
    return replace(reply, examples=min(reply.examples, most), payload=payload)


def counted_once(members: Sequence[Member], classes: int) -> list[Member]:
    """Return the members with one sample of each class; in a run with noise, no device states its counts."""
    return [replace(member, counts=(1,) * classes) for member in members]


def capped_members(members: Sequence[Member], factor: float) -> list[Member]:
    """Cap the counts of each member.

    The number of examples stays unchanged, because it limits the member's uploads.
    """
    cap = weight_cap([member.examples for member in members], factor)
    if math.isinf(cap):
        return list(members)
    return [
        replace(m, counts=tuple(at_most(torch.tensor(m.counts), int(cap)).tolist())) if m.counts else m
        for m in members
    ]
