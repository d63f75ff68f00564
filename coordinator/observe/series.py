"""The series of a coordinator, with the words that Prometheus and docs/metrics.md give for them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import GaugeMetricFamily

from protofleet.coordinator.observe.record import ALL, MOST_DEVICES, OTHER, ByKind, RoundRecord, rows_of
from protofleet.protocol.storage.disk import MIN_FREE

SECONDS: Final = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 7200)
ROUNDS_BEHIND: Final = (0, 1, 2, 3, 5, 8)
BY_KIND: Final = ("direction", "kind", "method")
BY_DEVICE: Final = ("device", *BY_KIND)


class Progress:
    """The progress of the run."""

    def __init__(self, r: CollectorRegistry) -> None:
        self.info = Gauge(
            "protofleet_run_info",
            "Which run is conducted here: always 1",
            ["federation", "run", "method"],
            registry=r,
        )
        self.over = Gauge(
            "protofleet_run_over",
            "1 once the run is over: how is finished, or diverged (there is no state to go on from). The coordinator "
            "stays until a Prometheus that scrapes it has seen this, for 75 s at most",
            ["how"],
            registry=r,
        )
        self.connected = Gauge(
            "protofleet_coordinator_connected", "1 while the session at the broker stands", registry=r
        )
        self.round = Gauge("protofleet_round", "The round in hand, from 1", registry=r)
        self.planned = Gauge("protofleet_rounds_planned", "Rounds that the run shall have", registry=r)
        self.quorum = Gauge("protofleet_quorum", "Answers without which there is no round", registry=r)
        self.patience = Gauge(
            "protofleet_patience_seconds",
            "policy.patience_seconds: what a cohort gets for one ask",
            registry=r,
        )
        self.epoch = Gauge("protofleet_coordinator_epoch", "Grows with every start", registry=r)
        self.unclean_start = Gauge(
            "protofleet_unclean_start_timestamp_seconds",
            "When a coordinator here was started last after one that had not ended in order (by a signal, or with "
            "its run); 0: never",
            registry=r,
        )
        self.commit = Gauge(
            "protofleet_round_last_commit_timestamp_seconds",
            "When the last round ended; after a restart, when its line was written",
            registry=r,
        )
        self.since = Gauge(
            "protofleet_round_since_timestamp_seconds",
            "Since when the run stands where it stands: the last of a round's end, a phase's first ask and this "
            "process's start",
            registry=r,
        )
        self.next_round = Gauge(
            "protofleet_round_next_timestamp_seconds",
            "Unix time at which the next round may begin, while policy.pause_seconds or policy.hours hold it back; "
            "else 0",
            registry=r,
        )
        self.seconds = Gauge("protofleet_round_seconds", "How long the last round took", registry=r)
        self.duration = Histogram(
            "protofleet_round_duration_seconds", "How long the run's rounds took", buckets=SECONDS, registry=r
        )
        self.phase = Histogram(
            "protofleet_round_phase_seconds",
            "How long the run's phases took, from the ask to the close",
            ["phase"],
            buckets=SECONDS,
            registry=r,
        )
        self.repeated = Counter(
            "protofleet_rounds_repeated",
            "Rounds begun again for want of a quorum, in the whole run",
            registry=r,
        )
        self.taken_back = Counter(
            "protofleet_rounds_taken_back",
            "Times that the coordinator went back a round, as nobody could go on from what had come of it",
            registry=r,
        )


class Attendance:
    """The devices that are present, that were asked, and that answered."""

    def __init__(self, r: CollectorRegistry) -> None:
        self.present = Gauge(
            "protofleet_devices_present", "Devices that have said hello and not left", registry=r
        )
        self.unsteady = Gauge(
            "protofleet_devices_unsteady",
            "Devices that lost their connection policy.flaps times within policy.flap_seconds: asked, but not "
            "counted on",
            registry=r,
        )
        self.invited = Gauge("protofleet_round_invited", "Devices asked in the last round", registry=r)
        self.accepted = Gauge("protofleet_round_accepted", "Answers that made the last round", registry=r)
        self.late = Gauge(
            "protofleet_round_late", "Answers that came too late for the last round", registry=r
        )
        self.banned = Gauge(
            "protofleet_banned_devices",
            "Devices that flooded: unread for an hour to a day, or until `protofleet unban`; docs/operations.md",
            registry=r,
        )
        self.failed = Gauge("protofleet_round_failed", "Answers refused in the last round", registry=r)
        self.participation = Gauge(
            "protofleet_participation_ratio", "Accepted of invited, in the last round", registry=r
        )
        self.updates = Counter(
            "protofleet_updates",
            "Answers of the run: accepted; late and refused, once their round has ended, as rounds.jsonl has them",
            ["verdict"],
            registry=r,
        )
        self.aside = Counter(
            "protofleet_answers_aside",
            "Accepted answers that were put aside, as they are out of all proportion to the others' (limits.outlier) "
            "or brought a round to nothing; who, stands in rounds.jsonl and the log",
            registry=r,
        )
        self.staleness = Histogram(
            "protofleet_update_staleness_rounds",
            "Rounds that an answer was behind when it came: 0 if it was accepted, more if it was late",
            buckets=ROUNDS_BEHIND,
            registry=r,
        )


class LastRound:
    """The bytes of the last round, with those of FedAvg for comparison.

    All series change at the same moment, and kinds of earlier rounds disappear.
    """

    def __init__(self, r: CollectorRegistry) -> None:
        self._families = self.describe()
        r.register(self)

    @staticmethod
    def describe() -> list[GaugeMetricFamily]:
        return [
            GaugeMetricFamily("protofleet_round_bytes", "Tensor bytes of the last round", labels=BY_KIND),
            GaugeMetricFamily(
                "protofleet_round_wire_bytes", "All bytes of the last round", labels=["direction", "method"]
            ),
            GaugeMetricFamily(
                "protofleet_round_fedavg_bytes",
                "What FedAvg would have cost in the last round: the same network's weights, up from each device of "
                "the cohort and down in one broadcast",
                labels=["direction"],
            ),
            GaugeMetricFamily(
                "protofleet_round_device_wire_bytes",
                f"All bytes of the last round by device: the {MOST_DEVICES} with the most, `{OTHER}` for what is "
                f"left, and `{ALL}` for what is published once and heard by each device that was asked. Their sum "
                "is that of protofleet_round_wire_bytes",
                labels=BY_DEVICE,
            ),
        ]

    def collect(self) -> list[GaugeMetricFamily]:
        return self._families

    def set(self, record: RoundRecord, method: str) -> None:
        payload, wire, fedavg, devices = families = self.describe()
        for direction, kinds in record.payload.items():
            for kind, size in kinds.items():
                payload.add_metric([direction, kind, method], size)
            wire.add_metric([direction, method], sum(record.wire.get(direction, {}).values()))
        for direction, size in record.fedavg.items():
            fedavg.add_metric([direction], size)
        for device, ways in rows_of(record.by_device, record.wire).items():
            for direction, kind, size in of_kinds(ways):
                devices.add_metric([device, direction, kind, method], size)
        self._families = families


class Traffic:
    """The bytes of all rounds that have ended, with those of FedAvg for comparison.

    Rounds that ended under an earlier coordinator are included.
    """

    def __init__(self, r: CollectorRegistry) -> None:
        self.run_payload = Counter(
            "protofleet_run_bytes",
            "Tensor bytes of all rounds that have ended, the last evaluation among them",
            BY_KIND,
            registry=r,
        )
        self.run_wire = Counter(
            "protofleet_run_wire_bytes",
            "All bytes of all rounds that have ended, the last evaluation among them",
            BY_KIND,
            registry=r,
        )
        self.payload = Counter(
            "protofleet_rounds_bytes",
            "Tensor bytes of all training rounds that have ended",
            BY_KIND,
            registry=r,
        )
        self.devices = Counter(
            "protofleet_run_device_wire_bytes",
            f"All bytes of all rounds that have ended by device: the first {MOST_DEVICES} that a round had a row of, "
            f"`{OTHER}` and `{ALL}` as above. Their sum is that of protofleet_run_wire_bytes",
            BY_DEVICE,
            registry=r,
        )
        self.fedavg = Counter(
            "protofleet_fedavg_bytes",
            "What FedAvg would have cost in all training rounds that have ended",
            ["direction"],
            registry=r,
        )

    def add(self, record: RoundRecord, method: str, device_label: Callable[[str], str]) -> None:
        for device, ways in rows_of(record.by_device, record.wire).items():
            label = device if device in (ALL, OTHER) else device_label(device)
            for direction, kind, size in of_kinds(ways):
                self.devices.labels(label, direction, kind, method).inc(size)
        for total, found in ((self.run_payload, record.payload), (self.run_wire, record.wire)):
            for direction, kind, size in of_kinds(found):
                total.labels(direction, kind, method).inc(size)
        if record.kind == "training":
            for direction, kind, size in of_kinds(record.payload):
                self.payload.labels(direction, kind, method).inc(size)
            for direction, size in record.fedavg.items():
                self.fedavg.labels(direction).inc(size)


def of_kinds(found: ByKind) -> Iterator[tuple[str, str, int]]:
    for direction, kinds in found.items():
        for kind, size in kinds.items():
            yield direction, kind, size


class Learned:
    """The quality of the models, and the samples that there are to learn from."""

    def __init__(self, r: CollectorRegistry) -> None:
        self.accuracy = Gauge(
            "protofleet_accuracy_ratio",
            "Of each domain; split is test or validation; view is global (the model that the round began with) or "
            "personal (after local training; in the last evaluation what the device makes of the last broadcast), "
            "with the way to predict behind it where a method has several: personal-classifier. As measured by all "
            "present devices; a sampled cohort's own measurements are in rounds.jsonl alone",
            ["domain", "split", "view"],
            registry=r,
        )
        self.measured = Gauge(
            "protofleet_accuracy_round",
            "Round in which all present devices have measured last; 0: none yet",
            registry=r,
        )
        self.loss = Gauge(
            "protofleet_loss",
            "Mean test loss, as measured by all present devices",
            ["domain", "view"],
            registry=r,
        )
        self.holders = Gauge(
            "protofleet_class_holders",
            "Devices present that have samples of a class; of methods that are told (needs_counts)",
            ["class"],
            registry=r,
        )


class DiskSpace:
    """The space on the disk of the run."""

    def __init__(self, r: CollectorRegistry) -> None:
        self.full = Gauge(
            "protofleet_disk_full",
            "1 while nothing new is begun for want of room on the run's disk",
            registry=r,
        )
        self.free = Gauge(
            "protofleet_disk_free_bytes",
            f"Room on the run's disk, less {MIN_FREE >> 20} MiB that is left alone",
            registry=r,
        )


class Devices:
    """The series of each device by its name; the caller must limit the number of names."""

    def __init__(self, r: CollectorRegistry) -> None:
        self.seen = Gauge(
            "protofleet_device_last_seen_timestamp_seconds",
            "Last new word of a device's own to this coordinator; its will, which the broker says, is none",
            ["device"],
            registry=r,
        )
        self.missing = Gauge(
            "protofleet_device_messages_missing",
            "Messages that a device has numbered since it or the coordinator last connected anew, and that have not "
            "come, as of the last round's end: lost, held back or on their way",
            ["device"],
            registry=r,
        )
