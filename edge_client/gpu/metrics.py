"""The GPU usage of a process as metrics for Prometheus."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

from protofleet.edge_client.gpu.admission import Usage

PREFIX: Final = "protofleet_device_gpu_"


class UsageCollector:
    """The collector of GPU usage, which reads the values when Prometheus scrapes them."""

    def __init__(self, usage: Usage) -> None:
        self._usage = usage

    @staticmethod
    def describe() -> list[GaugeMetricFamily | CounterMetricFamily]:
        return [
            GaugeMetricFamily(
                f"{PREFIX}peak_bytes",
                "The most of a GPU's memory that a piece of work of this process has taken",
            ),
            CounterMetricFamily(
                f"{PREFIX}wait_seconds", "Time that work of this process waited for others to leave a GPU"
            ),
            CounterMetricFamily(
                f"{PREFIX}out_of_memory",
                "Pieces of work of this process that a GPU had too little memory for; each is done again when no "
                "other device works",
            ),
        ]

    def collect(self) -> Iterator[GaugeMetricFamily | CounterMetricFamily]:
        values = (self._usage.peak_bytes, self._usage.wait_seconds, self._usage.out_of_memory)
        for family, value in zip(self.describe(), values, strict=True):
            family.add_metric([], value)
            yield family
