"""Carry out the commands that operators give to a coordinator of several runs, and answer their questions."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from dataclasses import replace
from itertools import chain
from typing import Any

from protofleet.coordinator.context import ProcessContext
from protofleet.coordinator.devices.answered_rounds import behind_words
from protofleet.coordinator.devices.selection import DeviceSelection, SelectedDevices
from protofleet.coordinator.moving.place import ENDS, HAND_OVER, MOVED, ONLY_HERE
from protofleet.coordinator.queue.commands import (
    DENIED,
    DONE,
    MOST_LOGGED,
    MOST_WORDS,
    REFUSED,
    SHOWN,
    Decision,
    QueueCommand,
    Submission,
    decide,
    rounds_are_fixed,
    shown_commands,
)
from protofleet.coordinator.queue.folder import queue_folder
from protofleet.coordinator.queue.labelling import Labelling, decide_labels, shown_labels
from protofleet.coordinator.queue.queue_file import QueueFile
from protofleet.coordinator.queue.states import FINAL, PAUSED, WAITING, QueuedRun, in_groups, waits_for
from protofleet.coordinator.queue_conductor import QueueConductor
from protofleet.coordinator.queue_requests import loggable
from protofleet.coordinator.request_form import denial_of
from protofleet.coordinator.service import CoordinatorService
from protofleet.coordinator.service_settings import ServiceSettings
from protofleet.coordinator.spool.generations import read_progress
from protofleet.coordinator.spool.index import index_of
from protofleet.protocol.security.operators import SHOWS
from protofleet.protocol.storage.disk import is_full, is_locked
from protofleet.runtime.logs import lines_of_run

log = logging.getLogger("protofleet.coordinator")


class QueueExecutor:
    def __init__(
        self,
        settings: ServiceSettings,
        queue: QueueFile,
        conductor: QueueConductor,
        service: CoordinatorService,
    ) -> None:
        self._settings, self._queue, self._conductor, self._service = settings, queue, conductor, service
        self._context: ProcessContext = service.context

    def execute(
        self, command: QueueCommand, more: Submission | Labelling | None, refusal: str
    ) -> Mapping[str, Any]:
        """Carry out a command once, and return its answer; `refusal` says why it cannot be carried out, or is ""."""
        try:
            return self._executed(command, more, refusal)
        except Exception as error:
            if not (is_full(error) or is_locked(error)):
                raise
            folder = queue_folder(self._settings.folder)
            words = f"{folder} cannot be written: {error}; send the command again"
            return {"verdict": "failed", "words": words}

    def _executed(
        self, command: QueueCommand, more: Submission | Labelling | None, refusal: str
    ) -> Mapping[str, Any]:
        denial = denial_of(command)
        if command.verb in SHOWS:
            if denial or refusal:
                return {"verdict": DENIED if denial else REFUSED, "words": denial or refusal}
            return self._view(command)
        if (known := self._queue.result_of(command)) is not None:
            return {"verdict": known.verdict, "words": known.words}
        if denial or refusal:
            decision = Decision(DENIED if denial else REFUSED, denial or refusal)
        else:
            decision = self._decide(command, more)
        command, decision = loggable(command), replace(decision, words=decision.words[:MOST_WORDS])
        self._queue.save(command, decision)
        self._note(command, decision)
        if command.new_generation and decision.changed:
            self._conductor.reopen(command.run)
        if command.verb == "extend" and decision.changed and command.run in self._conductor.open:
            with self._context.around(command.run):
                self._conductor.extend(self._conductor.open[command.run].run, command.rounds)
        if decision.labelled is not None:
            self._service.selection_changed()
        if command.verb == HAND_OVER and decision.verdict == DONE:
            # This leaves in the folders of the runs what a kill leaves.
            self._service.stop(MOVED)
        return {"verdict": decision.verdict, "words": decision.words}

    def _view(self, command: QueueCommand) -> Mapping[str, Any]:
        match command.verb:
            case "runs":
                return {
                    "verdict": DONE,
                    "words": "",
                    "runs": [self._shown(run) for run in chain(*in_groups(self._queue.runs))],
                }
            case "show" | "follow" if command.run in self._queue.runs:
                row = self._queue.runs[command.run]
                most = SHOWN if command.verb == "show" else 0
                return {"verdict": DONE, "words": "", **self._shown_whole(row, most)}
            case "labels":
                devices = shown_labels(self._queue.labels, self._context.enrolled_devices)
                return {"verdict": DONE, "words": "", "devices": devices}
            case "log":
                newest = self._queue.newest_of_all(MOST_LOGGED)
                rows = [
                    {"run": one.run} | row for one, row in zip(newest, shown_commands(newest), strict=True)
                ]
                return {"verdict": DONE, "words": "", "commands": rows}
        return {"verdict": REFUSED, "words": f"the queue has no run {command.run}"}

    def _refusal_of_extend(self, command: QueueCommand) -> str:
        """Return why a run that is not over cannot have another number of rounds; "" if it can."""
        row = self._queue.runs.get(command.run)
        if row is None or row.state in FINAL:
            return ""
        if (conducted := self._conductor.open.get(row.name)) is not None:
            _, result = conducted.run.operator_commands.extended(command.rounds)
            return "" if result.verdict == DONE else result.words
        if row.is_active or index_of(self._settings.folder / row.name).exists():
            reason = (
                self._conductor.facts[row.name].reason if row.name in self._conductor.facts else row.reason
            )
            return f"its folder is not in use now ({reason}); send the command again while the run is active"
        plan = self._settings.of_run(row.name, row.experiment).plan()
        fixed = plan.variant.fixed_rounds
        return rounds_are_fixed(plan.method, fixed) if fixed and command.rounds != row.rounds else ""

    def _refusal_of_resume(self, command: QueueCommand) -> str:
        """Return why a run that came back from a backup cannot go on in its present generation; "" if it can."""
        row = self._queue.runs.get(command.run)
        if row is None or not row.restored or row.state != PAUSED or command.new_generation:
            return ""
        settings, present = self._settings.of_run(row.name, row.experiment), self._service.answered_rounds
        here, _ = read_progress(self._settings.folder / row.name)
        selection = SelectedDevices(settings.select or DeviceSelection(), self._queue.labels)
        rounds = {d: n for d, n in present.of(row.on_wire.wire_name).items() if selection.selects(d)}
        return behind_words(row.name, here, rounds, settings.policy.quorum)

    def _decide(self, command: QueueCommand, more: Submission | Labelling | None) -> Decision:
        if command.verb == HAND_OVER:
            return Decision(REFUSED, ONLY_HERE) if command.sender else Decision(DONE, ENDS)
        if isinstance(more, Labelling):
            return decide_labels(more, self._queue.labels, self._context.enrolled_devices)
        if more is not None:
            selection, enrolled = more.selection or DeviceSelection(), self._context.enrolled_devices
            if problem := selection.problem(more.quorum, enrolled, self._queue.labels):
                return Decision(REFUSED, problem)
        refusals = {"extend": self._refusal_of_extend, "resume": self._refusal_of_resume}
        refusal = refusals[command.verb](command) if command.verb in refusals else ""
        return decide(command, self._queue.runs, int(time.time()), more, refusal, self._settings.folder)

    def _note(self, command: QueueCommand, decision: Decision) -> None:
        self._conductor.changed()
        with lines_of_run(command.run):
            log.info("%s: %s: %s", command.operator, command.verb, decision.words)

    def _shown(self, run: QueuedRun) -> dict[str, Any]:
        reason = waits_for(run, self._queue.runs, self._settings.queue.slots)
        if not reason and (conducted := self._conductor.open.get(run.name)) is not None:
            fact = self._conductor.facts.get(run.name)
            waiting = fact.reason if fact is not None and fact.state == WAITING else ""
            reason = conducted.run.participants.misfits.words or waiting
        return {
            "run": run.name, "state": run.state, "reason": reason, "rounds": run.rounds,
            "over": bool(run.closed),
            "priority": run.priority, "after": run.after, "operator": run.operator, "submitted": run.submitted,
            "started": run.started, "ended": run.ended, "revision": run.revision,
            "origin": run.origin.shown() if run.origin else {}, "generation": run.generation,
        }  # fmt: skip

    def _shown_whole(self, run: QueuedRun, most: int) -> dict[str, Any]:
        """Return the state of a run, and at most this number of its newest commands."""
        found = self._shown(run) | {"federation": self._settings.own.federation}
        if (conducted := self._conductor.open.get(run.name)) is not None:
            now = conducted.run.operator_commands.shown()
            # The row says what is wanted; while the run goes on, its own state says what it waits for.
            found |= {
                key: now[key] for key in ("round", "phase", "asked", "answered", "present", "connected")
            }
            found["reason"] = found["reason"] or now["reason"]
        return found | {"commands": shown_commands(self._queue.newest_results(run.name, most))}
