"""The series of a coordinator, with the help texts that Prometheus and docs/metrics.md show."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import GaugeMetricFamily

from protofleet.coordinator.observe.record import ALL, MOST_DEVICES, OTHER, ByKind, RoundRecord, rows_of
from protofleet.protocol.storage.disk import MIN_FREE
from protofleet.protocol.wire.kinds import MOST_KINDS

SECONDS: Final = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 7200)
ROUNDS_BEHIND: Final = (0, 1, 2, 3, 5, 8)
BY_KIND: Final = ("direction", "kind", "method")
BY_DEVICE: Final = ("device", *BY_KIND)
ROWS: Final = MOST_DEVICES + len((OTHER, ALL))
# Largest number of series of one metric: the number of rows times the number of kinds, including `control`, times
# the number of directions.
SERIES_BY_DEVICE: Final = ROWS * (MOST_KINDS + 1) * 2


class ProcessSeries:
    """The gauges of a coordinator process that belong to none of its runs."""

    def __init__(self, r: CollectorRegistry) -> None:
        self.connected = Gauge(
            "protofleet_coordinator_connected",
            "1 while the coordinator is connected to the broker",
            registry=r,
        )
        self.epoch = Gauge(
            "protofleet_coordinator_epoch",
            "Number that grows with every start of the coordinator",
            registry=r,
        )
        self.unclean_start = Gauge(
            "protofleet_unclean_start_timestamp_seconds",
            "Unix time of the last start after a crash; an end by SIGTERM, SIGINT or with the run is no crash. "
            "0: never",
            registry=r,
        )
        self.banned = Gauge(
            "protofleet_banned_devices",
            "Devices that are banned for sending too much: for an hour to a day, or until `protofleet unban`; "
            "docs/operations.md",
            registry=r,
        )


class QueueSeries:
    """The gauge of a coordinator that conducts a queue of runs."""

    def __init__(self, r: CollectorRegistry) -> None:
        self.runs = Gauge(
            "protofleet_queue_runs",
            "Runs in the queue by state (docs/run-queue.md); only at a coordinator whose file names no run",
            ["state"],
            registry=r,
        )


OVER: Final = "protofleet_run_over"
OVER_WORDS: Final = (
    "1 after the end of the run. `how` is finished, stopped (by an operator) or diverged (no usable state is left); "
    "in a queue also failed (the coordinator cannot go on with the run). A coordinator of one run waits until "
    "Prometheus has scraped this value, at most 75 s"
)


def over_series() -> GaugeMetricFamily:
    return GaugeMetricFamily(OVER, OVER_WORDS, labels=["how"])


class RunProgress:
    """The progress of the run."""

    def __init__(self, r: CollectorRegistry) -> None:
        self.info = Gauge(
            "protofleet_run_info",
            "Always 1; the labels name the run of this coordinator",
            ["federation", "run", "method"],
            registry=r,
        )
        self.over = Gauge(OVER, OVER_WORDS, ["how"], registry=r)
        self.round = Gauge("protofleet_round", "Number of the current round, from 1", registry=r)
        self.planned = Gauge("protofleet_rounds_planned", "Number of rounds of the whole run", registry=r)
        self.quorum = Gauge("protofleet_quorum", "Fewest answers that a round needs", registry=r)
        self.patience = Gauge(
            "protofleet_patience_seconds",
            "policy.patience_seconds: time in which a cohort must answer one ask",
            registry=r,
        )
        self.commit = Gauge(
            "protofleet_round_last_commit_timestamp_seconds",
            "Unix time of the last round's end; after a restart, of its line in rounds.jsonl",
            registry=r,
        )
        self.since = Gauge(
            "protofleet_round_since_timestamp_seconds",
            "Unix time of the last progress: end of a round, first ask of a phase, or start of this process",
            registry=r,
        )
        self.next_round = Gauge(
            "protofleet_round_next_timestamp_seconds",
            "Unix time at which the next round may begin, while policy.pause_seconds or policy.hours hold "
            "the round back; else 0",
            registry=r,
        )
        self.paused = Gauge("protofleet_run_paused", "1 while an operator has paused the run", registry=r)
        self.seconds = Gauge("protofleet_round_seconds", "Duration of the last round", registry=r)
        self.duration = Histogram(
            "protofleet_round_duration_seconds", "Durations of the run's rounds", buckets=SECONDS, registry=r
        )
        self.phase = Histogram(
            "protofleet_round_phase_seconds",
            "Durations of the run's phases, from the first ask to the close",
            ["phase"],
            buckets=SECONDS,
            registry=r,
        )
        self.repeated = Counter(
            "protofleet_rounds_repeated",
            "Rounds of the whole run that were repeated because the quorum was not reached",
            registry=r,
        )
        self.without_sum = Counter(
            "protofleet_rounds_without_sum",
            "Rounds of masked sums after which the model stayed as it was, because there was no sum",
            registry=r,
        )
        self.taken_back = Counter(
            "protofleet_rounds_taken_back",
            "Rounds that the coordinator undid because their result was unusable",
            registry=r,
        )


class Attendance:
    """The numbers of devices that are present, that were asked, and that sent updates."""

    def __init__(self, r: CollectorRegistry) -> None:
        self.present = Gauge(
            "protofleet_devices_present", "Devices that have sent a hello and have not left", registry=r
        )
        self.unsteady = Gauge(
            "protofleet_devices_unsteady",
            "Devices that lost their connection policy.flaps times within policy.flap_seconds; they are asked, "
            "but do not count towards the quorum that starts a round",
            registry=r,
        )
        self.invited = Gauge("protofleet_round_invited", "Devices asked in the last round", registry=r)
        self.accepted = Gauge("protofleet_round_accepted", "Answers that the last round used", registry=r)
        self.late = Gauge(
            "protofleet_round_late", "Answers that came too late for the last round", registry=r
        )
        self.failed = Gauge("protofleet_round_failed", "Answers refused in the last round", registry=r)
        self.participation = Gauge(
            "protofleet_participation_ratio",
            "Accepted answers divided by invited devices, in the last round",
            registry=r,
        )
        self.updates = Counter(
            "protofleet_updates",
            "Answers of the run, by verdict; late and refused ones are counted when their round ends, as in "
            "rounds.jsonl",
            ["verdict"],
            registry=r,
        )
        self.aside = Counter(
            "protofleet_answers_aside",
            "Accepted answers that were not used: they differed too much from the others (limits.outlier), "
            "or made a round's result unusable; rounds.jsonl and the log name the devices",
            registry=r,
        )
        self.staleness = Histogram(
            "protofleet_update_staleness_rounds",
            "Rounds between an answer's round and the round in which it arrived: 0 if it was accepted, more if "
            "it was late",
            buckets=ROUNDS_BEHIND,
            registry=r,
        )


class LastRound:
    """The bytes of the last round, and the bytes that FedAvg would have needed.

    All series change at the same moment. The series of a kind disappears if the last round sent no bytes of
    this kind.
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
                "Bytes that FedAvg would have needed in the last round: the weights of the same network, up "
                "from each device of the cohort and down in one broadcast",
                labels=["direction"],
            ),
            GaugeMetricFamily(
                "protofleet_round_device_wire_bytes",
                f"All bytes of the last round by device: the {MOST_DEVICES} devices with the most bytes, "
                f"`{OTHER}` for the rest, and `{ALL}` for messages that are published once for all asked "
                "devices. The sum equals that of protofleet_round_wire_bytes. "
                f"At most {SERIES_BY_DEVICE:,} series",
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
    """The bytes of all rounds that have ended, and the bytes that FedAvg would have needed.

    Rounds that ended under an earlier coordinator are included.
    """

    def __init__(self, r: CollectorRegistry) -> None:
        self.run_payload = Counter(
            "protofleet_run_bytes",
            "Tensor bytes of all ended rounds, including the last evaluation",
            BY_KIND,
            registry=r,
        )
        self.run_wire = Counter(
            "protofleet_run_wire_bytes",
            "All bytes of all ended rounds, including the last evaluation",
            BY_KIND,
            registry=r,
        )
        self.uncoded = Counter(
            "protofleet_uncoded_bytes",
            "Bytes of the tensors of protofleet_run_bytes_total before the codec; no series if the codec is off",
            BY_KIND,
            registry=r,
        )
        self.payload = Counter(
            "protofleet_rounds_bytes",
            "Tensor bytes of all ended training rounds",
            BY_KIND,
            registry=r,
        )
        self.devices = Counter(
            "protofleet_run_device_wire_bytes",
            f"All bytes of all ended rounds by device: the first {MOST_DEVICES} devices of the run's rounds, "
            f"`{OTHER}` and `{ALL}` as above. The sum equals that of protofleet_run_wire_bytes. "
            f"At most {SERIES_BY_DEVICE:,} series",
            BY_DEVICE,
            registry=r,
        )
        self.fedavg = Counter(
            "protofleet_fedavg_bytes",
            "Bytes that FedAvg would have needed in all ended training rounds",
            ["direction"],
            registry=r,
        )

    def add(self, record: RoundRecord, method: str, device_label: Callable[[str], str]) -> None:
        for device, ways in rows_of(record.by_device, record.wire).items():
            label = device if device in (ALL, OTHER) else device_label(device)
            for direction, kind, size in of_kinds(ways):
                self.devices.labels(label, direction, kind, method).inc(size)
        totals = (
            (self.run_payload, record.payload), (self.uncoded, record.uncoded), (self.run_wire, record.wire),
        )  # fmt: skip
        for total, found in totals:
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
    """The accuracy and loss of the models, and the number of devices that hold samples of each class."""

    def __init__(self, r: CollectorRegistry) -> None:
        self.accuracy = Gauge(
            "protofleet_accuracy_ratio",
            "Accuracy by domain, if all present devices measured; rounds of a sampled cohort are only in "
            "rounds.jsonl. `split` is test or validation. `view` is global (the model at the start of the "
            "round) or personal (the model after local training; in the last evaluation, the device's model "
            "after the last broadcast). A method with several ways to predict adds the way to the view: "
            "personal-classifier",
            ["domain", "split", "view"],
            registry=r,
        )
        self.measured = Gauge(
            "protofleet_accuracy_round",
            "Last round in which all present devices measured; 0: none yet",
            registry=r,
        )
        self.loss = Gauge(
            "protofleet_loss",
            "Mean test loss, as all present devices measured it",
            ["domain", "view"],
            registry=r,
        )
        self.holders = Gauge(
            "protofleet_class_holders",
            "Present devices that have samples of a class; only for methods that know this number "
            "(needs_counts)",
            ["class"],
            registry=r,
        )


class DiskSpace:
    """The free space on the disk of the run."""

    def __init__(self, r: CollectorRegistry) -> None:
        self.full = Gauge(
            "protofleet_disk_full",
            "1 while the coordinator starts no new round because the run's disk is full",
            registry=r,
        )
        self.free = Gauge(
            "protofleet_disk_free_bytes",
            f"Free space on the run's disk, minus a reserve of {MIN_FREE >> 20} MiB",
            registry=r,
        )


class Devices:
    """The series that each device has under its own name. The caller must limit the number of names."""

    def __init__(self, r: CollectorRegistry) -> None:
        self.seen = Gauge(
            "protofleet_device_last_seen_timestamp_seconds",
            "Unix time of the last new message from a device; a will does not count, because the broker "
            "sends the will",
            ["device"],
            registry=r,
        )
        self.missing = Gauge(
            "protofleet_device_messages_missing",
            "Messages of a device that had not arrived at the end of the last round: lost, held back or on "
            "their way. Counted since the last new connection of the device or coordinator",
            ["device"],
            registry=r,
        )
