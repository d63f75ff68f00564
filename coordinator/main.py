"""Start a coordinator process from its settings, and serve the run until it is over.

The order is: settings, key, spool, link, run, service.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from protofleet.coordinator.config import CoordinatorSettings
from protofleet.coordinator.context import ProcessContext
from protofleet.coordinator.devices.bans import Bans
from protofleet.coordinator.observe.observers import observed
from protofleet.coordinator.round.machine import RoundMachine
from protofleet.coordinator.run import Run
from protofleet.coordinator.server.budget_spent import BudgetSpentError
from protofleet.coordinator.server.diverged import DivergedError
from protofleet.coordinator.service import CoordinatorService
from protofleet.coordinator.spool.epochs import least_epoch, process_identity, save_epoch
from protofleet.coordinator.spool.lives import Life
from protofleet.coordinator.spool.spool import Spool
from protofleet.methods.contract.liveness import on_progress, tensors_work
from protofleet.methods.contract.torch_setup import compute_deterministically, one_thread_here
from protofleet.protocol.link.block_qos import BlockQos
from protofleet.protocol.link.clocks import Clock
from protofleet.protocol.link.coordinator import CoordinatorLink
from protofleet.protocol.security.envelope import seals
from protofleet.protocol.security.keyfiles import keep_to_ourselves
from protofleet.protocol.security.keys import Identity
from protofleet.protocol.transport.mqtt import Mqtt
from protofleet.protocol.transport.receive_queue import ReceiveQueue
from protofleet.protocol.wire.names import COORDINATOR
from protofleet.protocol.wire.topics import Topics
from protofleet.runtime import credentials
from protofleet.runtime.allocator import return_large_blocks
from protofleet.runtime.event_loop import ThreadWorker, serve, stop_on_signals
from protofleet.runtime.health import Check, Heartbeats, disk_is_writable, loop_is_running, watchdog
from protofleet.runtime.metrics_page import Scrapes

log = logging.getLogger("protofleet.coordinator")


def run_coordinator(
    settings: CoordinatorSettings, software: str, events: bool = False, built: Mapping[str, str] | None = None
) -> str:
    """Conduct the run to its end; return why it ended early, or "" if it did not end early.

    `built` holds the commit of this software and the digest of its sources, if they are known.
    """
    folder = Path(settings.folder) / settings.name
    keep_to_ourselves(folder / "coordinator")
    return_large_blocks()
    keys, keyring = credentials.of_coordinator(
        settings.enrolled, settings.federation, settings.key, settings.devices
    )
    compute_deterministically(strict=True)
    plan = settings.plan()
    spool = Spool(folder / "coordinator")
    runs, clock = Path(settings.folder), int(time.time())
    least = least_epoch(runs, settings.federation, clock)
    epoch = spool.start_run(settings.name, plan.encode().decode(), clock, least)
    save_epoch(runs, settings.federation, epoch)
    receive_queue, heartbeats = ReceiveQueue(), Heartbeats()
    stopped, life = stop_on_signals(receive_queue.put), Life(runs, settings.federation)
    on_progress(lambda: heartbeats.beat_if_working("work"))
    topics, me = Topics(settings.federation), Identity(COORDINATOR, epoch, keys)

    name, subscriptions = f"{settings.federation}.{COORDINATOR}", topics.coordinator_subscriptions()
    transport = Mqtt(name, settings.broker, receive_queue, subscriptions=subscriptions)
    link = CoordinatorLink(
        me, keyring, topics, transport, spool.store, settings.name,
        seals(settings.security), Clock(since=keys.not_before), process_identity(folder),
    )  # fmt: skip
    link.block_qos, link.most_block = BlockQos(settings.broker.block_qos), settings.broker.block_bytes
    machine = RoundMachine(settings.policy, settings.rounds, settings.seed)
    # One thread checks the small arrays of an update faster than two threads, because two threads wait for
    # each other.
    worker = ThreadWorker(receive_queue, heartbeats, begin=one_thread_here(settings.threads))
    context = ProcessContext(link, worker, Bans(spool.folder, spool.disk))
    spool.index.db.keep_waiting = unless(stopped, heartbeats)
    with spool.index.detect_takeover():
        run = Run(
            plan, machine, spool, context, limits=settings.limits, class_names=settings.class_names,
            budget=settings.budget,
        )  # fmt: skip
    service = CoordinatorService(context, run)
    receive_queue.dropped, receive_queue.unwanted = link.count_overflow, service.unwanted
    transport.connect(link.will(topics.coord_state), returns=lambda: link.hears_own_messages)
    try:
        checks = health(context, heartbeats, folder)
        watched = watchdog(heartbeats, settings.watchdog_seconds)
        scrapes = Scrapes()
        shown = observed(run, settings, folder, software, events, checks, scrapes, life.unclean_at, built)
        with shown as finish, watched:
            service.session.give_up_after(settings.patience_seconds, time.monotonic())
            with spool.index.detect_takeover():
                serve(service, receive_queue, time.monotonic, heartbeats)
            finish()
            if not service.stopped:
                transport.close()  # The run is over, so the devices no longer need the connection.
                scrapes.wait_for_last(stopped)
        life.end(in_order=stopped() or not service.stopped)
        if run.diverged:
            raise DivergedError(f"the run cannot continue: {run.diverged}")
        if run.view.over and run.machine.exhausted:
            raise BudgetSpentError(f"the run has ended early: {run.machine.exhausted}")
        return service.stopped
    finally:
        transport.close()
        if run.budget:
            run.budget.close()
        spool.close()


def unless(stopped: Callable[[], bool], heartbeats: Heartbeats) -> Callable[[], bool]:
    """Make a function that returns False if a wait for a locked file must end.

    The main loop calls this function while it waits. Each call sends a heartbeat, so the watchdog does
    not end the process during the wait. The wait must end once a stop signal has arrived.
    """

    def keep_waiting() -> bool:
        heartbeats.beat_if_working("loop")
        return not stopped()

    return keep_waiting


def health(context: ProcessContext, heartbeats: Heartbeats, folder: Path) -> dict[str, Check]:
    """Return the health checks of the coordinator by name. The coordinator is healthy if all of them pass."""
    return {
        "loop": loop_is_running(heartbeats),
        "broker": lambda: "" if context.connected else "there is no session with the broker; see the log",
        "torch": tensors_work,
        "disk": disk_is_writable(folder),
    }
