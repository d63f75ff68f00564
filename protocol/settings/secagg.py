"""The [secagg] table: the coordinator receives masked vectors of the devices, and computes only their sum."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Final, Literal, TypeAlias, get_args

from protofleet.protocol.settings.bounds import PositiveSeconds, Within
from protofleet.protocol.settings.reader import demand_within

MOST_DEVICES: Final = 512  # devices of one sum
LEAST_FRACTION: Final = 6  # fewest bits behind the point with which a sum is useful
BITS: Final = (16, 24, 32)
Bits = Annotated[int, Within(min(BITS), max(BITS))]
Limit = Annotated[float, Within(1e-3, 65_536)]
SumDevices = Annotated[int, Within(3, MOST_DEVICES)]
Metrics: TypeAlias = Literal["off", "each"]


@dataclass(frozen=True)
class SecaggSettings:
    """The [secagg] table: the coordinator gets only the sum of what the devices send."""

    bits: Bits = 32
    """Bits of each number that a device sends, 16, 24 or 32."""
    limit: Limit = 8.0
    """Largest absolute value of a number that a device sends; a device with a larger number takes no part in the
    round.
    """
    least: SumDevices = 3
    """Fewest devices whose sum the coordinator may learn."""
    holders: SumDevices = 3
    """Fewest devices that must hold a class for its row to be in a sum, for methods that send rows of classes."""
    strict_cohort: bool = True
    """If true, a method that sends rows of classes sums only the devices of the last sum, or a cohort that differs by
    at least `holders` devices; otherwise the difference of two sums shows single devices.
    """
    patience_seconds: PositiveSeconds = 30.0
    """Seconds that the devices have for each of the short phases after the training."""
    metrics: Metrics = "off"
    """Accuracy and loss of single devices, `off` (devices do not send them) or `each` (devices send them)."""

    def __post_init__(self) -> None:
        demand_within(self)
        if self.bits not in BITS:
            raise ValueError(f"bits is {self.bits}, it must be one of {', '.join(map(str, BITS))}")
        if self.metrics not in get_args(Metrics):
            raise ValueError(f"metrics is {self.metrics!r}, it must be one of {', '.join(get_args(Metrics))}")
        self.fraction(self.least)

    def fraction(self, devices: int) -> int:
        """Return the most bits behind the point with which the sum of this number of devices cannot wrap.

        Raise ValueError if there are too few such bits.
        """
        found = 30
        while found >= 0 and devices * -int(-self.limit * 2**found // 1) * 2 + 1 > 1 << self.bits:
            found -= 1
        if found < LEAST_FRACTION:
            raise ValueError(
                f"secagg.bits is {self.bits} and secagg.limit is {self.limit:g}: the sum of {devices} devices then "
                f"has fewer than {LEAST_FRACTION} bits behind the point; use more bits, a smaller limit, or a "
                "smaller policy.cohort"
            )
        return found
