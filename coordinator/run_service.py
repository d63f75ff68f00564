"""Stay up, and conduct the submitted runs, several at a time.

The process holds the lock of the queue's folder. It has one connection and one epoch, which all of its runs share.
The folder of each active run is claimed with this epoch. While no run is active, the connection stays.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from protofleet.coordinator.connection import CoordinatorConnection
from protofleet.coordinator.devices.bans import Bans
from protofleet.coordinator.leading.lock import sole_use
from protofleet.coordinator.leading.standby import Standby
from protofleet.coordinator.moving.place import CoordinatorPlace, demand_here
from protofleet.coordinator.observe.process_metrics import process_registry
from protofleet.coordinator.observe.run_labels import RunLabels
from protofleet.coordinator.observe.series import QueueSeries
from protofleet.coordinator.operators import OperatorLoop, set_up_operators
from protofleet.coordinator.page.operated_page import OperatedPage
from protofleet.coordinator.page.process_page import ProcessPage
from protofleet.coordinator.page.serving import page_served
from protofleet.coordinator.process_health import health_of
from protofleet.coordinator.queue.folder import queue_folder
from protofleet.coordinator.queue.queue_file import QueueFile, check_queue
from protofleet.coordinator.queue.states import QueuedRun
from protofleet.coordinator.queue_conductor import QueueConductor, ShownBy
from protofleet.coordinator.queue_executor import QueueExecutor
from protofleet.coordinator.queue_requests import MOST_REQUEST, VERBS, queue_commands
from protofleet.coordinator.ready import demand_ready
from protofleet.coordinator.service import CoordinatorService
from protofleet.coordinator.service_settings import ServiceSettings
from protofleet.coordinator.spool.epochs import least_epoch, next_epoch, save_epoch
from protofleet.coordinator.spool.index import claimed_epoch, index_of
from protofleet.coordinator.spool.lives import Life
from protofleet.coordinator.start import (
    USUAL,
    StartOptions,
    highest_of_others,
    note_end,
    standby_of,
    still_alone,
)
from protofleet.methods.contract.liveness import on_progress
from protofleet.methods.contract.torch_setup import compute_deterministically, one_thread_here
from protofleet.protocol.security.keyfiles import keep_to_ourselves
from protofleet.protocol.security.keys import Keyring, Keys
from protofleet.protocol.security.operators import OperatorRecord
from protofleet.protocol.storage.disk import Disk, is_full, is_locked
from protofleet.protocol.transport.base import Done, Item
from protofleet.protocol.transport.receive_queue import ReceiveQueue
from protofleet.runtime import credentials
from protofleet.runtime.allocator import return_large_blocks
from protofleet.runtime.control_socket import listening
from protofleet.runtime.event_loop import ThreadWorker, WorkThread, serve, stop_on_signals
from protofleet.runtime.health import Heartbeats, watchdog
from protofleet.runtime.host.metrics import HostMetrics
from protofleet.runtime.metrics_page import MeterCollector, exposed

log = logging.getLogger("protofleet.coordinator")


def run_service(
    settings: ServiceSettings, software: str, events: bool, report: Callable[[Path], None],
    built: Mapping[str, str] | None = None, how: StartOptions = USUAL,
) -> str:  # fmt: skip
    """Conduct the submitted runs until the process has to end; return the reason.

    `report` writes the report of a run that has ended.
    """
    place, own = CoordinatorPlace(settings.folder), settings.own
    folder = place.folder
    keep_to_ourselves(folder)
    demand_here(place)
    folder.mkdir(parents=True, exist_ok=True)
    return_large_blocks()
    keys, keyring = credentials.of_coordinator(own.enrolled, own.federation, own.key, own.devices)
    operators = credentials.operators_of(own.enrolled, own.federation, own.devices)
    receive_queue = ReceiveQueue()
    is_stopped = stop_on_signals(receive_queue.put)
    standby = None if how.alone else standby_of(own, keys, folder)
    with sole_use(folder, how.take_over):
        demand_here(place)
        check_queue(folder, own.federation)
        if how.take_over:
            demand_ready(own, [settings.folder, folder])
        highest = highest_of_others(standby, own.patience_seconds, receive_queue, is_stopped, how.take_over)
        lead = Lead(keys, keyring, operators, standby, highest)
        service = RunService(settings, software, events, report, built or {}, lead, receive_queue, is_stopped)
        if how.pauses:
            service.pause_restored_runs()
        with contextlib.closing(service):
            return service.serve()


@dataclass(frozen=True, slots=True)
class Lead:
    """The keys of a process that may lead the federation, and what it knows of other coordinators."""

    keys: Keys
    keyring: Keyring
    operators: Mapping[str, OperatorRecord]
    standby: Standby | None
    highest: int  # the highest epoch that the broker knows


class RunService:
    def __init__(
        self, settings: ServiceSettings, software: str, events: bool, report: Callable[[Path], None],
        built: Mapping[str, str], lead: Lead, receive_queue: ReceiveQueue, is_stopped: Callable[[], bool],
    ) -> None:  # fmt: skip
        self._settings, self._highest, self._standby = settings, lead.highest, lead.standby
        own = settings.own
        self._folder = queue_folder(settings.folder)
        compute_deterministically(strict=True)
        self._queue = QueueFile(self._folder, own.federation, time.time, least=self._least_epoch)
        save_epoch(settings.folder, own.federation, self._queue.epoch)
        self._heartbeats, self._events, self._is_stopped = Heartbeats(), receive_queue, is_stopped
        self._life = Life(settings.folder, own.federation)
        self._work = WorkThread(self._heartbeats)
        self._work.start(one_thread_here(own.threads))
        on_progress(lambda: self._heartbeats.beat_if_working("work"))
        bans = Bans(self._folder / "coordinator", Disk())
        worker = ThreadWorker(self._events, thread=self._work)
        self._connection = CoordinatorConnection(
            own, lead.keys, lead.keyring, self._queue.epoch, self._folder, bans, self._events, worker,
            lead.standby,
        )  # fmt: skip
        self._context = self._connection.context
        self._context.isolates_runs = True
        self._context.labels = self._queue.labels
        self.service = CoordinatorService(self._context, [], stays=True)
        self._connection.look_after_cuts(self.service)
        self._events.unwanted = self._unwanted
        self.service.choose_legacy = self._choose_legacy
        host = HostMetrics(software, "coordinator", settings.folder, own.broker)
        process = process_registry(self._context, host, self._life.unclean_at)
        # Without an active run, messages are counted here.
        process.register(MeterCollector(self._connection.link.unassigned.meter))
        self._metrics = RunLabels(process, settings.queue.slots)
        self._page = ProcessPage(VERBS) if own.page_port else None
        shown_by = ShownBy(self._metrics, QueueSeries(process), self._page, software, events, built, report)
        self.conductor = QueueConductor(
            settings, self._queue, self._connection, self.service, shown_by, self._heartbeats, self._is_stopped
        )  # fmt: skip
        executor = QueueExecutor(settings, self._queue, self.conductor, self.service)
        self._commands = queue_commands(settings, executor.execute, self._call)
        self.operators, self._news = set_up_operators(
            self._connection, lead.operators, bool(own.enrolled), self._queue.heard(), self._commands, self._call,
            self._final_state,
        )  # fmt: skip
        self._operated = OperatedPage(own.page_address(), self._commands, lambda run: run in self._queue.runs)

    def _least_epoch(self, runs: Iterable[QueuedRun]) -> int:
        """Return an epoch that is above the epochs of all runs that are not over."""
        folder, clock = self._settings.folder, int(time.time())
        claimed = {claimed_epoch(folder / run.name / "coordinator") for run in runs if not run.closed}
        claimed.add(self._highest)
        return max(least_epoch(folder, self._settings.own.federation, clock), next_epoch(claimed, clock))

    def pause_restored_runs(self) -> None:
        """Pause all runs that are not over, durably, because the folder came back from a backup."""
        self._queue.restore(lambda run: index_of(self._settings.folder / run).exists())

    def serve(self) -> str:
        own = self._settings.own
        checks = health_of(self._context, self._heartbeats, self._folder)
        metrics = exposed(self._metrics, own.endpoint(), checks)
        control = listening(self._folder, self._operated.handle, MOST_REQUEST)
        page = page_served(self._page, self._operated) if self._page else contextlib.nullcontext()
        # The metrics come last: they tell others that the coordinator takes commands.
        watched = watchdog(self._heartbeats, own.watchdog_seconds)
        with self._news.taking_lines(), page, control, metrics, watched:
            log.info("the coordinator conducts the runs that are submitted to %s", self._settings.folder)
            # The folders of all active runs are claimed before the first message, which has the epoch of the claims.
            self.conductor.settle()
            try:
                patience, rank = own.patience_seconds, self._connection.rank
                if still_alone(self._standby, rank, patience, self._is_stopped, self._life):
                    self._connection.connect()
                self.service.session.give_up_after(patience, time.monotonic())
                serve(
                    OperatorLoop(ServiceLoop(self), self.operators),
                    self._events,
                    time.monotonic,
                    self._heartbeats,
                )
            except FileNotFoundError:
                # If a later coordinator has deleted the file, the error says so.
                self.conductor.check_claims()
                raise
            finally:
                self.conductor.close()
                self._connection.transport.close()
        note_end(self._life, self.service, self._is_stopped)
        return self.service.stopped

    def close(self) -> None:
        self._queue.close()

    def _unwanted(self, topic: str) -> bool:
        """Return whether messages on this topic are dropped unread. Any thread may call this method."""
        return self.operators.unwanted(topic, self.service.unwanted)

    def _call(self, call: Callable[[], None]) -> None:
        """Make the thread of the event loop call a function. Any thread may call this method."""
        self._events.put(Done(call))

    def _final_state(self, run: str) -> str:
        """Return the state of a run that is over, and "" before."""
        row = self._queue.runs.get(run)
        return row.state if row is not None and row.closed else ""

    def _choose_legacy(self, name: str) -> bool:
        """Make a run the legacy run, durably; return False if the disk does not take it now."""
        try:
            self._queue.choose_legacy(name)
        except Exception as error:
            if not (is_full(error) or is_locked(error)):
                raise
            return False
        self.service.lead(self._queue.runs[name].on_wire.wire_name)
        return True


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
        self._service.take(item, now)

    def wake(self, now: float) -> None:
        self._service.wake(now)

    def end_turn(self, now: float) -> None:
        self._service.end_turn(now)
        while self._runs.conductor.end_turn():
            self._service.end_turn(now)
