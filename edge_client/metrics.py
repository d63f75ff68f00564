"""What a device shows Prometheus. Names and meanings: docs/metrics.md."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from prometheus_client import CollectorRegistry, Counter, Gauge
from prometheus_client.core import GaugeMetricFamily

from edge_client.agent import Agent
from protocol.exposition import MeterCollector, exposed

THERMAL = Path("/sys/class/thermal")


class Board:
    """Temperature and memory, read when somebody asks."""

    def __init__(self, thermal: Path = THERMAL, memory: Path = Path("/proc/meminfo")) -> None:
        self._thermal, self._memory = thermal, memory

    def collect(self) -> Iterator[GaugeMetricFamily]:
        heat = GaugeMetricFamily(
            "protofleet_device_temperature_celsius", "Of each thermal zone", labels=["zone"]
        )
        for zone in sorted(self._thermal.glob("thermal_zone*")):
            with contextlib.suppress(OSError, ValueError):  # some zones answer only now and then
                name = (zone / "type").read_text().strip()
                heat.add_metric([f"{zone.name}:{name}"], int((zone / "temp").read_text()) / 1000)
        yield heat
        with contextlib.suppress(OSError, ValueError, StopIteration):
            lines = self._memory.read_text().splitlines()
            free = next(line for line in lines if line.startswith("MemAvailable:"))
            yield GaugeMetricFamily(
                "protofleet_device_memory_available_bytes",
                "Free for new work",
                value=int(free.split()[1]) * 1024,
            )


class DeviceMetrics:
    """A watcher of the agent. The registry is its own, never the global one."""

    def __init__(self, agent: Agent) -> None:
        self.registry = r = CollectorRegistry()
        r.register(MeterCollector(agent.link.meter, ""))
        r.register(Board())
        self.round = Gauge("protofleet_device_round", "The last round it worked in", registry=r)
        self.trainings = Counter("protofleet_device_answers", "Answers worked out", registry=r)
        self.work = Counter("protofleet_device_work_seconds", "Time spent on answers", registry=r)
        self.outbox = Gauge("protofleet_device_outbox_answers", "Answers without a receipt", registry=r)
        self.outbox.set_function(lambda: float(agent.waiting))
        self.fallbacks = Gauge(
            "protofleet_device_fallbacks",
            "1 if it went back to before its last answer when it started",
            registry=r,
        )
        self.fallbacks.set(agent.memory.fallbacks)
        self.full = Gauge(
            "protofleet_device_disk_full", "1 while it takes on no work for want of room", registry=r
        )
        self.full.set_function(lambda: float(bool(agent.room.full)))
        self.free = Gauge("protofleet_device_disk_free_bytes", "Room for its state and answers", registry=r)
        self.free.set_function(lambda: float(agent.memory.disk.room(agent.memory.folder)))
        self.connected = Gauge("protofleet_device_connected", "1 while the session stands", registry=r)
        self.connected.set_function(lambda: float(agent.connected))
        self.silent = Gauge(
            "protofleet_device_coordinator_silent",
            "1 while connected and told nothing new for long",
            registry=r,
        )
        self.silent.set_function(lambda: float(agent.silent))

    def happened(self, agent: Agent, what: str, **figures: float) -> None:
        self.round.set(figures["round"])
        if what == "answered":
            self.trainings.inc()
            self.work.inc(figures.get("seconds", 0.0))


@contextlib.contextmanager
def watch_device(agent: Agent, port: int) -> Iterator[None]:
    metrics = DeviceMetrics(agent)
    agent.watchers = (*agent.watchers, metrics)
    with exposed(metrics.registry, port):
        yield
