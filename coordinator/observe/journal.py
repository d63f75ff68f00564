"""The journal: it turns the events of a run into one record for each round.

Each record is a line of rounds.jsonl, and summary.json is made from these lines at the end. `accuracy.global`
in the line of a round belongs to the model with which the round began, because devices measure the model that
they receive. The last line, of kind "evaluation", holds the accuracy of the final model. `accuracy.personal`
is measured after the local training of its round. If several devices share a domain, their values are
averaged, weighted by the numbers of examples of the devices.

A round that leaves devices out may begin with an evaluation by all present devices. The line of the round
includes this evaluation, because it measures the model with which the round began.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Final, Protocol

from protofleet.coordinator.devices.limits import HOTTEST
from protofleet.coordinator.observe.budget import BudgetWait
from protofleet.coordinator.observe.confusion import Matrix, confusion_by_domain
from protofleet.coordinator.observe.energy import RoundEnergy
from protofleet.coordinator.observe.isolation import Isolation
from protofleet.coordinator.observe.measured import (
    SAMPLES,
    by_device,
    by_domain,
    counted,
    lacking,
    lacking_words,
    own_figures,
    pooled,
)
from protofleet.coordinator.observe.record import (
    ByKind,
    EvaluationRecord,
    PhaseRecord,
    RoundRecord,
    by_machine,
    divided,
)
from protofleet.coordinator.observe.view import RunView
from protofleet.coordinator.round.events import (
    Accept,
    Advance,
    Advanced,
    Close,
    Command,
    Diverge,
    Drop,
    Event,
    Extended,
    Finish,
    Joined,
    Left,
    PutAside,
    Rollback,
    Save,
    SaveRounds,
    Unenrolled,
)
from protofleet.coordinator.round.weights import weight_cap
from protofleet.coordinator.server.runner import MAX_FAULT_LETTERS, Step
from protofleet.coordinator.spool.traffic import RoundTraffic
from protofleet.protocol.link.meter import DOWN, UP, Meter
from protofleet.protocol.link.progress import TransferProgress
from protofleet.protocol.privacy.accountant import LARGEST_EPSILON
from protofleet.protocol.secagg.control_arrays import SumStep
from protofleet.protocol.wire.messages import Update
from protofleet.protocol.wire.names import EVALUATE

EVALUATION: Final = "evaluation"  # Kind of the record of the last evaluation. The other kind is "training".
# Name of an entry about a device whose presence has not changed. Such an entry is not stored.
SEEN: Final = "seen"


class Sink(Protocol):
    """A receiver of entries and records. It stores them or shows them."""

    def entry(self, what: str, details: Mapping[str, Any]) -> None: ...

    def round_ended(self, record: RoundRecord) -> None: ...


class Journal:
    """An observer that turns events into records and passes the records to sinks."""

    def __init__(self, run: RunView, sinks: Sequence[Sink], isolation: Isolation) -> None:
        self._run, self._sinks, self._isolation, self._model_bytes = run, sinks, isolation, run.model_bytes
        self._meter_before, self._devices_before = Meter(), Counter[tuple[str, str, str]]()
        self._began_at, self._closed_at, self._asked_at = 0.0, 0.0, 0.0
        self._record = RoundRecord(0, 0, "training")
        self._metrics: dict[str, dict[str, float]] = {}
        # Device -> number of its test samples, from the first claim of the device in the run.
        self._samples: dict[str, float] = {}
        # The metrics of the evaluation before the round. `_meter_asked` has the traffic before the task of this
        # evaluation was sent.
        self._evaluated: dict[str, dict[str, float]] = {}
        self._meter_asked = Meter()
        # The Unix time that was last reported to the sinks as the start of the next round.
        self._next_round_at = 0.0
        self._paused = ""  # The reason of an operator's pause that was last reported to the sinks.
        self._budget_wait: BudgetWait | None = None  # The last wait that was reported to the sinks.
        self._present: tuple[str, ...] = ()  # Devices that were present when the cohort was drawn.
        self._lacking = set[str]()  # Names of metrics whose missing values were already reported.
        self._energy = RoundEnergy()
        self._temperature: dict[str, float] = {}
        # Device whose update was put aside -> the round that was open at that time, and the reason.
        self._gone_back: dict[str, tuple[int, str]] = {}
        # Device -> the last report about its presence: "joined" or "left".
        self._presence: dict[str, str] = {}
        self._earlier = RoundTraffic()  # Traffic that earlier processes have counted in the open round.

    def open_round_traffic(self) -> tuple[int, RoundTraffic] | None:
        """Return the open round, and the traffic of this round that this process has counted."""
        if not self._record.round:
            return None
        crossed = self._run.traffic().since(self._meter_before)
        return self._record.round, RoundTraffic.of(crossed, self._run.now - self._began_at)

    def happened(self, run: RunView, event: Event, commands: Sequence[Command], now: float) -> None:
        # Report the wait before the end of the round, so that the display of this end estimates no time.
        self._note_budget_wait(run)
        match event:
            case Joined(device):
                self._note_presence("joined", device, now)
            case Left(device, reason) | Unenrolled(device, reason):
                self._note_presence("left", device, now, reason=reason[:400])
            case Advanced(None, fault="", ended=""):
                self._round_ended(run, now)
            case Extended(rounds):
                self._tell_sinks("extended", rounds=rounds)
        for command in commands:
            self._note_command(command, now)
        self._note_pause(run)
        if run.paused != self._paused:
            self._paused = run.paused
            self._tell_sinks("paused", round=run.round, reason=run.paused)

    def _note_pause(self, run: RunView) -> None:
        """Report to the sinks the time at which the next round may begin, if the policy delays the round."""
        if abs(run.next_round_at - self._next_round_at) >= 1.0:
            self._next_round_at = run.next_round_at
            if self._next_round_at:
                self._tell_sinks("held_back", round=run.round, until=self._next_round_at)

    def _note_budget_wait(self, run: RunView) -> None:
        """Report to the sinks that the run waits for the next month, because budgets are spent, or waits no more."""
        wait = run.budget.wait if run.budget else None
        if wait == self._budget_wait:
            return
        self._budget_wait = wait
        until, words = (wait.until, wait.words) if wait else (0.0, "")
        self._tell_sinks("budget_wait", round=run.round, until=until, reason=words)

    def transfer_progressed(self, device: str, progress: TransferProgress) -> None:
        rate, left = round(progress.bytes_per_second), round(progress.seconds_left, 1)
        self._tell_sinks(
            "transfer", device=device, bytes=progress.bytes, size=progress.size, bytes_per_second=rate,
            seconds_left=left,
        )  # fmt: skip

    def answered(self, run: RunView, update: Update, now: float) -> None:
        if (update.round, update.phase) == (run.round, run.asked):
            self._note_metrics(update.device, update.phase, update.metrics)

    def stepped(self, run: RunView, step: Step, now: float) -> None:
        # A round that is resumed from the disk has no command Save, so its record begins here.
        if self._record.round != step.round:
            self._round_began(step.round, run.attempt, now, resumed=True)
            if damaged := {what: n for what, n in run.fallbacks.items() if n}:
                self._tell_sinks("fell_back", round=step.round, damaged=damaged)
        # Report the updates that were used. A replay must use and report the same updates again.
        if step.phase is not None:
            place = {"round": step.round, "attempt": self._record.attempt, "phase": step.phase}
            self._tell_sinks("counted", **place, answers=step.counted)
        for device, words in step.aside.items():
            self._record.aside[device] = f"{step.phase}: {words}"
            self._tell_sinks("aside", round=step.round, phase=step.phase, device=device, reason=words)
        self._record.figures = {k: v for k, v in step.figures.items() if math.isfinite(v)}
        self._record.unused = list(step.unused)
        self._record.removed = sorted({*self._record.removed, *step.removed})
        if step.ask is None:
            if step.without_sum:
                self._record.without_sum = step.without_sum[:MAX_FAULT_LETTERS]
                self._record.participants = []
            return
        cohort, answered = list(run.cohort), list[str]()
        base = step.manifest.object if step.manifest else b""
        # Include the updates that an earlier process accepted.
        for device, answer in run.answers(step.round, step.ask.phase).items():
            if answer.staleness:
                answered.append(device)
                self._record.staleness[device] = answer.staleness
            elif answer.base == base:
                answered.append(device)
                self._note_metrics(device, step.ask.phase, answer.metrics)
        if self._is_before_round(step.ask.phase):
            self._record.evaluation = EvaluationRecord(asked=cohort, answered=answered)
            self._meter_asked = run.traffic()
        else:
            thought = round(now - self._closed_at, 3)
            asked = list(run.recipients)
            self._record.phases.append(PhaseRecord(step.ask.phase, 0.0, thought, asked, answered))
        self._asked_at, self._present = now, run.present
        self._tell_sinks(
            "asked", round=step.round, phase=step.ask.phase, cohort=cohort, domains=dict(run.domains),
            rounds=run.rounds_planned,
        )  # fmt: skip

    def _uses_updates(self, phase: str) -> bool:
        """Return whether updates of this phase are used. Of the steps of a masked sum, only one sends an update."""
        name, _, step = phase.partition(".")
        return name not in self._run.plan.summed_phases or step == SumStep.MASKED

    def _is_before_round(self, phase: str) -> bool:
        return phase == EVALUATE and self._record.kind != EVALUATION

    def _note_metrics(self, device: str, phase: str, metrics: Mapping[str, float]) -> None:
        found = counted(metrics, self._run.measures)
        known = self._evaluated if self._is_before_round(phase) else self._metrics
        known.setdefault(device, {}).update(found)
        if SAMPLES in found:
            self._samples.setdefault(device, min(found[SAMPLES], self._run.limits.examples))
        self._energy.note(device, phase, found)
        if HOTTEST in found:
            self._temperature[device] = round(found[HOTTEST], 3)

    def _note_presence(self, what: str, device: str, now: float, **more: str) -> None:
        """Report to the sinks that a device joined or left. If its presence has not changed, report only SEEN.

        A repeated hello, or a will that is published again, does not change the presence.
        """
        changed = self._presence.get(device) != what
        self._presence[device] = what
        roster, unsteady = len(self._run.roster), len(self._run.unsteady)
        self._tell_sinks(what if changed else SEEN, device=device, roster=roster, unsteady=unsteady, **more)

    def _note_command(self, command: Command, now: float) -> None:
        match command:
            case Save(number, attempt, _):
                self._round_began(number, attempt, now, self._record.resumed and self._record.round == number)
            case Accept(device, number, phase, staleness):
                self._note_answer(device, phase)
                if staleness:
                    self._record.staleness[device] = staleness
                age = {"staleness": staleness} if staleness else {}
                place = {"round": number + staleness, "phase": phase, "device": device}
                self._tell_sinks("answered", **place, **age, **self._bytes())
            case Close(_, phase, _):
                self._phase_ended(phase, now)
            # This includes phases that an earlier process closed.
            case Advance(_, str() as phase, devices) if self._uses_updates(phase):
                self._record.participants = sorted({*self._record.participants, *devices})
            case Drop(device, number, phase, verdict, problem):
                self._note_drop(device, verdict, problem.message)
                place = {"round": number, "phase": phase, "device": device}
                self._tell_sinks("dropped", **place, verdict=verdict, reason=problem.message)
            case Rollback():
                self._tell_sinks("again", round=self._record.round)
            case PutAside(number, phase, _, aside, words, _, returned):
                for device in returned:
                    self._gone_back.pop(device, None)
                    self._tell_sinks("returned", round=number, phase=phase, device=device)
                self._note_went_back(number, phase, aside, words)
            case Diverge(number, words):
                self._tell_sinks("diverged", round=number, reason=words)
            case SaveRounds(rounds):
                self._tell_sinks("extended", rounds=rounds)
            case Finish(rounds):
                self._tell_sinks("finished", rounds=rounds)

    def _note_answer(self, device: str, phase: str) -> None:
        if self._record.evaluation and self._is_before_round(phase):
            self._record.evaluation.answered.append(device)
        elif self._record.phases and self._record.phases[-1].phase == phase:
            self._record.phases[-1].answered.append(device)

    def _note_went_back(self, number: int, phase: str, aside: Sequence[str], words: str) -> None:
        """Record the updates that are put aside, and report them to the sinks.

        The run goes back only once, even if several updates are put aside. So the first update is reported as
        "went_back", and all other updates are reported as "aside".
        """
        for i, device in enumerate(aside):
            self._gone_back[device] = self._record.round, f"round {number} was repeated without it: {words}"
            what = "aside" if i else "went_back"
            self._tell_sinks(what, round=number, phase=phase, device=device, reason=words)

    def _round_began(self, number: int, attempt: int, now: float, resumed: bool = False) -> None:
        kind = EVALUATION if self._run.is_last_evaluation else "training"
        if self._record.round != number:
            earlier = self._run.earlier_traffic(number)
            self._earlier, resumed = sum(earlier, RoundTraffic()), resumed or bool(earlier)
        self._record = RoundRecord(number, attempt, kind, resumed)
        if kind != EVALUATION and self._run.policy.robust:
            self._record.robust = dict(self._run.policy.robust.rules)
        if kind != EVALUATION:
            self._record.keep = list(self._run.plan.keep)
        self._began_at = self._closed_at = now
        self._metrics, self._evaluated, self._energy = {}, {}, RoundEnergy()
        self._temperature = {}

    def _note_drop(self, device: str, verdict: str, reason: str) -> None:
        if verdict == "late":
            if device not in self._record.late:  # The device may send a late update several times.
                self._record.late.append(device)
        else:
            self._record.dropped[device] = reason

    def _phase_ended(self, phase: str, now: float) -> None:
        seconds = round(now - self._asked_at, 3)
        if (evaluation := self._record.evaluation) and self._is_before_round(phase):
            crossed = self._run.traffic().since(self._meter_asked)
            evaluation.seconds = seconds
            evaluation.payload, evaluation.wire = by_kind(crossed.payload), by_kind(crossed.wire)
        elif self._record.phases:
            self._record.phases[-1].seconds = seconds
        self._closed_at = now

    def _round_ended(self, run: RunView, now: float) -> None:
        record, meter = self._record, run.traffic()
        crossed = RoundTraffic.of(meter.since(self._meter_before), now - self._began_at) + self._earlier
        self._meter_before, self._earlier = meter, RoundTraffic()
        record.seconds = round(crossed.seconds, 3)
        record.aside |= {device: words for device, (_, words) in self._gone_back.items()}
        self._gone_back = {d: known for d, known in self._gone_back.items() if known[0] > record.round}
        record.payload, record.wire = by_kind(crossed.payload), by_kind(crossed.wire)
        record.uncoded = run.uncoded(record.round)
        if (privacy := run.privacy) is not None:
            spent = max(privacy.epsilon.values(), default=0.0)
            record.privacy = {"epsilon": min(spent, LARGEST_EPSILON), "limit": privacy.limit}
        traffic = run.traffic_by_device()
        record.by_device = divided(traffic - self._devices_before, record.wire)
        self._devices_before = traffic
        record.rejected = {reason.value: number for reason, number in sorted(crossed.rejected.items())}
        # FedAvg would send its model once in each round, and once more in the last evaluation.
        answers = 0 if record.kind == EVALUATION else len(record.participants)
        record.fedavg = {UP: self._model_bytes * answers, DOWN: self._model_bytes}
        of_round = self._metrics_of_round()
        self._set_measures(record, run, of_round)
        if record.evaluation:
            self._set_measures(record.evaluation, run, self._evaluated)
        record.measured = self._who_measured(record, of_round)
        self._note_lacking(run.plan.metrics())
        record.energy = self._energy.by_device()
        record.temperature = dict(sorted(self._temperature.items()))
        if record.kind == EVALUATION:
            record.confusion = self._confusion(run)
            record.machines = by_machine(run.software)
        for sink in self._sinks:
            self._isolation.call(sink.round_ended, record)

    def _note_lacking(self, own: Iterable[str]) -> None:
        """Report to the sinks each metric for which a device sent no finite number; report each metric only once."""
        for name in own:
            if name not in self._lacking and (devices := lacking(self._metrics, name)):
                self._lacking.add(name)
                words = lacking_words(name, devices, self._record.round)
                self._tell_sinks("lacking", round=self._record.round, metric=name, reason=words)

    def _metrics_of_round(self) -> dict[str, dict[str, float]]:
        """Return the metrics of the round by device.

        If the round began with an evaluation, the result includes the metrics of the global model from that
        evaluation.
        """
        found = {
            device: {n: v for n, v in metrics.items() if n == SAMPLES or is_of_global(n)}
            for device, metrics in self._evaluated.items()
        }
        for device, metrics in self._metrics.items():
            found[device] = {**found.get(device, {}), **metrics}
        return found

    def _set_measures(
        self, record: RoundRecord | EvaluationRecord, run: RunView, metrics: Mapping[str, Mapping[str, float]]
    ) -> None:
        held = {d: (run.domains.get(d, d), run.members[d].examples) for d in metrics}
        cap = run.policy.weight_cap
        record.accuracy = by_domain(metrics, held, "accuracy.test", cap)
        record.validation = by_domain(metrics, held, "accuracy.validation", cap)
        record.validation_by_device = by_device(metrics, "accuracy.validation") if cap else {}
        record.loss = by_domain(metrics, held, "loss.test", cap)
        own = {name: by_domain(metrics, held, f"{name}.test", cap) for name in run.plan.metrics()}
        record.figures = {**record.figures, **own_figures(own)}
        record.pooled = pooled(metrics, self._samples, cap)

    def _who_measured(
        self, record: RoundRecord, metrics: Mapping[str, Mapping[str, float]]
    ) -> dict[str, dict[str, int]]:
        """Return for each view how many devices measured it, how many were asked, and how many were present.

        A device counts as asked if it was asked in any phase, because a device may miss a phase.
        """
        found: dict[str, dict[str, int]] = {}
        for view in record.accuracy:
            name = f"accuracy.test.{view}"
            in_evaluation = record.evaluation is not None and view in record.evaluation.accuracy
            asked: Collection[str] = {device for phase in record.phases for device in phase.asked}
            if record.evaluation and in_evaluation and is_of_global(name):
                asked = record.evaluation.asked
            devices = sum(name in of_device for of_device in metrics.values())
            found[view] = {"devices": devices, "asked": len(asked), "present": len(self._present)}
        return found

    def _confusion(self, run: RunView) -> dict[str, Matrix]:
        last = self._record.phases[-1].phase if self._record.phases else ""
        arrays = run.arrays(self._record.round, last)
        used = [device for device in self._record.participants if device in arrays]
        counted = ((device, arrays[device], self._metrics.get(device, {})) for device in used)
        cap = weight_cap([self._samples.get(device, 0.0) for device in used], run.policy.weight_cap)
        return confusion_by_domain(counted, run.domains, run.plan.variant.reports, cap)

    def _bytes(self) -> dict[str, int]:
        meter = self._run.meter
        return {
            f"{name}_{way}": sum(n for (d, _), n in counter.items() if d == way)
            for name, counter in (("payload", meter.payload), ("wire", meter.wire))
            for way in (UP, DOWN)
        }

    def _tell_sinks(self, what: str, **details: Any) -> None:
        for sink in self._sinks:
            self._isolation.call(sink.entry, what, details)


def is_of_global(metric: str) -> bool:
    """Return whether a metric belongs to the global model; the prediction rule of the model does not matter."""
    return metric.split(".", 2)[-1].startswith("global")


def by_kind(counter: Mapping[tuple[str, str], int]) -> ByKind:
    found: ByKind = {UP: {}, DOWN: {}}
    for (direction, kind), size in sorted(counter.items()):
        if size:
            found[direction][kind] = size
    return found
