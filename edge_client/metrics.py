"""What a device shows Prometheus. Names and meanings: docs/metrics.md."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping

from prometheus_client import CollectorRegistry, Counter, Gauge

from edge_client.agent import Agent
from edge_client.board import Board
from protocol.exposition import MeterCollector, exposed
from protocol.place import Place
from protocol.vitals import Check


class DeviceMetrics:
    """A watcher of the agent. The registry is its own, never the global one."""

    def __init__(self, agent: Agent, board: Board | None = None) -> None:
        self.registry = r = CollectorRegistry()
        r.register(MeterCollector(agent.link.meter, ""))
        r.register(board or Board())
        self.round = Gauge("protofleet_device_round", "The last round it worked in", registry=r)
        self.trainings = Counter("protofleet_device_answers", "Answers worked out", registry=r)
        self.deaths = Counter(
            "protofleet_device_training_deaths", "Trainings ended in the middle", registry=r
        )
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
        if what == "died":
            self.deaths.inc()
        if what == "answered":
            self.trainings.inc()
            self.work.inc(figures.get("seconds", 0.0))


@contextlib.contextmanager
def watch_device(
    agent: Agent, port: int, checks: Mapping[str, Check] | None = None, place: Place | None = None
) -> Iterator[None]:
    metrics = DeviceMetrics(agent)
    if place is not None:
        metrics.registry.register(place)
    agent.watchers = (*agent.watchers, metrics)
    with exposed(metrics.registry, port, checks):
        yield
