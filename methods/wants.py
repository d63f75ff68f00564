"""What must come back from a device, stated where it is asked for and checked before a method sees it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor

SLICE = 1 << 20  # numbers looked at together: isfinite makes copies, and an array may be a whole model

Dim: TypeAlias = int | str  # a name stands for any length; equal names mean equal lengths

ITEM_BYTES: dict[str, int] = {
    name: getattr(torch, name).itemsize
    for name in ("float32", "float16", "float64", "int64", "int32", "uint8", "bool")
}


@dataclass(frozen=True, slots=True)
class Want:
    shape: tuple[Dim, ...]
    dtype: str = "float32"
    low: float | None = None
    high: float | None = None
    most: int = 1 << 20  # the largest length that a named dimension may have
    optional: bool = False

    def most_bytes(self) -> int:
        lengths = [self.most if isinstance(d, str) else d for d in self.shape]
        return math.prod(lengths) * ITEM_BYTES[self.dtype]


def like(payload: Mapping[str, Tensor]) -> dict[str, Want]:
    """The same names, shapes and dtypes back: what averaging weights needs."""
    return {name: Want(tuple(v.shape), str(v.dtype).removeprefix("torch.")) for name, v in payload.items()}


def problem_with(wants: Mapping[str, Want], payload: Mapping[str, Tensor]) -> str | None:
    """The first thing wrong with an answer, in words, or None."""
    if extra := sorted(set(payload) - set(wants)):
        return f"{extra[0]} was not asked for"
    lengths: dict[str, int] = {}
    for name, want in wants.items():
        value = payload.get(name)
        if value is None:
            if want.optional:
                continue
            return f"no {name}"
        if problem := _problem(name, want, value, lengths):
            return problem
    return None


def _problem(name: str, want: Want, value: Tensor, lengths: dict[str, int]) -> str | None:
    if (dtype := str(value.dtype).removeprefix("torch.")) != want.dtype:
        return f"{name} is {dtype}, not {want.dtype}"
    if len(value.shape) != len(want.shape):
        return f"{name} is {tuple(value.shape)}, not {want.shape}"
    for length, dim in zip(value.shape, want.shape, strict=True):
        expected = lengths.setdefault(dim, length) if isinstance(dim, str) else dim
        if length != expected:
            where = f" with {dim} = {expected}" if isinstance(dim, str) else ""
            return f"{name} is {tuple(value.shape)}, not {want.shape}{where}"
        if isinstance(dim, str) and length > want.most:
            return f"{name} is {tuple(value.shape)}, over the limit of {want.most} for {dim}"
    if value.is_floating_point() and not all(bool(part.isfinite().all()) for part in _slices(value)):
        return f"{name} is not finite"
    if value.numel() and want.low is not None and float(value.min()) < want.low:
        return f"{name} has {float(value.min()):g}, below {want.low:g}"
    if value.numel() and want.high is not None and float(value.max()) > want.high:
        return f"{name} has {float(value.max()):g}, above {want.high:g}"
    return None


def _slices(value: Tensor) -> Iterator[Tensor]:
    flat = value.reshape(-1)
    return (flat[start : start + SLICE] for start in range(0, flat.numel(), SLICE))


def most_bytes(wants: Mapping[str, Want]) -> int:
    """The largest body an honest answer can make, its table included."""
    table = sum(len(name) + 64 for name in wants) + 64
    return table + sum(want.most_bytes() for want in wants.values())
