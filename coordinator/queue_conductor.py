"""Conduct the runs of the queue: bring each run into the state that its row wants, and note the state that it has."""

from __future__ import annotations

import contextlib
import logging
import sqlite3
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

from protofleet.coordinator.active_run import ActiveRun, fact_of
from protofleet.coordinator.connection import CoordinatorConnection, unless
from protofleet.coordinator.observe.observers import observed
from protofleet.coordinator.observe.run_labels import RunLabels
from protofleet.coordinator.observe.series import QueueSeries
from protofleet.coordinator.operator_commands import state_of
from protofleet.coordinator.page.process_page import ProcessPage
from protofleet.coordinator.page.queue_table import QueueTable
from protofleet.coordinator.process_faults import is_of_the_process, words_of
from protofleet.coordinator.queue.folder import queue_folder
from protofleet.coordinator.queue.queue_file import QueueFile
from protofleet.coordinator.queue.settle import Change, Conduct, Tell, settle
from protofleet.coordinator.queue.states import (
    FAILED,
    FINAL,
    PAUSED,
    STARTING,
    STATES,
    QueuedRun,
    RunFact,
    active_runs,
)
from protofleet.coordinator.round.events import Paused, Stopped
from protofleet.coordinator.run import Run
from protofleet.coordinator.service import CoordinatorService
from protofleet.coordinator.service_settings import ServiceSettings
from protofleet.coordinator.spool.index import LaterEpochError, MissingFolderError, index_of
from protofleet.protocol.settings.reader import SettingsError
from protofleet.protocol.storage.disk import is_full, is_locked
from protofleet.protocol.storage.store import DamagedError, NewerFormatError
from protofleet.protocol.wire.messages import Finished
from protofleet.runtime.control_socket import CONTROL_SOCKET
from protofleet.runtime.health import Heartbeats
from protofleet.runtime.logs import lines_of_run

log = logging.getLogger("protofleet.coordinator")

WAY_OUT: Final = "put the folder of the run back and resume the run, or stop it"


@dataclass(frozen=True, slots=True)
class ShownBy:
    """The parts of the process that show its runs; `report` writes the report of a run that has ended."""

    metrics: RunLabels
    counts: QueueSeries
    page: ProcessPage | None
    software: str
    prints_events: bool
    built: Mapping[str, str]
    report: Callable[[Path], None]


class QueueConductor:
    def __init__(
        self, settings: ServiceSettings, queue: QueueFile, connection: CoordinatorConnection,
        service: CoordinatorService, shown_by: ShownBy, heartbeats: Heartbeats, is_stopped: Callable[[], bool],
    ) -> None:  # fmt: skip
        self._settings, self._queue = settings, queue
        self._connection, self._context, self._service = connection, connection.context, service
        self._shown_by, self._heartbeats, self._is_stopped = shown_by, heartbeats, is_stopped
        self.open: dict[str, ActiveRun] = {}  # The runs that are conducted, in the order of their beginning.
        self.facts: dict[str, RunFact] = {}
        # Runs that have an order which their folder does not show yet.
        self._told: set[str] = set()
        self._unsettled, self._cannot_write = True, False
        self._on_page: Mapping[str, QueuedRun] | None = None  # The rows that the page has got last.

    def changed(self) -> None:
        """Note that a command has changed the rows, so that the next turn settles the queue."""
        self._unsettled = True
        self._told.clear()

    def settle(self) -> None:
        """Bring the rows of the queue up to date, and carry out the orders that follow from the rows."""
        self._unsettled = False
        while step := settle(self._queue.runs, self.facts, self._settings.queue.slots, self._told):
            match step:
                case Change():
                    if not self._change(step):
                        break
                case Conduct(name):
                    self._told.add(name)
                    self._note_which_are_paused()
                    self._conduct(name)
                case Tell(name) if name in self.open:
                    self._told.add(name)
                    with self._context.around(name):
                        self._tell(step, self.open[name].run)
                case Tell(name):
                    # The run could not go on. Now an operator has resumed or stopped it, so it is tried again.
                    self.facts.pop(name)
        self._note_which_are_paused()
        states = Counter(run.state for run in self._queue.runs.values())
        for state in STATES:
            self._shown_by.counts.runs.labels(state).set(states[state])
        self._show_queue()

    def _show_queue(self) -> None:
        """Show the queue on the page. A change puts a new mapping in place of the old one."""
        page = self._shown_by.page
        if page is not None and self._on_page is not self._queue.runs:
            self._on_page = self._queue.runs
            page.show_queue(QueueTable.of(self._on_page, self._settings.queue.slots))

    def end_turn(self) -> bool:
        """Settle the queue if a command has changed it, or if a run is in another state.

        Return whether a run was told something, which it has to write to the disk.
        """
        for name, error in list(self._context.failed.items()):
            self._failed(name, error)
        for name in list(self.open):
            with self._context.around(name):
                self._note_state(name)
        if not self._unsettled:
            return False
        self.settle()
        if self._cannot_write:
            return False
        is_waiting = any(conducted.spool.has_uncommitted for conducted in self.open.values())
        return is_waiting or bool(self._context.failed)

    def _note_state(self, name: str) -> None:
        conducted = self.open[name]
        if conducted.run.times.shutdown.is_over(self._context.now):
            self._end(conducted)
        elif (fact := fact_of(conducted)) is not None and fact != self.facts.get(name):
            self.facts[name] = fact
            self._told.discard(name)
            self._unsettled = True

    def _note_which_are_paused(self) -> None:
        """Note the active runs that are not conducted now, and the run of the devices that follow only one run."""
        active = active_runs(self._queue.runs)
        has_ended = {name for name, fact in self.facts.items() if fact.state in FINAL}
        closed = [run for run in active if run.name not in self.open.keys() | has_ended]
        self._service.paused = {
            name for run in closed for name in (*run.on_wire.earlier, run.on_wire.wire_name)
        }
        # Without an active run, the last one keeps its name in the messages to all devices.
        names = {run.name: run.on_wire.wire_name for run in active}
        if names and self._connection.link.run not in names.values():
            self._service.lead(names.get(self._queue.legacy) or next(iter(names.values())))

    def _change(self, change: Change) -> bool:
        """Write a change; return False if the disk is full or the file is locked, and the change has to wait."""
        try:
            self._queue.change(change)
        except Exception as error:
            if not (is_full(error) or is_locked(error)):
                raise
            if not self._cannot_write:
                folder = queue_folder(self._settings.folder)
                log.error("%s cannot be written: %s; the coordinator tries again", folder, error)
            self._cannot_write = self._unsettled = True
            return False
        self._cannot_write = False
        if change.closed:
            self.facts.pop(change.run, None)
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
                self._service.lift(run.wire_name)
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
        conducted = ActiveRun(settings, self._connection, keep_waiting, row.origin, row.on_wire)
        self.open[row.name] = conducted
        by = self._shown_by
        observers = observed(
            conducted.run, settings, conducted.folder, by.software, by.prints_events,
            partial(by.metrics.showing, run=row.name), by.built, by.page, in_queue=True,
        )  # fmt: skip
        conducted.observe(observers)
        has_shared = conducted.spool.device_time.lift is not None
        self._service.add(conducted.run, starts=self._context.connected or not has_shared)
        # An operator may have changed the number before the run began, or the folder may lack the newest change.
        self.extend(conducted.run, row.rounds)

    def extend(self, run: Run, rounds: int) -> None:
        """Give the run this number of rounds, if it can have it."""
        event, _ = run.operator_commands.extended(rounds)
        if event is not None:
            run.happen(event)

    def _failed(self, name: str, error: Exception) -> None:
        missing = (FileNotFoundError, MissingFolderError)
        if any(isinstance(one, missing) for one in (error, error.__cause__)):
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
            self.facts[name] = RunFact(PAUSED, words)
            if (row.state, row.reason) != (PAUSED, words):
                self._change(Change(name, PAUSED, words))
        else:
            self.facts[name] = RunFact(FAILED, words, closed=True)
        self._close(name)
        self._shown_by.metrics.fail(name)

    def _missing(self, name: str, error: Exception) -> Exception:
        """Return the error for a run with a missing file; raise FencedError if another coordinator has the folder."""
        if (conducted := self.open.get(name)) is not None:
            with contextlib.suppress(FileNotFoundError, MissingFolderError, sqlite3.Error):
                conducted.spool.index.check_claim()
        return DamagedError(f"{words_of(error)}; {WAY_OUT}")

    def _end(self, conducted: ActiveRun) -> None:
        """End a run whose devices know that it is over."""
        run = conducted.run
        conducted.finish()
        self.facts[run.name] = RunFact(*state_of(run.machine, run.view), closed=True)
        self._unsettled = True
        self._close(run.name)
        self._shown_by.report(conducted.folder)

    def reopen(self, name: str) -> None:
        """Close a paused run without a word to its devices; it goes on under its new name on the wire."""
        self.facts.pop(name, None)
        if (conducted := self.open.pop(name, None)) is not None:
            # Otherwise a hello that arrives in this turn would get `finished`, and the device would forget the run.
            self._note_which_are_paused()
            self._service.remove(conducted.run.wire_name)
            conducted.close()

    def _close(self, name: str) -> None:
        """Close a run, and tell its devices if it has ended and they do not know it."""
        conducted = self.open.pop(name, None)
        self._context.failed.pop(name, None)
        self._told.discard(name)
        self._note_which_are_paused()
        if conducted is None:
            return
        run = conducted.run
        if run.wire_name in self._service.runs:
            if (
                run.wire_name not in self._service.paused
                and not run.times.shutdown.begun
                and self._context.connected
            ):
                for device in sorted(run.machine.roster):
                    run.link.send(device, Finished(run.machine.rounds))
            self._service.remove(run.wire_name)
        conducted.close()

    def close(self) -> None:
        """Close all runs; they go on when the coordinator starts again."""
        for name in list(self.open):
            self.open.pop(name).close()

    def check_claims(self) -> None:
        """Raise FencedError if another coordinator has claimed the folder of a run."""
        for conducted in self.open.values():
            conducted.spool.index.check_claim()
