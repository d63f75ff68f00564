"""The metrics of a run that a coordinator exposes to Prometheus.

Their names and help texts are in series.py, from which docs/metrics.md is written.
"""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from functools import partial
from typing import Any, Final

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily

from protofleet.coordinator.devices.last_wills import OUTCOMES
from protofleet.coordinator.observe.budget import BudgetSeries
from protofleet.coordinator.observe.record import MOST_DEVICES, ByView, EvaluationRecord, RoundRecord
from protofleet.coordinator.observe.series import (
    Attendance,
    Devices,
    DiskSpace,
    LastRound,
    Learned,
    RunProgress,
    Traffic,
)
from protofleet.coordinator.observe.view import ENDS, RunView
from protofleet.coordinator.spool.older_copies import ITS_OWN, OURS
from protofleet.protocol.wire.names import EVALUATE
from protofleet.runtime.metrics_page import MeterCollector, snapshot_of
from protofleet.runtime.privacy_series import PrivacySeries, PrivacyState

# Largest number of devices that have their own series. All further devices share one series, "other".
MAX_DEVICES: Final = 1000
VERDICTS: Final = ("accepted", "late", "refused")


class BoundedLabels:
    """The values of a label, which devices choose.

    The first `most` values are kept, and all other values become "other". Without this limit, a lying device could
    create any number of series.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._known: set[str] = set()

    @property
    def known(self) -> list[str]:
        return list(self._known)

    def forget(self, name: str) -> None:
        self._known.discard(name)

    def label(self, name: str) -> str:
        if name in self._known or len(self._known) < self._most:
            self._known.add(name)
            return name
        return "other"


class DamageCounts:
    """The counts of damaged files that this coordinator replaced or could not use."""

    def __init__(self, fallbacks: Mapping[str, int]) -> None:
        self._fallbacks = fallbacks

    @staticmethod
    def describe() -> list[CounterMetricFamily]:
        words = (
            "Damaged files that this coordinator replaced, by `what`: snapshot (the previous round is "
            "replayed), index (the copy is used), answer (the device is asked again). `folder` is 1 if most "
            "devices know later rounds than the coordinator's folder; docs/reliability.md"
        )
        return [CounterMetricFamily("protofleet_checkpoint_fallbacks", words, labels=["what"])]

    def collect(self) -> Iterator[CounterMetricFamily]:
        (found,) = self.describe()
        for what in ("snapshot", "index", "answer", "folder"):
            found.add_metric([what], self._fallbacks.get(what, 0))
        yield found


class PerDeviceCounts:
    """The counts of each device.

    A device has one count for each value of the label `label`, which has only a few values. Each count starts at 0
    with the first message of the device. If a series began above 0, Prometheus would not see an increase.
    """

    name: str
    words: str
    label: str
    values: tuple[str, ...]

    def __init__(self, counted: Mapping[tuple[str, str], int], names: BoundedLabels) -> None:
        self._counted, self._names = counted, names

    @classmethod
    def describe(cls) -> list[CounterMetricFamily]:
        return [CounterMetricFamily(cls.name, cls.words, labels=["device", cls.label])]

    def collect(self) -> Iterator[CounterMetricFamily]:
        (family,) = self.describe()
        summed = Counter({(device, label): 0 for device in self._names.known for label in self.values})
        for (device, label), number in snapshot_of(self._counted).items():
            summed[self._names.label(device), label] += number
        for labels, number in sorted(summed.items()):
            family.add_metric(list(labels), number)
        yield family


class WillCounts(PerDeviceCounts):
    """The counts of wills that the broker published, by device and outcome."""

    name, label, values = "protofleet_device_wills", "outcome", tuple(OUTCOMES)
    words = "Wills of a device that the broker has sent. " + "; ".join(
        f"{outcome}: {meaning}" for outcome, meaning in OUTCOMES.items()
    )


class OlderCopyCounts(PerDeviceCounts):
    """The counts of messages that point to an older copy of a folder, by the device that sent the messages."""

    name, label, values = "protofleet_older_copies", "whose", (ITS_OWN, OURS)
    words = (
        "Messages of a device that point to an older copy of a folder. `whose` is device (the device came back "
        "in an earlier state) or coordinator (the device knows later rounds than the coordinator's folder; "
        "one device alone proves nothing); docs/reliability.md"
    )


class Errors:
    """Counters of errors that do not end the run. Each such error is logged with its traceback."""

    def __init__(self, run: RunView | None) -> None:
        self._run = run

    @staticmethod
    def describe() -> list[CounterMetricFamily]:
        return [
            CounterMetricFamily(
                "protofleet_observer_errors", "Errors in writing rounds.jsonl, metrics or events"
            ),
            CounterMetricFamily(
                "protofleet_server_half_errors",
                "Errors of the method's server half in handling answers; the round was undone",
            ),
        ]

    def collect(self) -> Iterator[CounterMetricFamily]:
        observers, server = self.describe()
        if self._run is not None:
            observers.add_metric([], self._run.observer_errors)
            server.add_metric([], self._run.server_half_errors)
        yield from (observers, server)


def views_of(found: RoundRecord | EvaluationRecord) -> set[str]:
    return {*found.accuracy, *found.validation, *found.loss}


class Metrics:
    """A sink of the journal that fills the metrics. They are in a separate registry, not in the global registry."""

    def __init__(self, run: RunView) -> None:
        self.registry = r = CollectorRegistry()
        self._run, self._method = run, run.plan.method
        self._device_names, self._domain_names = BoundedLabels(MAX_DEVICES), BoundedLabels(MAX_DEVICES)
        # Some metrics count the bytes of the whole run. These devices have their own series in these metrics.
        self._run_names = BoundedLabels(MOST_DEVICES)
        self._counted = 0  # The last round that is included in the totals.
        r.register(MeterCollector(run.meter, self._method))
        self.progress, self.attendance = RunProgress(r), Attendance(r)
        self.last_round, self.traffic = LastRound(r), Traffic(r)
        self.learned, self.devices, self.disk_space = Learned(r), Devices(r), DiskSpace(r)
        r.register(DamageCounts(run.fallbacks))
        r.register(WillCounts(run.wills, self._device_names))
        r.register(OlderCopyCounts(run.older_copies, self._device_names))
        r.register(Errors(run))
        if run.budget is not None:
            r.register(BudgetSeries(lambda: run.budget))
        if run.privacy is not None:
            r.register(PrivacySeries(self._privacy))
        self._set_progress()
        self.disk_space.full.set_function(lambda: float(bool(run.disk_full)))
        self.disk_space.free.set_function(lambda: float(run.free_bytes))
        for verdict in VERDICTS:  # Create each series at the start, because a missing series raises no alarm.
            self.attendance.updates.labels(verdict)

    def _privacy(self) -> PrivacyState | None:
        """Return the privacy of the run; of the devices without a series of their own, only the largest epsilon."""
        state: PrivacyState | None = self._run.privacy
        if state is None:
            return None
        largest: dict[str, float] = {}
        for device, epsilon in sorted(state.epsilon.items()):
            name = self._device_names.label(device)
            largest[name] = max(epsilon, largest.get(name, 0.0))
        return PrivacyState(state.unit, state.limit, largest)

    def _has_ended(self, how: str) -> float:
        return float(self._run.ended_as == how)

    def _set_progress(self) -> None:
        progress, run = self.progress, self._run
        progress.info.labels(run.federation, run.name, self._method).set(1)
        for how in ENDS:
            progress.over.labels(how).set_function(partial(self._has_ended, how))
        progress.planned.set_function(lambda: float(run.rounds_planned))
        progress.quorum.set(run.policy.quorum)
        progress.patience.set(run.policy.patience_seconds)
        progress.since.set(time.time())
        progress.next_round.set_function(lambda: run.next_round_at)
        progress.paused.set_function(lambda: float(bool(run.paused)))

    def restore(self, records: Iterable[RoundRecord], ended_at: float) -> None:
        """Restore the counts of an earlier coordinator of this run, from the lines of rounds.jsonl.

        A count is restored only if the earlier coordinator saved the count before Prometheus could read it.
        Otherwise the restored total could be smaller than the total that Prometheus has read. Prometheus
        would take this for a reset of the counter.
        """
        last = None
        for last in records:
            self._count(last)
            self._set_learned(last)
            self.progress.repeated.inc(last.attempt)
            answers = sum(len(p.answered) for p in last.phases)
            answers += len(last.evaluation.answered) if last.evaluation else 0
            self.attendance.updates.labels("accepted").inc(answers)
        if last is not None:
            self._set_last(last)
            self.progress.commit.set(ended_at)
        # The open round has no line in rounds.jsonl, so its counts come from the spool.
        if self._run.newest_round > self._counted:
            self.progress.repeated.inc(self._run.saved_attempt)
            self.attendance.updates.labels("accepted").inc(self._run.saved_answers)

    def heard_from(self, device: str) -> None:
        # A device that takes no part in the run may be switched off without an alarm.
        if not self._run.selects(device):
            return
        self.devices.seen.labels(self._device_names.label(device)).set(time.time())

    def entry(self, what: str, details: Mapping[str, Any]) -> None:
        if "roster" in details:
            self.attendance.present.set(details["roster"])
            self.attendance.unsteady.set(details["unsteady"])
        match what:
            case "asked":
                self.progress.round.set(details["round"])
                # A round that is repeated because updates are missing does not count as progress.
                if not self._run.attempt:
                    self.progress.since.set(time.time())
            case "left":
                self._forget_unless_enrolled(details["device"])
            case "answered":
                self.attendance.updates.labels("accepted").inc()
                self.attendance.staleness.observe(0)
            case "dropped" if details["verdict"] == "late":
                self.attendance.staleness.observe(max(0, self._run.round - details["round"]))
            case "aside":
                self.attendance.aside.inc()
            case "went_back":
                self.attendance.aside.inc()
                self.progress.taken_back.inc()
            case "again":
                self.progress.repeated.inc()

    def round_ended(self, record: RoundRecord) -> None:
        self.set_missing()
        self._set_class_holders()
        self.progress.commit.set(time.time())
        self.progress.since.set(time.time())
        # A round that is replayed or repeated has only one line in rounds.jsonl. The totals and the last round are
        # those of this line, and the messages of the second time are not in it.
        if record.round > self._counted:
            self._count(record)
            self._set_last(record)
        self._set_learned(record)

    def _count(self, record: RoundRecord) -> None:
        """Add a round to the totals."""
        self._counted = record.round
        self.progress.duration.observe(record.seconds)
        self.progress.without_sum.inc(bool(record.without_sum))
        for phase in record.phases:
            self.progress.phase.labels(phase.phase).observe(phase.seconds)
        if record.evaluation:
            self.progress.phase.labels(EVALUATE).observe(record.evaluation.seconds)
        # Late and refused updates are counted at the end of their round and not earlier, because the disk
        # does not store them.
        self.attendance.updates.labels("late").inc(len(record.late))
        self.attendance.updates.labels("refused").inc(len(record.dropped))
        self.traffic.add(record, self._method, self._run_names.label)

    def _set_last(self, record: RoundRecord) -> None:
        self.progress.seconds.set(record.seconds)
        self._set_attendance(record)
        self.last_round.set(record, self._method)

    def _set_learned(self, record: RoundRecord) -> None:
        """Set the accuracy and loss, if all present devices were asked to measure them.

        Measurements of a sampled cohort are left out, because each cohort covers different domains.
        """
        of_all = {view for view in views_of(record) if record.is_of_all(view)}
        self._set_measures(record, of_all)
        if record.evaluation:
            self._set_measures(record.evaluation, views_of(record.evaluation))
        if of_all or record.evaluation:
            self.learned.measured.set(record.round)

    def _set_measures(self, found: RoundRecord | EvaluationRecord, views: Collection[str]) -> None:
        for domain, view, value in self._by_label(found.accuracy, views):
            self.learned.accuracy.labels(domain, "test", view).set(value)
        for domain, view, value in self._by_label(found.validation, views):
            self.learned.accuracy.labels(domain, "validation", view).set(value)
        for domain, view, value in self._by_label(found.loss, views):
            self.learned.loss.labels(domain, view).set(value)

    def set_missing(self) -> None:
        for device, missing in self._run.missing().items():
            self.devices.missing.labels(self._device_names.label(device)).set(missing)
        for device in {*self._device_names.known} - self._run.roster:
            self._forget_unless_enrolled(device)

    def _forget_unless_enrolled(self, device: str) -> None:
        """Remove the series of a device that is not enrolled or not selected any more; they could cause an alarm."""
        if device in self._device_names.known and not self._run.is_enrolled(device):
            self._device_names.forget(device)
            for gauge in (self.devices.seen, self.devices.missing):
                with contextlib.suppress(KeyError):
                    gauge.remove(device)

    def _set_class_holders(self) -> None:
        """Set the number of present devices that hold each class, if the method receives the counts of classes."""
        known = self._run.members
        counts = [known[device].counts for device in sorted(self._run.roster) if device in known]
        for number, held in enumerate(zip(*filter(None, counts), strict=False)):
            self.learned.holders.labels(str(number)).set(sum(1 for images in held if images))

    def _set_attendance(self, record: RoundRecord) -> None:
        invited = {device for phase in record.phases for device in phase.asked}
        self.attendance.invited.set(len(invited))
        self.attendance.accepted.set(len(record.participants))
        self.attendance.late.set(len(record.late))
        self.attendance.failed.set(len(record.dropped))
        self.attendance.participation.set(len(record.participants) / len(invited) if invited else 0)

    def _by_label(self, found: ByView, views: Collection[str]) -> Iterator[tuple[str, str, float]]:
        for view in views:
            for domain, value in found.get(view, {}).items():
                yield self._domain_names.label(domain), view, value
