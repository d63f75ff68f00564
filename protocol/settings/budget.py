"""The [budget] table: limits on the bytes or the money of each device, and on the run as a whole."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Final

from protofleet.protocol.settings.bounds import Within
from protofleet.protocol.settings.reader import demand_within
from protofleet.protocol.settings.size import PositiveSize

GB: Final = 10**9
LARGEST_AMOUNT: Final = 1e9  # Money, in any currency.
Price = Annotated[float, Within(1e-6, LARGEST_AMOUNT, also=((0, "unknown"),))]
Money = Annotated[float, Within(1e-6, LARGEST_AMOUNT)]
Hours = Annotated[float, Within(0, LARGEST_AMOUNT, above=True)]


@dataclass(frozen=True)
class BudgetSettings:
    """The [budget] table: limits on what devices transfer, in bytes or in money, and on the time that they work."""

    bytes_per_device: PositiveSize | None = None
    """Largest number of bytes of each device in the run, such as `200 MB`; if left out, there is no such limit."""
    month_bytes_per_device: PositiveSize | None = None
    """Largest number of bytes of each device in a calendar month (UTC), over all runs in the same folder; if left
    out, there is no such limit.
    """
    price_per_gb: Price = 0.0
    """Price of 1 GB (10^9 bytes) in your currency; 0 means that no amounts of money are shown."""
    money_per_device: Money | None = None
    """Largest cost of each device in the run, in the currency of `price_per_gb`; if left out, there is no such limit.
    """
    bytes: PositiveSize | None = None
    """Number of bytes of all devices together after which the run ends early; if left out, there is no such limit."""
    device_hours: Hours | None = None
    """Hours of work of all devices together after which the run ends early; if left out, there is no such limit."""

    def __post_init__(self) -> None:
        demand_within(self)
        if self.money_per_device is not None and not self.price_per_gb:
            raise ValueError(
                f"money_per_device is {self.money_per_device:g}, but price_per_gb is not set; set the price of 1 GB, "
                "or set bytes_per_device instead"
            )
        if not (self.limits_devices or self.bytes is not None or self.device_hours is not None):
            raise ValueError(
                "budget sets no limit; set bytes_per_device, month_bytes_per_device, money_per_device, bytes or "
                "device_hours, or leave budget out"
            )

    @property
    def limits_devices(self) -> bool:
        """Return whether there is a limit for each device."""
        return self.run_limit is not None or self.month_bytes_per_device is not None

    @property
    def run_limit(self) -> int | None:
        """Return the most bytes of a device in the run; None if the run has no limit."""
        limits = [] if self.bytes_per_device is None else [int(self.bytes_per_device)]
        if self.money_per_device is not None:
            limits.append(int(self.money_per_device / self.price_per_gb * GB))
        return min(limits, default=None)

    def cost_words(self, size: float) -> str:
        """Return the cost of a number of bytes as words in brackets; "" without a price."""
        if not self.price_per_gb:
            return ""
        cost = size / GB * self.price_per_gb
        return f" (cost {cost:.2f})" if cost >= 1 else f" (cost {cost:.2g})"
