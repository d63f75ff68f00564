"""How large and how small the numbers of settings may be: said in the type of a field, as
`quorum: Annotated[int, Within(1, 1_000_000)]`, and enforced wherever a table is decoded.

A number outside of what its user can bear ends in a hang or in an error of torch, SQLite or the kernel, far from the
file that says it. So every number has a bound on both sides; test_absurd_settings.py
refuses one that has none.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Final


@dataclass(frozen=True, slots=True)
class Within:
    """What a number may be. Nothing but `also` lies outside of least to most; NaN lies nowhere."""

    least: float
    most: float
    above: bool = False  # least itself is too little
    below: bool = False  # most itself is too much
    also: tuple[tuple[float, str], ...] = ()  # numbers with a meaning of their own, and the meaning

    def __contains__(self, value: float) -> bool:
        if any(value == number for number, _ in self.also):
            return True
        return (
            (self.least < value if self.above else self.least <= value)
            and (value < self.most if self.below else value <= self.most)
        )  # fmt: skip

    def __str__(self) -> str:
        """As it stands behind "must be"."""
        least, most = "above" if self.above else "at least", "below" if self.below else "at most"
        words = f"{least} {shown(self.least)} and {most} {shown(self.most)}"
        return ", or ".join([*(f"{shown(number)} ({meaning})" for number, meaning in self.also), words])


def shown(value: float) -> str:
    """As TOML has it, and readable."""
    if isinstance(value, int) or (abs(value) < 1e15 and value == int(value)):
        return f"{int(value):_}"
    return repr(value)


LARGEST_COUNT: Final = 1_000_000
LONG_SECONDS: Final = 1e9  # 31 years; the kernel's and Python's waits take no more than some hundred of them
LARGE_BYTES: Final = 1 << 50
LONGEST_NORM: Final = 1e18  # its square is well within float32
LARGEST_FACTOR: Final = (
    1e6  # of what multiplies a loss: torch's float32 takes 1e38, and training nothing near that
)

Seed = Annotated[int, Within(-(1 << 63), (1 << 64) - 1)]  # all that torch takes
Rounds = Annotated[int, Within(1, 1_000_000_000)]  # as many as the wire and the index can count, with room
Classes = Annotated[int, Within(2, 65_536)]
Pixels = Annotated[int, Within(8, 512)]
Channels = Annotated[int, Within(1, 3)]
Width = Annotated[int, Within(1, 65_536)]  # numbers of a feature or an embedding
Devices = Annotated[int, Within(0, LARGEST_COUNT)]
Seconds = Annotated[float, Within(0, LONG_SECONDS)]
PositiveSeconds = Annotated[float, Within(0, LONG_SECONDS, above=True)]
# A loop that waits turns every 5 s.
Watchdog = Annotated[float, Within(6, LONG_SECONDS, also=((0, "no watch"),))]
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
PublicSamples = Annotated[int, Within(2, 1 << 20)]  # images that all devices have
PublicBatch = Annotated[int, Within(2, 1 << 12)]
