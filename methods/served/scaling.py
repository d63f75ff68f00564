"""The form of a model's input, and the scaling of this input for the network."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Final, TypeAlias

import torch
from torch import Tensor, nn

from protofleet.methods.contract.plan import Plan
from protofleet.protocol.settings.bounds import Within
from protofleet.protocol.settings.input_shape import AS_IT_IS, MOST_NUMBERS, PIXEL_SCALE

# Kind of the input by the number of axes of a sample: [F], [C, T] or [C, H, W].
KINDS: Final = {1: "vector", 2: "series", 3: "image"}
PIXELS: Final = (0.0, 255.0)
# `offset` and `by` in (x - offset) / by; each has one number for all channels, or one for each channel.
Scale: TypeAlias = tuple[tuple[float, ...], tuple[float, ...]]


@dataclass(frozen=True)
class Input:
    """The form of one sample in float32: numbers from `low` to `high`, which become -1 to 1.

    `low` and `high` have one number each for the whole sample, or one number for each channel (each index of the
    first axis).
    """

    shape: tuple[Annotated[int, Within(1, 65_536)], ...]
    low: tuple[float, ...] = PIXELS[:1]
    high: tuple[float, ...] = PIXELS[1:]

    def __post_init__(self) -> None:
        if len(self.shape) not in KINDS:
            raise ValueError(f"shape is {list(self.shape)}, it must have 1 to 3 axes")
        if not 0 < math.prod(self.shape) <= MOST_NUMBERS:
            raise ValueError(f"shape is {list(self.shape)}, it must have 1 to {MOST_NUMBERS:,} numbers")
        if not len(self.low) == len(self.high) or len(self.low) not in (1, self.shape[0]):
            raise ValueError(f"low and high must both have 1 number, or both {self.shape[0]} numbers")
        if not all(
            math.isfinite(low) and math.isfinite(high) and low < high
            for low, high in zip(self.low, self.high, strict=True)
        ):
            raise ValueError("low must be below high, and both must be finite")

    @property
    def kind(self) -> str:
        return KINDS[len(self.shape)]

    def range_in_words(self) -> str:
        low, high = (", ".join(f"{number:g}" for number in row) for row in (self.low, self.high))
        return f"{low} to {high}" if len(self.low) == 1 else f"({low}) to ({high})"

    def drawn(self, samples: int, seed: int = 0) -> Tensor:
        """Return random whole numbers between low and high; the same seed gives the same numbers."""
        generator = torch.Generator().manual_seed(seed)
        low, high = (_for_samples(row, self.shape) for row in (self.low, self.high))
        return (low + (high - low) * torch.rand(samples, *self.shape, generator=generator)).round()


def input_of(plan: Plan, scale: Scale | None = None) -> Input:
    """Return the input of the models of a run.

    The plan states the shape, and the scale belongs to the data. If `scale` is None, images have the scale of
    pixels, and other samples are not scaled.
    """
    shape = plan.input_shape
    offset, by = scale or (PIXEL_SCALE if shape.rank == 3 else AS_IT_IS)
    length = max(len(offset), len(by))
    pairs = list(zip(_to_length(offset, length), _to_length(by, length), strict=True))
    low, high = tuple(middle - half for middle, half in pairs), tuple(middle + half for middle, half in pairs)
    return Input(shape.axes, low, high)


def _to_length(row: tuple[float, ...], length: int) -> tuple[float, ...]:
    return row if len(row) == length else row * length


class Scaling(nn.Module):
    """The module that computes (2 x - (high + low)) / (high - low).

    For pixels, the results have the same bits as the results of a device's loader.
    """

    centre: Tensor
    width: Tensor

    def __init__(self, of: Input) -> None:
        super().__init__()
        low, high = (_for_samples(row, of.shape) for row in (of.low, of.high))
        # These numbers are not weights: they belong to the input, and `fill` does not replace them in a template.
        self.register_buffer("centre", (high + low).float(), persistent=False)
        self.register_buffer("width", (high - low).float(), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        return (2 * x - self.centre) / self.width


def _for_samples(row: tuple[float, ...], shape: tuple[int, ...]) -> Tensor:
    """Return one number for all channels, or an array [C, 1, ...]."""
    axes = (-1, *[1] * (len(shape) - 1)) if len(row) > 1 else ()
    return torch.tensor(row, dtype=torch.float64).reshape(axes)
