"""The metrics of the models that a device serves, for Prometheus."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

from protofleet.edge_client.serving.serving import ModelServing
from protofleet.edge_client.serving.versions import CHAMPION, CURRENT, PINNED

PREFIX: Final = "protofleet_device_model_"


class ModelCollector:
    """The collector of model metrics, which reads the values when Prometheus scrapes them.

    `unwritten` returns the number of versions that the training could not write.
    """

    def __init__(self, serving: ModelServing, unwritten: Callable[[], int]) -> None:
        self._serving, self._unwritten = serving, unwritten

    @staticmethod
    def describe() -> list[GaugeMetricFamily | CounterMetricFamily]:
        return [
            GaugeMetricFamily(
                f"{PREFIX}round",
                "The round that a served model is of; which is current, champion (the highest accuracy on "
                "validation images) or pinned, as far as there are such",
                labels=["which"],
            ),
            CounterMetricFamily(f"{PREFIX}changes", "Times that current has named another version"),
            CounterMetricFamily(
                f"{PREFIX}hook_failures",
                "Times that models.on_model could not be run, ended with another code than 0, or was killed",
            ),
            CounterMetricFamily(
                f"{PREFIX}write_failures",
                "Versions that could not be written or served, as on a full disk; training goes on",
            ),
        ]

    def collect(self) -> Iterator[GaugeMetricFamily | CounterMetricFamily]:
        rounds, *counters = self.describe()
        for link in (CURRENT, CHAMPION, PINNED):
            if (version := self._serving.versions.named(link)) is not None:
                rounds.add_metric([link], version.round)
        yield rounds
        serving = self._serving
        values = (serving.changes, serving.hook_failures, serving.failures + self._unwritten())
        for family, value in zip(counters, values, strict=True):
            family.add_metric([], value)
            yield family
