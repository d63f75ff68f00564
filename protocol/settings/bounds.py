"""Define how small and how large the numbers of settings may be.

The type of a field contains the bounds, as in `quorum: Annotated[int, Within(1, 1_000_000)]`. The bounds are
checked whenever a table is decoded. Without bounds, a number that is far too small or too large could make
the program hang. It could also cause an error of torch, SQLite or the kernel that does not name the settings
file. So every number has a lower and an upper bound. test_absurd_settings.py fails for a number without
bounds.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Final


@dataclass(frozen=True, slots=True)
class Within:
    """The range of values that a number may have.

    Values outside of `least` to `most` are allowed only if `also` contains them. NaN is never allowed.
    """

    least: float
    most: float
    above: bool = False  # if true, `least` itself is not allowed
    below: bool = False  # if true, `most` itself is not allowed
    also: tuple[tuple[float, str], ...] = ()  # further allowed numbers, each with its special meaning

    def __contains__(self, value: float) -> bool:
        if any(value == number for number, _ in self.also):
            return True
        return (
            (self.least < value if self.above else self.least <= value)
            and (value < self.most if self.below else value <= self.most)
        )  # fmt: skip

    def __str__(self) -> str:
        """Return the words after "must be" in an error message."""
        least, most = "above" if self.above else "at least", "below" if self.below else "at most"
        words = f"{least} {shown(self.least)} and {most} {shown(self.most)}"
        return ", or ".join([*(f"{shown(number)} ({meaning})" for number, meaning in self.also), words])


def shown(value: float) -> str:
    """Return the number in TOML form, with underscores between groups of digits."""
    if isinstance(value, int) or (abs(value) < 1e15 and value == int(value)):
        return f"{int(value):_}"
    return repr(value)


LARGEST_COUNT: Final = 1_000_000
LONG_SECONDS: Final = 1e9  # 31 years; the kernel and Python can wait for some hundred years at most
LARGE_BYTES: Final = 1 << 50
LONGEST_NORM: Final = 1e18  # The square of this number is still in the range of a float32.
# Largest factor of a loss. A float32 can hold 1e38, but training does not work with such factors.
LARGEST_FACTOR: Final = 1e6

Seed = Annotated[int, Within(-(1 << 63), (1 << 64) - 1)]  # all seeds that torch accepts
# This maximum is below the limits for the number of a round in a message and in the coordinator's database.
Rounds = Annotated[int, Within(1, 1_000_000_000)]
Classes = Annotated[int, Within(2, 65_536)]
Pixels = Annotated[int, Within(8, 512)]
Channels = Annotated[int, Within(1, 3)]
Width = Annotated[int, Within(1, 65_536)]  # number of elements in a feature vector or an embedding
Block = Annotated[int, Within(0, 16)]  # the blocks of EfficientNet-Lite0, and its last convolution
Cells = Annotated[int, Within(1, 16)]
Devices = Annotated[int, Within(0, LARGEST_COUNT)]
Seconds = Annotated[float, Within(0, LONG_SECONDS)]
PositiveSeconds = Annotated[float, Within(0, LONG_SECONDS, above=True)]
# At least 6 s, because an idle loop runs only once every 5 s.
Watchdog = Annotated[float, Within(6, LONG_SECONDS, also=((0, "no watch"),))]
Slots = Annotated[int, Within(1, 8)]  # A state names at most 8 active runs.
Threads = Annotated[int, Within(1, 1024, also=((0, "torch decides"),))]
Port = Annotated[int, Within(1, 65_535)]
OptionalPort = Annotated[int, Within(1, 65_535, also=((0, "none"),))]
Bytes = Annotated[int, Within(0, LARGE_BYTES)]
PositiveBytes = Annotated[int, Within(1, LARGE_BYTES)]
Weight = Annotated[float, Within(0, LARGEST_FACTOR)]
Temperature = Annotated[float, Within(1e-6, LARGEST_FACTOR)]
Rate = Annotated[float, Within(0, 1000, above=True)]
Momentum = Annotated[float, Within(0, 1, below=True)]
Share = Annotated[float, Within(0, 1)]
PositiveShare = Annotated[float, Within(0, 1, above=True)]
Epochs = Annotated[int, Within(1, LARGEST_COUNT)]
Batch = Annotated[int, Within(1, 1_000_000_000)]
PublicSamples = Annotated[int, Within(2, 1 << 20)]  # number of public images; every device has all of them
PublicBatch = Annotated[int, Within(2, 1 << 12)]
