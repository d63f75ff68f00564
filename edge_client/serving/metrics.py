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
                "Round of each model that is kept for serving. `which` is current, champion (the highest "
                "accuracy on validation images) or pinned. A series is missing while there is no such model",
                labels=["which"],
            ),
            CounterMetricFamily(f"{PREFIX}changes", "Changes of the current version"),
            CounterMetricFamily(
                f"{PREFIX}hook_failures",
                "Times that models.on_model could not be started, ended with an exit code other than 0, or was "
                "killed",
            ),
            CounterMetricFamily(
                f"{PREFIX}write_failures",
                "Versions that could not be written or served, for example on a full disk; training continues",
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
