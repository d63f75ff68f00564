"""Why devices took their leave: counted by a closed list, and said in the log."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily

from protofleet.protocol.wire.reasons import Farewell, farewell_of

log = logging.getLogger("protofleet.coordinator")


class Farewells:
    def __init__(self) -> None:
        self._counted: Counter[Farewell] = Counter()

    def __getitem__(self, reason: Farewell) -> int:
        return self._counted[reason]

    def bidden(self, device: str, reason: str, aloud: bool, over: bool = True) -> None:
        """`aloud`: whether there is still room in the log for words of peers. `over`: the run is."""
        known = farewell_of(reason)
        if known is Farewell.FINISHED and not over:
            known = Farewell.OTHER  # nobody can have told it so
        self._counted[known] += 1
        if aloud and known is not Farewell.FINISHED:
            log.warning("%s leaves: %.200s", device, reason or "it does not say why")

    @staticmethod
    def describe() -> list[CounterMetricFamily]:
        words = f"Devices that took their leave: {', '.join(reason.value for reason in Farewell)}"
        return [CounterMetricFamily("protofleet_device_farewells", words, labels=["reason"])]

    def collect(self) -> Iterator[CounterMetricFamily]:
        """For Prometheus; those reasons that nobody has given too, so that an alert has a series to watch."""
        (family,) = self.describe()
        for reason in Farewell:
            family.add_metric([reason.value], self[reason])
        yield family
