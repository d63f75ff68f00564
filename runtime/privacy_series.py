"""The series that show how much of its privacy budget a device has used, on the pages of coordinators and devices."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from prometheus_client.core import GaugeMetricFamily


@dataclass(frozen=True, slots=True)
class PrivacyState:
    """The privacy of a run with `[dp]`."""

    unit: str  # "device" or "sample".
    limit: float  # Largest epsilon that a device may give away.
    epsilon: Mapping[str, float]  # Device -> epsilon that it has given away so far.


class PrivacySeries:
    def __init__(self, state: Callable[[], PrivacyState | None]) -> None:
        """Set up the series; `state` returns None if the run has no `[dp]`."""
        self._state = state

    @staticmethod
    def describe() -> list[GaugeMetricFamily]:
        only = "only in a run with `[dp]`, docs/dp.md"
        return [
            GaugeMetricFamily(
                "protofleet_privacy_epsilon",
                "Epsilon of all releases of a device so far. A device counts its own releases; a coordinator counts "
                f"those that it has accepted. `unit` is device or sample; {only}",
                labels=["device", "unit"],
            ),
            GaugeMetricFamily(
                "protofleet_privacy_epsilon_limit",
                f"Largest epsilon of a device in this run, which is `dp.epsilon`; {only}",
                labels=["unit"],
            ),
        ]

    def collect(self) -> Iterator[GaugeMetricFamily]:
        epsilon, limit = self.describe()
        if (state := self._state()) is not None:
            limit.add_metric([state.unit], state.limit)
            for device, spent in sorted(state.epsilon.items()):
                epsilon.add_metric([device, state.unit], spent)
        yield from (epsilon, limit)
