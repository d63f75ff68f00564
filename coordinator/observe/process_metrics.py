"""The metrics of a coordinator process that belong to none of its runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily

from protofleet.coordinator.context import ProcessContext
from protofleet.coordinator.observe.series import ProcessSeries
from protofleet.protocol.wire.reasons import DisconnectReason
from protofleet.runtime.host.metrics import HostMetrics
from protofleet.runtime.metrics_page import BrokerCertificate, ConnectionErrors


class DepartureCounts:
    """The counts of devices that left, by reason.

    A series exists for each reason from the start, so that an alert can watch the series.
    """

    def __init__(self, context: ProcessContext | None) -> None:
        self._context = context

    @staticmethod
    def describe() -> list[CounterMetricFamily]:
        reasons = ", ".join(reason.value for reason in DisconnectReason)
        words = f"Devices that left with a message, by reason: {reasons}"
        return [CounterMetricFamily("protofleet_device_farewells", words, labels=["reason"])]

    def collect(self) -> Iterator[CounterMetricFamily]:
        (family,) = self.describe()
        for reason in DisconnectReason:
            family.add_metric([reason.value], self._context.departures[reason] if self._context else 0)
        yield family


class ProcessCounter:
    """A counter without labels, whose value another object of the process keeps."""

    def __init__(self, name: str, words: str, value: Callable[[], float]) -> None:
        self._name, self._words, self._value = name, words, value

    def describe(self) -> list[CounterMetricFamily]:
        return [CounterMetricFamily(self._name, self._words)]

    def collect(self) -> Iterator[CounterMetricFamily]:
        (family,) = self.describe()
        family.add_metric([], self._value())
        yield family


def process_counters(context: ProcessContext | None) -> list[ProcessCounter]:
    """Return the counters of a process; without a context, they are for the page of metrics."""
    return [
        ProcessCounter(
            "protofleet_peers_cut_off",
            "Errors in handling a message from or to a device, after which the device's messages were "
            "ignored for a while",
            lambda: context.error_boundary.cut_off if context else 0,
        ),
        ProcessCounter(
            "protofleet_higher_epoch_hellos",
            "Hellos whose header has a higher epoch than this coordinator. The coordinator does not follow such "
            "an epoch, because any device can write it; docs/restore-a-coordinator.md",
            lambda: context.higher_epochs if context else 0,
        ),
    ]


def process_registry(context: ProcessContext, host: HostMetrics, unclean_at: float) -> CollectorRegistry:
    """Return the registry of a process; `unclean_at` is the Unix time of its last start after a crash."""
    r, transport = CollectorRegistry(), context.link.transport
    r.register(ConnectionErrors(lambda: transport.errors.count))
    r.register(BrokerCertificate(lambda: transport.broker_certificate_ends))
    r.register(host)
    series = ProcessSeries(r)
    series.connected.set_function(lambda: float(context.connected))
    series.epoch.set(context.link.epoch)
    series.unclean_start.set(unclean_at)
    series.banned.set_function(lambda: float(len(context.bans.banned)))
    r.register(DepartureCounts(context))
    for counter in process_counters(context):
        r.register(counter)
    return r
