"""What a coordinator shows Prometheus. Names and meanings: docs/metrics.md."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Mapping
from typing import Any, Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import CounterMetricFamily

from coordinator.journal import ByView, RoundRecord
from coordinator.service import Service
from coordinator.spool import Spool
from protocol.exposition import MeterCollector, exposed
from protocol.vitals import Check

SECONDS: Final = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 7200)
MAX_DEVICES: Final = 1000  # series of one device each; beyond that they share one called "other"
MAX_VIEWS: Final = 32
ROUNDS_BEHIND: Final = (0, 1, 2, 3, 5, 8)


class Names:
    """Values of a label that devices choose: the first so many, then "other", or a liar makes series without end."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._known: set[str] = set()

    def label(self, name: str) -> str:
        if name in self._known or len(self._known) < self._most:
            self._known.add(name)
            return name
        return "other"


class Damage:
    """What this coordinator has found damaged on its disk, and gone on without."""

    def __init__(self, spool: Spool) -> None:
        self._spool = spool

    @staticmethod
    def describe() -> list[CounterMetricFamily]:
        words = (
            "Damaged files that this coordinator has gone on without: a snapshot (the round before is replayed), "
            "the index (its copy is used), an answer (its device is asked again); docs/reliability.md"
        )
        return [CounterMetricFamily("protofleet_checkpoint_fallbacks", words, labels=["what"])]

    def collect(self) -> Iterator[CounterMetricFamily]:
        (found,) = self.describe()
        for what in ("snapshot", "index", "answer"):
            found.add_metric([what], self._spool.fallbacks[what])
        yield found


class Metrics:
    """A sink of the journal. The registry is its own, never the global one."""

    def __init__(self, service: Service) -> None:
        self.registry = CollectorRegistry()
        self._method = service.plan.method
        self.registry.register(MeterCollector(service.link.meter, self._method))
        self.registry.register(Damage(service.spool))
        self._devices, self._domains, self._views = Names(MAX_DEVICES), Names(MAX_DEVICES), Names(MAX_VIEWS)
        r = self.registry
        self.round = Gauge("protofleet_round", "The round in hand, from 1", registry=r)
        self.rounds = Gauge("protofleet_rounds_planned", "Rounds that the run shall have", registry=r)
        self.epoch = Gauge("protofleet_coordinator_epoch", "Grows with every start", registry=r)
        self.quorum = Gauge("protofleet_quorum", "Answers without which there is no round", registry=r)
        self.roster = Gauge("protofleet_devices_present", "Devices that have said hello", registry=r)
        self.unsteady = Gauge(
            "protofleet_devices_unsteady", "Devices that come and go too often to be counted on", registry=r
        )
        self.commit = Gauge(
            "protofleet_round_last_commit_timestamp_seconds", "When the last round ended", registry=r
        )
        self.duration = Histogram("protofleet_round_duration_seconds", "Rounds", buckets=SECONDS, registry=r)
        self.phase = Histogram(
            "protofleet_round_phase_seconds", "Phases, from the ask to the close", ["phase"], buckets=SECONDS,
            registry=r,
        )  # fmt: skip
        self.bytes = Gauge(
            "protofleet_round_bytes",
            "Tensor bytes of the last round",
            ["direction", "kind", "method"],
            registry=r,
        )
        self.wire = Gauge(
            "protofleet_round_wire_bytes", "All bytes of the last round", ["direction", "method"], registry=r
        )
        self.fedavg = Gauge(
            "protofleet_round_fedavg_bytes", "What FedAvg would have cost", ["direction"], registry=r
        )
        self.finished = Counter(
            "protofleet_rounds_bytes",
            "Tensor bytes of all training rounds that have ended",
            ["direction", "kind", "method"],
            registry=r,
        )
        self.fedavg_total = Counter(
            "protofleet_fedavg_bytes", "What FedAvg would have cost so far", ["direction"], registry=r
        )
        self.invited = Gauge("protofleet_round_invited", "Devices asked in the last round", registry=r)
        self.accepted = Gauge("protofleet_round_accepted", "Answers that made the last round", registry=r)
        self.late = Gauge("protofleet_round_late", "Answers that came too late for it", registry=r)
        self.failed = Gauge("protofleet_round_failed", "Answers refused in it", registry=r)
        self.participation = Gauge("protofleet_participation_ratio", "Accepted of invited", registry=r)
        self.updates = Counter("protofleet_updates", "Answers by verdict", ["verdict"], registry=r)
        self.staleness = Histogram(
            "protofleet_update_staleness_rounds", "Rounds that an answer was behind when it came, 0 if accepted",
            buckets=ROUNDS_BEHIND, registry=r,
        )  # fmt: skip
        self._service = service
        self.holders = Gauge(
            "protofleet_class_holders", "Devices present that have images of a class", ["class"], registry=r
        )
        self.again = Counter(
            "protofleet_rounds_repeated", "Rounds begun again for want of a quorum", registry=r
        )
        self.accuracy = Gauge(
            "protofleet_accuracy_ratio", "By domain", ["domain", "split", "view"], registry=r
        )
        self.loss = Gauge("protofleet_loss", "Mean test loss by domain", ["domain", "view"], registry=r)
        self.seen = Gauge(
            "protofleet_device_last_seen_timestamp_seconds", "Last word of a device", ["device"], registry=r
        )
        r.register(service.farewells)
        self.missing = Gauge(
            "protofleet_device_messages_missing", "Said by a device, and not come", ["device"], registry=r
        )
        self._missing = service.link.missing
        self.full = Gauge("protofleet_disk_full", "1 while nothing new is begun for want of room", registry=r)
        self.full.set_function(lambda: float(bool(service.backlog.full)))
        self.free = Gauge("protofleet_disk_free_bytes", "Room on the disk of the run", registry=r)
        self.free.set_function(lambda: float(service.spool.disk.room(service.spool.folder)))
        self.epoch.set(service.link.epoch)
        self.rounds.set(service.machine.policy.rounds)
        self.quorum.set(service.machine.policy.quorum)
        for verdict in (
            "accepted",
            "late",
            "refused",
        ):  # from the start: a series that is not there raises no alarm
            self.updates.labels(verdict)

    def exposed(
        self, port: int, checks: Mapping[str, Check] | None = None
    ) -> contextlib.AbstractContextManager[None]:
        return exposed(self.registry, port, checks)

    def moment(self, what: str, details: Mapping[str, Any]) -> None:
        if "roster" in details:
            self.roster.set(details["roster"])
            self.unsteady.set(details["unsteady"])
        if device := details.get("device"):
            self.seen.labels(self._devices.label(device)).set(time.time())
        match what:
            case "asked":
                self.round.set(details["round"])
            case "answered":
                self.updates.labels("accepted").inc()
                self.staleness.observe(0)
            case "dropped":
                self.updates.labels(details["verdict"]).inc()
                if details["verdict"] == "late":
                    self.staleness.observe(max(0, self._service.machine.round - details["round"]))
            case "again":
                self.again.inc()

    def round_ended(self, record: RoundRecord) -> None:
        self.missed()
        self._hold()
        self.commit.set(time.time())
        self.duration.observe(record.seconds)
        for phase in record.phases:
            self.phase.labels(phase.phase).observe(phase.seconds)
        self._count(record)
        self._weigh(record)
        for domain, view, value in self._measured(record.accuracy):
            self.accuracy.labels(domain, "test", view).set(value)
        for domain, view, value in self._measured(record.validation):
            self.accuracy.labels(domain, "validation", view).set(value)
        for domain, view, value in self._measured(record.loss):
            self.loss.labels(domain, view).set(value)

    def missed(self) -> None:
        for device, missing in self._missing().items():
            self.missing.labels(self._devices.label(device)).set(missing)

    def _hold(self) -> None:
        """Of methods that are told how many images of each class there are; of others nobody knows."""
        known = self._service.members
        counts = [known[device].counts for device in sorted(self._service.machine.roster) if device in known]
        for number, held in enumerate(zip(*filter(None, counts), strict=False)):
            self.holders.labels(str(number)).set(sum(1 for images in held if images))

    def _count(self, record: RoundRecord) -> None:
        invited = {device for phase in record.phases for device in phase.asked}
        self.invited.set(len(invited))
        self.accepted.set(len(record.participants))
        self.late.set(len(record.late))
        self.failed.set(len(record.dropped))
        self.participation.set(len(record.participants) / len(invited) if invited else 0)

    def _weigh(self, record: RoundRecord) -> None:
        for direction, kinds in record.payload.items():
            for kind, size in kinds.items():
                self.bytes.labels(direction, kind, self._method).set(size)
                if record.kind == "training":
                    self.finished.labels(direction, kind, self._method).inc(size)
            self.wire.labels(direction, self._method).set(sum(record.wire.get(direction, {}).values()))
        for direction, size in record.fedavg.items():
            self.fedavg.labels(direction).set(size)
            self.fedavg_total.labels(direction).inc(size)

    def _measured(self, views: ByView) -> Iterator[tuple[str, str, float]]:
        for view, domains in views.items():
            for domain, value in domains.items():
                yield self._domains.label(domain), self._views.label(view), value
