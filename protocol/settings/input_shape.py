"""Describe the shape of one sample: a vector [F], a series [C, T] or an image [C, H, W].

A run's plan, a device's data and a network use this form to describe their input. The task describes the
output.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Final, TypeAlias

from protofleet.protocol.settings.bounds import Within

KINDS: Final = {1: "vectors", 2: "series", 3: "images"}  # kinds of samples by their number of axes
FORMS: Final = {1: "[F]", 2: "[C, T]", 3: "[C, H, W]"}
MOST_NUMBERS: Final = 1 << 24  # largest number of values in one sample; as float32, these values take 64 MB
USUAL_SIDE: Final = 32
USUAL_CHANNELS: Final = 3
PIXEL_CHANNELS: Final = (1, 3)  # numbers of channels that the older setting `channels` may have
PIXEL_SIDES: Final = range(8, 513)
# Each pair is (offset, divisor), for all channels. A value x becomes (x - offset) / divisor. PIXEL_SCALE changes
# 0..255 to -1..1, and AS_IT_IS changes nothing.
PIXEL_SCALE: Final = ((127.5,), (127.5,))
AS_IT_IS: Final = ((0.0,), (1.0,))

Axis = Annotated[int, Within(1, 65_536)]
# Empty for square images: the settings `size` and `channels` describe them.
Axes: TypeAlias = tuple[Axis, ...]


@dataclass(frozen=True, slots=True)
class InputShape:
    axes: tuple[int, ...]

    def __post_init__(self) -> None:
        if len(self.axes) not in KINDS:
            raise ValueError(
                f"shape is {list(self.axes)}, it must be {', '.join(FORMS.values())}: a vector, a series or an image"
            )
        for axis in self.axes:
            if not 1 <= axis <= 65_536:
                raise ValueError(
                    f"shape is {list(self.axes)}, each number must be at least 1 and at most 65_536"
                )
        if self.numbers > MOST_NUMBERS:
            raise ValueError(
                f"shape is {list(self.axes)}, which means {self.numbers:,} numbers per sample; at most "
                f"{MOST_NUMBERS:,} are allowed"
            )

    @property
    def rank(self) -> int:
        return len(self.axes)

    @property
    def kind(self) -> str:
        return KINDS[self.rank]

    @property
    def channels(self) -> int:
        """Return the number of channels. In a vector, each number is a channel of its own."""
        return self.axes[0]

    @property
    def spatial(self) -> tuple[int, ...]:
        return self.axes[1:]

    @property
    def numbers(self) -> int:
        return math.prod(self.axes)

    @property
    def is_square_picture(self) -> bool:
        """Return whether the shape can be described by size and channels, which every version understands."""
        if self.rank != 3 or self.channels not in PIXEL_CHANNELS:
            return False
        height, width = self.spatial
        return height == width and height in PIXEL_SIDES

    def settings(self) -> dict[str, Any]:
        """Return the shape as keys of a settings file or of a plan."""
        if self.is_square_picture:
            return {"size": self.spatial[0], "channels": self.channels}
        return {"shape": self.axes}

    def __str__(self) -> str:
        return f"{self.kind} {list(self.axes)}"


TASK: Final = "classification"


def demand_classification(task: str) -> None:
    """Raise ValueError for any task other than classification."""
    if task != TASK:
        raise ValueError(
            f"task is {task[:40]!r}, but this version learns only classes; leave task out, and divide the samples "
            "into classes, for example by ranges of a number"
        )


def shape_of(axes: Sequence[int], size: int, channels: int) -> InputShape:
    """Return the shape from the setting `shape`, or from the settings `size` and `channels`.

    Raise ValueError if both are used.
    """
    if not axes:
        if channels not in PIXEL_CHANNELS:
            raise ValueError(
                f"channels is {channels}, it must be 1 (grey) or 3 (colour); the setting shape allows any number "
                "of channels that the source has"
            )
        return InputShape((channels, size, size))
    for name, value, usual in (("size", size, USUAL_SIDE), ("channels", channels, USUAL_CHANNELS)):
        if value != usual:
            raise ValueError(
                f"shape is {list(axes)} and {name} is {value}; shape alone is enough, leave {name} out"
            )
    return InputShape(tuple(axes))
