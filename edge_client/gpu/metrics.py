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
                "Most GPU memory that one piece of work of this process has used",
            ),
            CounterMetricFamily(
                f"{PREFIX}wait_seconds", "Time that work of this process waited until a GPU had room"
            ),
            CounterMetricFamily(
                f"{PREFIX}out_of_memory",
                "Pieces of work of this process for which the GPU's memory was too small; each is repeated when no "
                "other device works",
            ),
        ]

    def collect(self) -> Iterator[GaugeMetricFamily | CounterMetricFamily]:
        values = (self._usage.peak_bytes, self._usage.wait_seconds, self._usage.out_of_memory)
        for family, value in zip(self.describe(), values, strict=True):
            family.add_metric([], value)
            yield family
