"""The metrics of a device for Prometheus; docs/metrics.md is generated from their names and descriptions."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge
from prometheus_client.registry import Collector

from protofleet.edge_client.agent import Agent
from protofleet.edge_client.conversation.coordinator_watchdog import SILENT_SECONDS
from protofleet.edge_client.host.answer_energy import SEND, TRAIN
from protofleet.edge_client.host.sensors import PREFIX, Sensors
from protofleet.edge_client.view import AgentView
from protofleet.protocol.storage.disk import MIN_FREE
from protofleet.runtime.health import Check
from protofleet.runtime.metrics_page import (
    BrokerCertificate,
    ConnectionErrors,
    Endpoint,
    MeterCollector,
    exposed,
)
from protofleet.runtime.privacy_series import PrivacySeries

SECAGG_REFUSED: Final = "secagg_refused."  # followed by the reason


class DeviceSeries:
    """The counters and gauges of a device, with the texts that Prometheus and docs/metrics.md show."""

    def __init__(self, r: CollectorRegistry) -> None:
        self.round = Gauge(f"{PREFIX}round", "Last round in which the device worked", registry=r)
        self.answers = Counter(f"{PREFIX}answers", "Answers that the device has computed", registry=r)
        self.deaths = Counter(
            f"{PREFIX}training_deaths",
            'Trainings that died, for example because memory ran out; with trainer = "child" the agent continues',
            registry=r,
        )
        self.errors = Counter(
            f"{PREFIX}errors",
            "Errors in handling messages of the coordinator, after which the device continued; the log has "
            "each traceback",
            registry=r,
        )
        self.secagg_refused = Counter(
            f"{PREFIX}secagg_refused",
            "Steps of a masked sum that the device has refused; the log has the details",
            ["reason"],
            registry=r,
        )
        self.work = Counter(f"{PREFIX}work_seconds", "Time that the device worked on answers", registry=r)
        self.energy = Counter(
            f"{PREFIX}energy_joules",
            "Energy that the board has used up to the last computed answer, on boards with a readable power "
            "sensor. `phase` is train (work on answers) or send (everything else: sending, waiting)",
            ["phase"],
            registry=r,
        )
        self.outbox = Gauge(
            f"{PREFIX}outbox_answers",
            "Answers that wait for the coordinator's receipt; an answer of a run that is paused or has failed is not "
            "counted",
            registry=r,
        )
        self.fallbacks = Gauge(
            f"{PREFIX}fallbacks",
            "1 if files were damaged at the start and the device returned to the state before its last answer",
            registry=r,
        )
        self.full = Gauge(
            f"{PREFIX}disk_full", "1 while the device takes no work because its disk is full", registry=r
        )
        self.free = Gauge(
            f"{PREFIX}disk_free_bytes",
            f"Free disk space for state and answers, minus a reserve of {MIN_FREE >> 20} MiB",
            registry=r,
        )
        self.connected = Gauge(
            f"{PREFIX}connected", "1 while the device is connected to the broker", registry=r
        )
        self.silent = Gauge(
            f"{PREFIX}coordinator_silent",
            f"1 while the device is connected but has received nothing new for {SILENT_SECONDS:.0f} s: the "
            "coordinator is away, or the broker withholds or repeats its messages",
            registry=r,
        )


class DeviceMetrics:
    """An agent's observer, which counts events in a registry of its own, never in the global registry."""

    def __init__(self, device: AgentView, sensors: Sensors | None = None) -> None:
        self.registry = r = CollectorRegistry()
        self._device, self._bytes = device, MeterCollector(device.meter)
        r.register(self._bytes)
        self._bytes.begin(device.method)
        r.register(ConnectionErrors(lambda: device.connection_errors))
        r.register(BrokerCertificate(lambda: device.broker_certificate_ends))
        r.register(PrivacySeries(lambda: device.privacy))
        self.series = series = DeviceSeries(r)
        r.register(sensors or Sensors())
        series.outbox.set_function(lambda: float(device.awaits_receipt))
        series.fallbacks.set(device.fell_back)
        series.full.set_function(lambda: float(device.disk_full))
        series.free.set_function(lambda: float(device.disk_free_bytes))
        series.connected.set_function(lambda: float(device.connected))
        series.silent.set_function(lambda: float(device.coordinator_silent))

    def happened(self, what: str, **figures: float) -> None:
        self.series.round.set(figures["round"])
        if what == "planned":
            self._bytes.begin(self._device.method)
        if what == "died":
            self.series.deaths.inc()
        if what.startswith(SECAGG_REFUSED):
            self.series.secagg_refused.labels(what.removeprefix(SECAGG_REFUSED)).inc()
        if what == "erred":
            self.series.errors.inc()
        if what == "answered":
            self.series.answers.inc()
            self.series.work.inc(figures.get("seconds", 0.0))
            for name in (TRAIN, SEND):
                # Without a power sensor, the series must be absent. A series of 0 would look like a measurement.
                if name in figures:
                    self.series.energy.labels(name.partition(".")[2]).inc(figures[name])


@contextlib.contextmanager
def watch_device(
    agent: Agent, at: Endpoint, checks: Mapping[str, Check], collectors: Iterable[Collector], sensors: Sensors
) -> Iterator[None]:
    metrics = DeviceMetrics(agent.view, sensors)
    for collector in collectors:
        metrics.registry.register(collector)
    agent.observe(metrics)
    with exposed(metrics.registry, at, checks):
        yield
