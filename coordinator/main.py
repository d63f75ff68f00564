"""Start a coordinator process from its settings, and serve the run until it is over.

The order is: settings, key, lock, look, claim, link, run, service.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from protofleet.coordinator.config import CoordinatorSettings
from protofleet.coordinator.connection import CoordinatorConnection, run_of, unless
from protofleet.coordinator.control import commands_of
from protofleet.coordinator.devices.bans import Bans
from protofleet.coordinator.leading.lock import sole_use
from protofleet.coordinator.leading.standby import Standby
from protofleet.coordinator.moving.place import CoordinatorPlace, demand_here
from protofleet.coordinator.observe.observers import observed
from protofleet.coordinator.observe.process_metrics import process_registry
from protofleet.coordinator.observe.run_labels import RunLabels
from protofleet.coordinator.operator_commands import VERBS
from protofleet.coordinator.operators import OperatorLoop, set_up_operators
from protofleet.coordinator.page.operated_page import OperatedPage
from protofleet.coordinator.page.process_page import ProcessPage
from protofleet.coordinator.page.serving import page_served
from protofleet.coordinator.process_health import health_of
from protofleet.coordinator.ready import demand_ready
from protofleet.coordinator.round.events import BUDGET
from protofleet.coordinator.server.budget_spent import BudgetSpentError
from protofleet.coordinator.server.diverged import DivergedError
from protofleet.coordinator.service import CoordinatorService
from protofleet.coordinator.spool.epochs import least_epoch, next_epoch, save_epoch
from protofleet.coordinator.spool.index import MissingFolderError, check_run
from protofleet.coordinator.spool.lives import Life
from protofleet.coordinator.spool.spool import Spool
from protofleet.coordinator.start import (
    USUAL,
    StartOptions,
    highest_of_others,
    note_end,
    standby_of,
    still_alone,
)
from protofleet.methods.contract.liveness import on_progress
from protofleet.methods.contract.plan import Plan
from protofleet.methods.contract.torch_setup import compute_deterministically, one_thread_here
from protofleet.protocol.security.keyfiles import keep_to_ourselves
from protofleet.protocol.security.keys import Keyring, Keys
from protofleet.protocol.security.operators import OperatorRecord
from protofleet.protocol.storage.store import DamagedError
from protofleet.protocol.transport.base import Done
from protofleet.protocol.transport.receive_queue import ReceiveQueue
from protofleet.protocol.wire.names import COORDINATOR
from protofleet.runtime import credentials
from protofleet.runtime.allocator import return_large_blocks
from protofleet.runtime.control_socket import listening
from protofleet.runtime.event_loop import ThreadWorker, Worker, serve, stop_on_signals
from protofleet.runtime.health import Heartbeats, watchdog
from protofleet.runtime.host.metrics import HostMetrics
from protofleet.runtime.metrics_page import Scrapes, exposed

log = logging.getLogger("protofleet.coordinator")


@dataclass(frozen=True, slots=True)
class ClaimedRun:
    """A run whose folder this process has claimed, and the keys of the coordinator."""

    plan: Plan
    spool: Spool
    epoch: int
    keys: Keys
    keyring: Keyring
    operators: Mapping[str, OperatorRecord]


def claim(settings: CoordinatorSettings, keys: Keys, keyring: Keyring, look: Callable[[], int]) -> ClaimedRun:
    """Claim the folder of the run, with an epoch above all earlier epochs of the federation on this machine.

    `look` returns the highest epoch that other machines are known to have had.
    """
    operators = credentials.operators_of(settings.enrolled, settings.federation, settings.devices)
    if settings.select is not None:
        settings.select.demand_no_labels("this one conducts the run of its file")
        enrolled = frozenset(keyring) - {COORDINATOR}
        if problem := settings.select.problem(settings.policy.quorum, enrolled, {}):
            log.warning("%s", problem)
    compute_deterministically(strict=True)
    plan = settings.plan()
    runs, text = Path(settings.folder), plan.encode().decode()
    folder = runs / settings.name / "coordinator"
    check_run(folder, settings.name, text)
    highest, clock = look(), int(time.time())
    spool = Spool(folder)
    try:
        least = max(least_epoch(runs, settings.federation, clock), next_epoch([highest], clock))
        epoch = spool.start_run(settings.name, text, clock, least)
        save_epoch(runs, settings.federation, epoch)
    except BaseException:
        spool.close()
        raise
    return ClaimedRun(plan, spool, epoch, keys, keyring, operators)


class ConductedRun:
    """A run and all that it needs in this process: its folder, its connection to the broker, and its service."""

    def __init__(
        self, settings: CoordinatorSettings, claimed: ClaimedRun, receive_queue: ReceiveQueue, heartbeats: Heartbeats,
        stopped: Callable[[], bool], worker: Worker, standby: Standby | None,
    ) -> None:  # fmt: skip
        self.name, self.spool = settings.name, claimed.spool
        self.folder = Path(settings.folder) / settings.name
        self.connection = CoordinatorConnection(
            settings, claimed.keys, claimed.keyring, claimed.epoch, self.folder,
            Bans(self.spool.folder, self.spool.disk), receive_queue, worker, standby,
        )  # fmt: skip
        self.context, self.transport = self.connection.context, self.connection.transport
        keep_waiting = unless(stopped, heartbeats)
        self.run = run_of(settings, claimed.plan, self.spool, self.connection, keep_waiting)
        self.service = CoordinatorService(self.context, [self.run])
        self.connection.look_after_cuts(self.service)
        self.commands = commands_of(self.run, receive_queue)
        self.operators, self.news = set_up_operators(
            self.connection, claimed.operators, bool(settings.enrolled), self.spool.heard_operators(), self.commands,
            lambda call: receive_queue.put(Done(call)), lambda run: self.run.operator_commands.final_state(),
            only_run=self.name,
        )  # fmt: skip
        receive_queue.unwanted = partial(self.operators.unwanted, of_devices=self.service.unwanted)

    def connect(self) -> None:
        self.connection.connect()

    def close(self) -> None:
        self.transport.close()
        if self.run.budget:
            self.run.budget.close()


def run_coordinator(
    settings: CoordinatorSettings, software: str, events: bool = False, built: Mapping[str, str] | None = None,
    how: StartOptions = USUAL,
) -> str:  # fmt: skip
    """Conduct the run to its end; return why it ended early, or "" if it did not end early.

    `built` holds the commit of this software and the digest of its sources, if they are known.
    """
    folder = Path(settings.folder) / settings.name
    place = CoordinatorPlace(folder.parent, settings.name)
    keep_to_ourselves(place.folder)
    demand_here(place)
    return_large_blocks()
    keys, keyring = credentials.of_coordinator(
        settings.enrolled, settings.federation, settings.key, settings.devices
    )
    receive_queue = ReceiveQueue()
    stopped = stop_on_signals(receive_queue.put)
    standby = None if how.alone else standby_of(settings, keys, folder)
    with sole_use(place.folder, how.take_over):
        demand_here(place)

        def look() -> int:
            if how.take_over:
                demand_ready(settings, [folder.parent, place.folder])
            return highest_of_others(
                standby, settings.patience_seconds, receive_queue, stopped, how.take_over
            )

        claimed = claim(settings, keys, keyring, look)
        with contextlib.closing(claimed.spool):
            return _conduct(
                settings, claimed, receive_queue, stopped, standby, Shown(software, events, built)
            )


@dataclass(frozen=True, slots=True)
class Shown:
    """The facts about this process that its metrics and its records show."""

    software: str
    events: bool
    built: Mapping[str, str] | None


def _conduct(
    settings: CoordinatorSettings, claimed: ClaimedRun, receive_queue: ReceiveQueue, stopped: Callable[[], bool],
    standby: Standby | None, show: Shown,
) -> str:  # fmt: skip
    folder, heartbeats = Path(settings.folder) / settings.name, Heartbeats()
    life = Life(Path(settings.folder), settings.federation)
    on_progress(lambda: heartbeats.beat_if_working("work"))
    # One thread checks the small arrays of an update faster than two threads, because two threads wait for
    # each other.
    worker = ThreadWorker(receive_queue, heartbeats, begin=one_thread_here(settings.threads))
    conducted = ConductedRun(settings, claimed, receive_queue, heartbeats, stopped, worker, standby)
    service, run = conducted.service, conducted.run
    try:
        checks = health_of(conducted.context, heartbeats, folder)
        watched = watchdog(heartbeats, settings.watchdog_seconds)
        scrapes = Scrapes()
        operated = OperatedPage(settings.page_address(), conducted.commands)
        page = ProcessPage(VERBS)
        host = HostMetrics(show.software, "coordinator", folder, settings.broker)
        metrics = RunLabels(process_registry(conducted.context, host, life.unclean_at))
        shown = observed(
            run, settings, folder, show.software, show.events, metrics.showing, show.built,
            page if settings.page_port else None,
        )  # fmt: skip
        served = exposed(metrics, settings.endpoint(), checks, scrapes)
        control = listening(folder / "coordinator", operated.handle)
        with (
            conducted.news.taking_lines(),
            shown as finish,
            served,
            page_served(page, operated),
            watched,
            control,
        ):
            patience, rank = settings.patience_seconds, conducted.connection.rank
            if still_alone(standby, rank, patience, stopped, life):
                conducted.connect()
            service.session.give_up_after(patience, time.monotonic())
            with conducted.spool.index.detect_takeover():
                serve(OperatorLoop(service, conducted.operators), receive_queue, time.monotonic, heartbeats)
            finish()
            if not service.stopped:
                # The run is over, so the devices no longer need the connection.
                conducted.transport.close()
                scrapes.wait_for_last(stopped)
        note_end(life, service, stopped)
        if run.diverged:
            raise DivergedError(f"the run cannot continue: {run.diverged}")
        end = run.machine.ended_early
        if run.view.over and end is not None and end.by == BUDGET:
            raise BudgetSpentError(f"the run has ended early: {end.words}")
        return service.stopped
    except MissingFolderError as error:
        raise DamagedError(f"{error}; put it back and start the coordinator again") from error
    finally:
        conducted.close()
