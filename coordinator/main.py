"""Start a coordinator process from its settings, and serve the run until it is over.

The order is: settings, key, spool, link, run, service.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from protofleet.coordinator.config import CoordinatorSettings
from protofleet.coordinator.connection import CoordinatorConnection, run_of, unless
from protofleet.coordinator.context import ProcessContext
from protofleet.coordinator.control import commands_of
from protofleet.coordinator.devices.bans import Bans
from protofleet.coordinator.observe.observers import observed
from protofleet.coordinator.observe.process_metrics import process_registry
from protofleet.coordinator.observe.run_labels import RunLabels
from protofleet.coordinator.operator_commands import VERBS
from protofleet.coordinator.page.operated_page import OperatedPage
from protofleet.coordinator.page.process_page import ProcessPage
from protofleet.coordinator.page.serving import page_served
from protofleet.coordinator.round.events import BUDGET
from protofleet.coordinator.server.budget_spent import BudgetSpentError
from protofleet.coordinator.server.diverged import DivergedError
from protofleet.coordinator.service import CoordinatorService
from protofleet.coordinator.spool.epochs import least_epoch, save_epoch
from protofleet.coordinator.spool.index import MissingFolderError
from protofleet.coordinator.spool.lives import Life
from protofleet.coordinator.spool.spool import Spool
from protofleet.methods.contract.liveness import on_progress, tensors_work
from protofleet.methods.contract.plan import Plan
from protofleet.methods.contract.torch_setup import compute_deterministically, one_thread_here
from protofleet.protocol.security.keyfiles import keep_to_ourselves
from protofleet.protocol.security.keys import Keyring, Keys
from protofleet.protocol.storage.store import DamagedError
from protofleet.protocol.transport.receive_queue import ReceiveQueue
from protofleet.protocol.wire.names import COORDINATOR
from protofleet.runtime import credentials
from protofleet.runtime.allocator import return_large_blocks
from protofleet.runtime.control_socket import listening
from protofleet.runtime.event_loop import ThreadWorker, Worker, end_on_signals, serve, stop_on_signals
from protofleet.runtime.health import Check, Heartbeats, disk_is_writable, loop_is_running, watchdog
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


def claim(settings: CoordinatorSettings) -> ClaimedRun:
    """Claim the folder of the run, with an epoch above all earlier epochs of the federation on this machine."""
    keys, keyring = credentials.of_coordinator(
        settings.enrolled, settings.federation, settings.key, settings.devices
    )
    if settings.select is not None:
        settings.select.demand_no_labels("this one conducts the run of its file")
        enrolled = frozenset(keyring) - {COORDINATOR}
        if problem := settings.select.problem(settings.policy.quorum, enrolled, {}):
            log.warning("%s", problem)
    compute_deterministically(strict=True)
    plan = settings.plan()
    runs, clock = Path(settings.folder), int(time.time())
    spool = Spool(runs / settings.name / "coordinator")
    try:
        least = least_epoch(runs, settings.federation, clock)
        epoch = spool.start_run(settings.name, plan.encode().decode(), clock, least)
        save_epoch(runs, settings.federation, epoch)
    except BaseException:
        spool.close()
        raise
    return ClaimedRun(plan, spool, epoch, keys, keyring)


class ConductedRun:
    """A run and all that it needs in this process: its folder, its connection to the broker, and its service."""

    def __init__(
        self, settings: CoordinatorSettings, claimed: ClaimedRun, receive_queue: ReceiveQueue, heartbeats: Heartbeats,
        stopped: Callable[[], bool], worker: Worker,
    ) -> None:  # fmt: skip
        self.name, self.spool = settings.name, claimed.spool
        self.folder = Path(settings.folder) / settings.name
        self.connection = CoordinatorConnection(
            settings, claimed.keys, claimed.keyring, claimed.epoch, self.folder,
            Bans(self.spool.folder, self.spool.disk), receive_queue, worker,
        )  # fmt: skip
        self.context, self.transport = self.connection.context, self.connection.transport
        keep_waiting = unless(stopped, heartbeats)
        self.run = run_of(settings, claimed.plan, self.spool, self.connection, keep_waiting)
        self.service = CoordinatorService(self.context, [self.run])
        receive_queue.unwanted = self.service.unwanted

    def connect(self) -> None:
        self.connection.connect()

    def close(self) -> None:
        self.transport.close()
        if self.run.budget:
            self.run.budget.close()


def run_coordinator(
    settings: CoordinatorSettings, software: str, events: bool = False, built: Mapping[str, str] | None = None,
    restored: bool = False,
) -> str:  # fmt: skip
    """Conduct the run to its end; return why it ended early, or "" if it did not end early.

    `built` holds the commit of this software and the digest of its sources, if they are known. `restored` says that
    the folder came back from a backup.
    """
    folder = Path(settings.folder) / settings.name
    keep_to_ourselves(folder / "coordinator")
    return_large_blocks()
    claimed = claim(settings)
    receive_queue, heartbeats = ReceiveQueue(), Heartbeats()
    stopped, life = stop_on_signals(receive_queue.put), Life(Path(settings.folder), settings.federation)
    on_progress(lambda: heartbeats.beat_if_working("work"))
    # One thread checks the small arrays of an update faster than two threads, because two threads wait for
    # each other.
    worker = ThreadWorker(receive_queue, heartbeats, begin=one_thread_here(settings.threads))
    conducted = ConductedRun(settings, claimed, receive_queue, heartbeats, stopped, worker)
    service, run = conducted.service, conducted.run
    conducted.context.restored = restored
    conducted.connect()
    try:
        checks = health(conducted.context, heartbeats, folder)
        watched = watchdog(heartbeats, settings.watchdog_seconds)
        scrapes = Scrapes()
        operated = OperatedPage(settings.page_address(), commands_of(run, receive_queue))
        page = ProcessPage(VERBS)
        host = HostMetrics(software, "coordinator", folder, settings.broker)
        metrics = RunLabels(process_registry(conducted.context, host, life.unclean_at))
        shown = observed(
            run, settings, folder, software, events, metrics.showing, built,
            page if settings.page_port else None,
        )  # fmt: skip
        served = exposed(metrics, settings.endpoint(), checks, scrapes)
        control = listening(folder / "coordinator", operated.handle)
        with shown as finish, served, page_served(page, operated), watched, control:
            service.session.give_up_after(settings.patience_seconds, time.monotonic())
            with conducted.spool.index.detect_takeover():
                serve(service, receive_queue, time.monotonic, heartbeats)
            finish()
            if not service.stopped:
                # The run is over, so the devices no longer need the connection.
                conducted.transport.close()
                scrapes.wait_for_last(stopped)
        if service.behind:
            end_on_signals()
            if not stopped():
                life.end(in_order=True)
                raise service.behind
        life.end(in_order=stopped() or not service.stopped)
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
        claimed.spool.close()


def health(context: ProcessContext, heartbeats: Heartbeats, folder: Path) -> dict[str, Check]:
    """Return the health checks of the coordinator by name. The coordinator is healthy if all of them pass."""
    return {
        "loop": loop_is_running(heartbeats),
        "broker": lambda: "" if context.connected else "there is no session with the broker; see the log",
        "torch": tensors_work,
        "disk": disk_is_writable(folder),
    }
