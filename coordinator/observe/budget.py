"""The state of the budgets for observers, and the series that Prometheus reads in a run with a budget."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from prometheus_client.core import GaugeMetricFamily


@dataclass(frozen=True, slots=True)
class BudgetWait:
    """The reason why a run begins no round before the next month."""

    until: float  # Unix time at which the next month begins.
    words: str


@dataclass(frozen=True, slots=True)
class BudgetState:
    """The state of the budgets. Each mapping has an entry for each limit that is set, "run" or "month"."""

    limits: Mapping[str, int]  # Largest number of bytes of a device.
    used: Mapping[str, int]  # Largest number of bytes of a device so far.
    spent: Mapping[str, int]  # Number of devices whose budget does not hold one more round.
    price_per_gb: float
    wait: BudgetWait | None = None  # None if the run does not wait for the next month.
    # Used part of each limit on the whole run, "bytes" or "device_hours".
    totals: Mapping[str, float] = field(default_factory=dict)


class BudgetSeries:
    def __init__(self, state: Callable[[], BudgetState | None]) -> None:
        self._state = state

    @staticmethod
    def describe() -> list[GaugeMetricFamily]:
        limit = "`limit` is run or month; only in a run with a budget, docs/budget.md"
        whole = "; for the limits bytes and device_hours, the used part of the run's limit"
        return [
            GaugeMetricFamily(
                "protofleet_budget_devices_spent",
                f"Devices that get no task because their budget does not hold one more round. {limit}",
                labels=["limit"],
            ),
            GaugeMetricFamily(
                "protofleet_budget_used_ratio",
                "Bytes of the device that has used most, divided by the limit; counted once a minute and at the end "
                f"of a round{whole}",
                labels=["limit"],
            ),
            GaugeMetricFamily(
                "protofleet_budget_used_cost",
                "Cost of these bytes in your currency; only with budget.price_per_gb",
                labels=["limit"],
            ),
        ]

    def collect(self) -> Iterator[GaugeMetricFamily]:
        devices, ratio, cost = self.describe()
        if (state := self._state()) is not None:
            for limit, size in state.limits.items():
                devices.add_metric([limit], state.spent[limit])
                ratio.add_metric([limit], state.used[limit] / size)
                if state.price_per_gb:
                    cost.add_metric([limit], state.used[limit] / 1e9 * state.price_per_gb)
            for name, used in state.totals.items():
                ratio.add_metric([name], used)
        yield from (devices, ratio, cost)
