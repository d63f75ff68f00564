"""Stay up, and conduct the submitted runs, several at a time.

The process holds the lock of the queue's folder. It has one connection and one epoch, which all of its runs share.
The folder of each active run is claimed with this epoch. While no run is active, the connection stays.
"""

from __future__ import annotations

import contextlib
import logging
import sqlite3
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, Final

from protofleet.coordinator.config import CoordinatorSettings
from protofleet.coordinator.connection import CoordinatorConnection, run_of, unless
from protofleet.coordinator.devices.bans import Bans
from protofleet.coordinator.observe.observers import observed
from protofleet.coordinator.observe.process_metrics import process_registry
from protofleet.coordinator.observe.run_labels import RunLabels
from protofleet.coordinator.observe.series import QueueSeries
from protofleet.coordinator.operator_commands import state_of
from protofleet.coordinator.operators import BrokerOperators
from protofleet.coordinator.page.operated_page import OperatedPage
from protofleet.coordinator.page.process_page import ProcessPage
from protofleet.coordinator.page.queue_table import QueueTable
from protofleet.coordinator.page.serving import page_served
from protofleet.coordinator.process_faults import is_of_the_process, words_of
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
from protofleet.coordinator.queue.settle import Change, Conduct, Tell, settle
from protofleet.coordinator.queue.states import (
    FAILED,
    FINAL,
    PAUSED,
    STARTING,
    STATES,
    WAITING,
    QueuedRun,
    RunFact,
    active_runs,
    in_groups,
    waits_for,
)
from protofleet.coordinator.queue_requests import (
    MOST_REQUEST,
    SHOWS,
    VERBS,
    denial_of,
    loggable,
    queue_commands,
)
from protofleet.coordinator.round.events import Paused, Stopped
from protofleet.coordinator.run import Run
from protofleet.coordinator.service import CoordinatorService
from protofleet.coordinator.service_settings import ServiceSettings
from protofleet.coordinator.spool.epochs import least_epoch, next_epoch, save_epoch
from protofleet.coordinator.spool.index import LaterEpochError, claimed_epoch, index_of
from protofleet.coordinator.spool.lives import Life
from protofleet.coordinator.spool.origin import Origin
from protofleet.coordinator.spool.spool import Spool
from protofleet.methods.contract.liveness import on_progress, tensors_work
from protofleet.methods.contract.torch_setup import compute_deterministically, one_thread_here
from protofleet.protocol.link.operators import CommandReceiver
from protofleet.protocol.security.keyfiles import keep_to_ourselves
from protofleet.protocol.security.keys import Keyring, Keys
from protofleet.protocol.security.operators import OperatorRecord
from protofleet.protocol.settings.reader import SettingsError
from protofleet.protocol.storage.disk import Disk, is_full, is_locked
from protofleet.protocol.storage.folder_lock import held_if_free
from protofleet.protocol.storage.store import DamagedError, NewerFormatError
from protofleet.protocol.transport.base import Arrived, Connected, Done, Item
from protofleet.protocol.transport.receive_queue import ReceiveQueue
from protofleet.protocol.wire.messages import Finished
from protofleet.runtime import credentials
from protofleet.runtime.allocator import return_large_blocks
from protofleet.runtime.control_socket import CONTROL_SOCKET, listening
from protofleet.runtime.event_loop import ThreadWorker, WorkThread, end_on_signals, serve, stop_on_signals
from protofleet.runtime.health import Check, Heartbeats, disk_is_writable, loop_is_running, watchdog
from protofleet.runtime.host.metrics import HostMetrics
from protofleet.runtime.logs import lines_of_run
from protofleet.runtime.metrics_page import MeterCollector, exposed

log = logging.getLogger("protofleet.coordinator")

WAY_OUT: Final = "put the folder of the run back and resume the run, or stop it"


def run_service(
    settings: ServiceSettings, software: str, events: bool, report: Callable[[Path], None],
    built: Mapping[str, str] | None = None,
) -> str:  # fmt: skip
    """Conduct the submitted runs until the process has to end; return the reason.

    `report` writes the report of a run that has ended.
    """
    folder, own = queue_folder(settings.folder), settings.own
    keep_to_ourselves(folder)
    folder.mkdir(parents=True, exist_ok=True)
    return_large_blocks()
    keys, keyring = credentials.of_coordinator(own.enrolled, own.federation, own.key, own.devices)
    operators = credentials.operators_of(own.enrolled, own.federation, own.devices)
    with held_if_free(folder) as is_ours:
        if not is_ours:
            return f"another coordinator conducts the queue in {folder}; end it, or set another `folder` for this one"
        service = RunService(settings, software, events, report, built or {}, keys, keyring, operators)
        with contextlib.closing(service):
            return service.serve()


class RunService:
    def __init__(
        self, settings: ServiceSettings, software: str, events: bool, report: Callable[[Path], None],
        built: Mapping[str, str], keys: Keys, keyring: Keyring, operators: Mapping[str, OperatorRecord],
    ) -> None:  # fmt: skip
        self._settings, self._software, self._built = settings, software, built
        self._prints_events, self._report = events, report
        own = settings.own
        self._folder = queue_folder(settings.folder)
        compute_deterministically(strict=True)
        self._queue = QueueFile(self._folder, own.federation, time.time, least=self._least_epoch)
        save_epoch(settings.folder, own.federation, self._queue.epoch)
        self._heartbeats, self._events = Heartbeats(), ReceiveQueue()
        self._is_stopped = stop_on_signals(self._events.put)
        self._life = Life(settings.folder, own.federation)
        self._work = WorkThread(self._heartbeats)
        self._work.start(one_thread_here(own.threads))
        on_progress(lambda: self._heartbeats.beat_if_working("work"))
        bans = Bans(self._folder / "coordinator", Disk())
        worker = ThreadWorker(self._events, thread=self._work)
        self._connection = CoordinatorConnection(
            own, keys, keyring, self._queue.epoch, self._folder, bans, self._events, worker
        )
        self._context = self._connection.context
        self._context.isolates_runs = True
        self._context.labels = self._queue.labels
        self.service = CoordinatorService(self._context, [], stays=True)
        self._events.unwanted = self._unwanted
        self.service.choose_legacy = self._choose_legacy
        self._open: dict[str, ActiveRun] = {}  # The runs that are conducted, in the order of their beginning.
        self._facts: dict[str, RunFact] = {}
        # Runs that have an order which their folder does not show yet.
        self._told: set[str] = set()
        self._unsettled, self._cannot_write = True, False
        host = HostMetrics(software, "coordinator", settings.folder, own.broker)
        process = process_registry(self._context, host, self._life.unclean_at)
        # Without an active run, messages are counted here.
        process.register(MeterCollector(self._connection.link.unassigned.meter))
        self._metrics, self._counts = RunLabels(process, settings.queue.slots), QueueSeries(process)
        self._commands = queue_commands(settings, self._execute, self._call)
        commands = CommandReceiver(self._connection.link, operators)
        commands.remember(self._queue.heard())
        self.operators = BrokerOperators(commands, self._commands, self._call, bans)
        if own.enrolled:
            self._connection.transport.subscribe(commands.topics.all_commands)
        self._operated = OperatedPage(own.page_address(), self._commands, lambda run: run in self._queue.runs)
        self._page = ProcessPage(VERBS) if own.page_port else None
        self._on_page: Mapping[str, QueuedRun] | None = None  # The rows that the page has got last.

    def _least_epoch(self, runs: Iterable[QueuedRun]) -> int:
        """Return an epoch that is above the epochs of all runs that are not over."""
        folder, clock = self._settings.folder, int(time.time())
        claimed = {claimed_epoch(folder / run.name / "coordinator") for run in runs if not run.closed}
        return max(least_epoch(folder, self._settings.own.federation, clock), next_epoch(claimed, clock))

    def serve(self) -> str:
        own = self._settings.own
        metrics = exposed(self._metrics, own.endpoint(), self._health())
        control = listening(self._folder, self._operated.handle, MOST_REQUEST)
        page = page_served(self._page, self._operated) if self._page else contextlib.nullcontext()
        # The metrics come last: they tell others that the coordinator takes commands.
        with page, control, metrics, watchdog(self._heartbeats, own.watchdog_seconds):
            log.info("the coordinator conducts the runs that are submitted to %s", self._settings.folder)
            # The folders of all active runs are claimed before the first message, which has the epoch of the claims.
            self.settle()
            self.service.session.give_up_after(own.patience_seconds, time.monotonic())
            self._connection.connect()
            try:
                serve(ServiceLoop(self), self._events, time.monotonic, self._heartbeats)
            except FileNotFoundError:
                # If a later coordinator has deleted the file, the error says so.
                for conducted in self._open.values():
                    conducted.spool.index.check_claim()
                raise
            finally:
                for name in list(self._open):
                    self._open.pop(name).close()
                self._connection.transport.close()
        if self.service.behind:
            end_on_signals()
            if not self._is_stopped():
                self._life.end(in_order=True)
                raise self.service.behind
        self._life.end(in_order=self._is_stopped())
        return self.service.stopped

    def close(self) -> None:
        self._queue.close()

    def _unwanted(self, topic: str) -> bool:
        """Return whether messages on this topic are dropped unread. Any thread may call this method."""
        is_command = self.operators.is_for_us(topic)
        return self.operators.unwanted(topic) if is_command else self.service.unwanted(topic)

    def _call(self, call: Callable[[], None]) -> None:
        """Make the thread of the event loop call a function. Any thread may call this method."""
        self._events.put(Done(call))

    # Methods for the steps of the queue.

    def settle(self) -> None:
        """Bring the rows of the queue up to date, and carry out the orders that follow from the rows."""
        self._unsettled = False
        while step := settle(self._queue.runs, self._facts, self._settings.queue.slots, self._told):
            match step:
                case Change():
                    if not self._change(step):
                        break
                case Conduct(name):
                    self._told.add(name)
                    self._note_which_are_paused()
                    self._conduct(name)
                case Tell(name) if name in self._open:
                    self._told.add(name)
                    with self._context.around(name):
                        self._tell(step, self._open[name].run)
                case Tell(name):
                    # The run could not go on. Now an operator has resumed or stopped it, so it is tried again.
                    self._facts.pop(name)
        self._note_which_are_paused()
        states = Counter(run.state for run in self._queue.runs.values())
        for state in STATES:
            self._counts.runs.labels(state).set(states[state])
        self._show_queue()

    def _show_queue(self) -> None:
        """Show the queue on the page. A change puts a new mapping in place of the old one."""
        if self._page is not None and self._on_page is not self._queue.runs:
            self._on_page = self._queue.runs
            self._page.show_queue(QueueTable.of(self._on_page, self._settings.queue.slots))

    def end_turn(self) -> bool:
        """Settle the queue if a command has changed it, or if a run is in another state.

        Return whether a run was told something, which it has to write to the disk.
        """
        for name, error in list(self._context.failed.items()):
            self._failed(name, error)
        for name in list(self._open):
            with self._context.around(name):
                self._note_state(name)
        if not self._unsettled:
            return False
        self.settle()
        if self._cannot_write:
            return False
        is_waiting = any(conducted.spool.has_uncommitted for conducted in self._open.values())
        return is_waiting or bool(self._context.failed)

    def _note_state(self, name: str) -> None:
        conducted = self._open[name]
        if conducted.run.times.shutdown.is_over(self._context.now):
            self._end(conducted)
        elif (fact := fact_of(conducted)) is not None and fact != self._facts.get(name):
            self._facts[name] = fact
            self._told.discard(name)
            self._unsettled = True

    def _note_which_are_paused(self) -> None:
        """Note the active runs that are not conducted now, and the run of the devices that follow only one run."""
        active = active_runs(self._queue.runs)
        has_ended = {name for name, fact in self._facts.items() if fact.state in FINAL}
        self.service.paused = {run.name for run in active} - self._open.keys() - has_ended
        # Without an active run, the last one keeps its name in the messages to all devices.
        names = [run.name for run in active]
        if names and self._connection.link.run not in names:
            self.service.lead(self._queue.legacy if self._queue.legacy in names else names[0])

    def _choose_legacy(self, name: str) -> bool:
        """Make a run the legacy run, durably; return False if the disk does not take it now."""
        try:
            self._queue.choose_legacy(name)
        except Exception as error:
            if not (is_full(error) or is_locked(error)):
                raise
            return False
        self.service.lead(name)
        return True

    def _change(self, change: Change) -> bool:
        """Write a change; return False if the disk is full or the file is locked, and the change has to wait."""
        try:
            self._queue.change(change)
        except Exception as error:
            if not (is_full(error) or is_locked(error)):
                raise
            if not self._cannot_write:
                log.error("%s cannot be written: %s; the coordinator tries again", self._folder, error)
            self._cannot_write = self._unsettled = True
            return False
        self._cannot_write = False
        if change.closed:
            self._facts.pop(change.run, None)
            self._told.discard(change.run)
        else:
            with lines_of_run(change.run):
                log.info("the run is %s%s", change.state, f": {change.reason}" if change.reason else "")
        return True

    def _tell(self, order: Tell, run: Run) -> None:
        """Pause, resume or stop a run that is conducted."""
        match order.verb:
            case "pause" if not run.machine.paused:
                run.happen(Paused(order.words))
            case "resume" if run.machine.paused:
                self.service.lift(run.name)
                run.happen(Paused(""))
            case "stop" if not run.machine.is_stopped:
                run.happen(Stopped(order.words))

    # Methods for one run.

    def _conduct(self, name: str) -> None:
        """Begin the work on a run, or go on with it. A failure of the run ends only the run."""
        try:
            with lines_of_run(name):
                self._begin(self._queue.runs[name])
        except Exception as error:
            if is_of_the_process(error):
                raise
            self._failed(name, error)

    def _begin(self, row: QueuedRun) -> None:
        settings = self._settings.of_run(row.name, row.experiment)
        if row.state != STARTING and not (path := index_of(Path(settings.folder) / row.name)).exists():
            raise DamagedError(f"{path} is missing, although the run has begun; {WAY_OUT}")
        self._heartbeats.beat_if_working("loop")
        # A coordinator of this run alone may have been killed and have left its socket.
        (Path(settings.folder) / row.name / "coordinator" / CONTROL_SOCKET).unlink(missing_ok=True)
        keep_waiting = unless(self._is_stopped, self._heartbeats)
        conducted = ActiveRun(settings, self._connection, keep_waiting, row.origin)
        self._open[row.name] = conducted
        observers = observed(
            conducted.run, settings, conducted.folder, self._software, self._prints_events,
            partial(self._metrics.showing, run=row.name), self._built, self._page, in_queue=True,
        )  # fmt: skip
        conducted.observe(observers)
        has_shared = conducted.spool.device_time.lift is not None
        self.service.add(conducted.run, starts=self._context.connected or not has_shared)
        # An operator may have changed the number before the run began, or the folder may lack the newest change.
        self._extend(conducted.run, row.rounds)

    def _extend(self, run: Run, rounds: int) -> None:
        """Give the run this number of rounds, if it can have it."""
        event, _ = run.operator_commands.extended(rounds)
        if event is not None:
            run.happen(event)

    def _failed(self, name: str, error: Exception) -> None:
        if any(isinstance(one, FileNotFoundError) for one in (error, error.__cause__)):
            error = self._missing(name, error)
        words, row = words_of(error), self._queue.runs[name]
        expected = (SettingsError, DamagedError, NewerFormatError, LaterEpochError)
        with lines_of_run(name):
            log.error(
                "the run cannot go on: %s", words, exc_info=None if isinstance(error, expected) else error
            )
        self._unsettled = True
        if isinstance(error, (DamagedError, NewerFormatError, LaterEpochError)) and row.state not in FINAL:
            # An operator can put the folder back and resume the run, or stop it.
            self._facts[name] = RunFact(PAUSED, words)
            if (row.state, row.reason) != (PAUSED, words):
                self._change(Change(name, PAUSED, words))
        else:
            self._facts[name] = RunFact(FAILED, words, closed=True)
        self._close(name)
        self._metrics.fail(name)

    def _missing(self, name: str, error: Exception) -> Exception:
        """Return the error for a run with a missing file; raise FencedError if another coordinator has the folder."""
        if (conducted := self._open.get(name)) is not None:
            with contextlib.suppress(FileNotFoundError, sqlite3.Error):
                conducted.spool.index.check_claim()
        return DamagedError(f"{words_of(error)}; {WAY_OUT}")

    def _end(self, conducted: ActiveRun) -> None:
        """End a run whose devices know that it is over."""
        run = conducted.run
        conducted.finish()
        self._facts[run.name] = RunFact(*state_of(run.machine, run.view), closed=True)
        self._unsettled = True
        self._close(run.name)
        self._report(conducted.folder)

    def _close(self, name: str) -> None:
        """Close a run, and tell its devices if it has ended and they do not know it."""
        conducted = self._open.pop(name, None)
        self._context.failed.pop(name, None)
        self._told.discard(name)
        self._note_which_are_paused()
        if conducted is None:
            return
        run = conducted.run
        if name in self.service.runs:
            if name not in self.service.paused and not run.times.shutdown.begun and self._context.connected:
                for device in sorted(run.machine.roster):
                    run.link.send(device, Finished(run.machine.rounds))
            self.service.remove(name)
        conducted.close()

    def _health(self) -> dict[str, Check]:
        def broker() -> str:
            return "" if self._context.connected else "there is no session with the broker; see the log"

        return {
            "loop": loop_is_running(self._heartbeats),
            "broker": broker,
            "torch": tensors_work,
            "disk": disk_is_writable(self._folder),
        }

    # Methods for the commands of operators.

    def _execute(
        self, command: QueueCommand, more: Submission | Labelling | None, refusal: str
    ) -> Mapping[str, Any]:
        try:
            return self._executed(command, more, refusal)
        except Exception as error:
            if not (is_full(error) or is_locked(error)):
                raise
            words = f"{self._folder} cannot be written: {error}; send the command again"
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
        if command.verb == "extend" and decision.changed and command.run in self._open:
            with self._context.around(command.run):
                self._extend(self._open[command.run].run, command.rounds)
        if decision.labelled is not None:
            self.service.selection_changed()
        return {"verdict": decision.verdict, "words": decision.words}

    def _view(self, command: QueueCommand) -> Mapping[str, Any]:
        match command.verb:
            case "runs":
                return {
                    "verdict": DONE,
                    "words": "",
                    "runs": [self._shown(run) for run in chain(*in_groups(self._queue.runs))],
                }
            case "show" if command.run in self._queue.runs:
                return {"verdict": DONE, "words": "", **self._shown_whole(self._queue.runs[command.run])}
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
        if (conducted := self._open.get(row.name)) is not None:
            _, result = conducted.run.operator_commands.extended(command.rounds)
            return "" if result.verdict == DONE else result.words
        if row.is_active or index_of(self._settings.folder / row.name).exists():
            reason = self._facts[row.name].reason if row.name in self._facts else row.reason
            return f"its folder is not in use now ({reason}); send the command again while the run is active"
        plan = self._settings.of_run(row.name, row.experiment).plan()
        fixed = plan.variant.fixed_rounds
        return rounds_are_fixed(plan.method, fixed) if fixed and command.rounds != row.rounds else ""

    def _decide(self, command: QueueCommand, more: Submission | Labelling | None) -> Decision:
        if isinstance(more, Labelling):
            return decide_labels(more, self._queue.labels, self._context.enrolled_devices)
        if more is not None and more.selection is not None:
            enrolled = self._context.enrolled_devices
            if problem := more.selection.problem(more.quorum, enrolled, self._queue.labels):
                return Decision(REFUSED, problem)
        refusal = self._refusal_of_extend(command) if command.verb == "extend" else ""
        return decide(command, self._queue.runs, int(time.time()), more, refusal)

    def _note(self, command: QueueCommand, decision: Decision) -> None:
        self._unsettled = True
        self._told.clear()
        with lines_of_run(command.run):
            log.info("%s: %s: %s", command.operator, command.verb, decision.words)

    def _shown(self, run: QueuedRun) -> dict[str, Any]:
        reason = waits_for(run, self._queue.runs, self._settings.queue.slots)
        if not reason and (conducted := self._open.get(run.name)) is not None:
            fact = self._facts.get(run.name)
            waiting = fact.reason if fact is not None and fact.state == WAITING else ""
            reason = conducted.run.participants.misfits.words or waiting
        return {
            "run": run.name, "state": run.state, "reason": reason, "rounds": run.rounds,
            "over": bool(run.closed),
            "priority": run.priority, "after": run.after, "operator": run.operator, "submitted": run.submitted,
            "started": run.started, "ended": run.ended, "revision": run.revision,
            "origin": run.origin.shown() if run.origin else {},
        }  # fmt: skip

    def _shown_whole(self, run: QueuedRun) -> dict[str, Any]:
        found = self._shown(run) | {"federation": self._settings.own.federation}
        if (conducted := self._open.get(run.name)) is not None:
            now = conducted.run.operator_commands.shown()
            # The row says what is wanted; while the run goes on, its own state says what it waits for.
            found |= {
                key: now[key] for key in ("round", "phase", "asked", "answered", "present", "connected")
            }
            found["reason"] = found["reason"] or now["reason"]
        return found | {"commands": shown_commands(self._queue.newest_results(run.name, SHOWN))}


class ServiceLoop:
    """The event loop of a coordinator that stays up: the service of its runs, and the queue."""

    def __init__(self, runs: RunService) -> None:
        self._runs, self._service = runs, runs.service

    @property
    def wake_at(self) -> float:
        return self._service.wake_at

    @property
    def finished(self) -> bool:
        return self._service.finished

    def take(self, item: Item, now: float) -> None:
        match item:
            case Arrived(topic, frame) if self._runs.operators.is_for_us(topic):
                self._runs.operators.arrived(topic, frame, now)
                return
            case Connected(max_packet):
                self._runs.operators.connected(max_packet)
        self._service.take(item, now)

    def wake(self, now: float) -> None:
        self._service.wake(now)

    def end_turn(self, now: float) -> None:
        self._service.end_turn(now)
        while self._runs.end_turn():
            self._service.end_turn(now)


class ActiveRun:
    """A run that is conducted: its folder, which has the epoch of the process, and its observers."""

    def __init__(
        self, settings: CoordinatorSettings, connection: CoordinatorConnection, keep_waiting: Callable[[], bool],
        origin: Origin | None = None,
    ) -> None:  # fmt: skip
        """Claim the folder of the run, and restore its state."""
        self.name, self.folder = settings.name, Path(settings.folder) / settings.name
        plan = settings.plan()
        self.spool = Spool(self.folder / "coordinator")
        self._ends = contextlib.ExitStack()
        self._ends.callback(self.spool.close)
        self.finish: Callable[[], None] = lambda: None
        try:
            text, clock = plan.encode().decode(), int(time.time())
            self.spool.start_run(settings.name, text, clock, exactly=connection.link.epoch)
            if origin is not None:
                self.spool.start_from(origin)
            self.run = run_of(settings, plan, self.spool, connection, keep_waiting)
        except BaseException:
            self.close()
            raise
        if self.run.budget:
            self._ends.callback(self.run.budget.close)

    def observe(self, observers: contextlib.AbstractContextManager[Callable[[], None]]) -> None:
        """Keep the observers until the run is closed; they return the function that writes the summary."""
        self.finish = self._ends.enter_context(observers)

    def close(self) -> None:
        self._ends.close()


def fact_of(conducted: ActiveRun) -> RunFact | None:
    """Return the state of a run from what is on the disk; None while something is not written yet."""
    run = conducted.run
    if len(run.queue) or run.spool.has_uncommitted:
        return None
    return RunFact(*state_of(run.machine, run.view))
