"""A device process, put together: settings -> key, data, link, agent -> until the run is over."""

from __future__ import annotations

import logging
import time
from pathlib import Path

import torch

from protofleet.edge_client.agent import Agent
from protofleet.edge_client.config import DeviceSettings
from protofleet.edge_client.host.status_file import StatusFile
from protofleet.edge_client.host.supervisor import Supervisor
from protofleet.edge_client.host.systemd import NotifySocket, SystemdNotifier, drain_on_signal
from protofleet.edge_client.metrics import watch_device
from protofleet.edge_client.state.device import DeviceState
from protofleet.edge_client.trainer.child_trainer import ChildTrainer
from protofleet.edge_client.trainer.deadline import Deadline
from protofleet.edge_client.trainer.local import LocalTrainer
from protofleet.edge_client.view import AgentView
from protofleet.methods.contract.liveness import on_progress, tensors_work
from protofleet.methods.contract.torch_setup import one_thread_here
from protofleet.protocol.link.clocks import Clock
from protofleet.protocol.link.device import DeviceLink
from protofleet.protocol.security.envelope import seals
from protofleet.protocol.security.keyfiles import keep_to_ourselves
from protofleet.protocol.security.keys import Identity
from protofleet.protocol.transport.inbox import BoundedInbox
from protofleet.protocol.transport.mqtt import Mqtt
from protofleet.protocol.wire.topics import Topics
from protofleet.runtime import credentials
from protofleet.runtime.allocator import return_large_blocks
from protofleet.runtime.event_loop import ThreadWorker, serve, stop_on_signals, wait_for_broker
from protofleet.runtime.health import Check, Heartbeats, disk_is_writable, loop_is_running, watchdog
from protofleet.runtime.host_metrics import HostMetrics

log = logging.getLogger("protofleet.device")


def run_device(settings: DeviceSettings, software: str, version: int = 0) -> str:
    """Serve until told to stop; what comes back is why it ended early, or nothing. `version` is the settings'."""
    keep_to_ourselves(Path(settings.folder))
    systemd = NotifySocket()
    return_large_blocks()
    keys, keyring = credentials.of_device(
        settings.enrolled, settings.federation, settings.name, settings.key, settings.coordinator_key
    )
    inbox, heartbeats = BoundedInbox(), Heartbeats()
    on_progress(lambda: heartbeats.beat_if_working("work"))
    state = DeviceState(Path(settings.folder))
    trainer = trainer_of(settings, state)
    me = Identity(settings.name, state.boot(int(time.time()), keys.holder), keys)
    topics = Topics(settings.federation)
    transport = Mqtt(
        f"{settings.federation}.{settings.name}",
        settings.broker,
        inbox,
        subscriptions=topics.device_subscriptions(settings.name),
        session_seconds=settings.session_seconds,
        clean_start=False,
    )
    sealed, clock = seals(settings.security), Clock(since=keys.not_before)
    link = DeviceLink(me, keyring, topics, transport, state.store, sealed, clock)
    inbox.dropped = link.count_overflow
    transport.connect(link.will(topics.device_state(settings.name)))

    # A child has a limit of its own, and its steps are not seen from here.
    beating = heartbeats if settings.trainer == "inside" else None
    worker = ThreadWorker(inbox, beating, begin=one_thread_here(settings.threads))
    agent = Agent(trainer.data, trainer.start, link, state, worker, software=software, stays=settings.stays)
    status = StatusFile(Path(settings.status), software, version) if settings.status else None
    supervisor = Supervisor(agent, settings, trainer.limit)
    notifier = SystemdNotifier(agent, systemd, status, every_few_seconds=supervisor.check)
    systemd.notify("READY=1")
    try:
        wait_for_broker(inbox, settings.patience_seconds, notifier.check)
        checks = health(agent.view, heartbeats, state.folder, trainer.place)
        where = HostMetrics(software, "device", state.folder, settings.broker)
        metrics = watch_device(agent, settings.endpoint(), checks, where)
        with metrics, watchdog(heartbeats, settings.watchdog_seconds):
            stop_on_signals(inbox)
            drain_on_signal(agent, inbox.put)
            serve(notifier, inbox, time.monotonic, heartbeats)
        return agent.view.problem
    finally:
        transport.close()
        trainer.stop()


def health(device: AgentView, heartbeats: Heartbeats, folder: Path, place: torch.device) -> dict[str, Check]:
    """What has to be true of a device that can do its work."""
    return {
        "loop": loop_is_running(heartbeats),
        "broker": lambda: "" if device.connected else "there is no session with the broker; see the log",
        "hello": lambda: (
            ""
            if device.coordinator_answered
            else "no coordinator has answered yet; does it run, does it know us?"
        ),
        "torch": lambda: tensors_work(place),
        "disk": disk_is_writable(folder),
    }


def trainer_of(settings: DeviceSettings, state: DeviceState) -> LocalTrainer | ChildTrainer:
    """In a process of its own, which may die of its work, or in this very one."""
    if settings.trainer == "child":
        return ChildTrainer(settings, state.half)
    deadline = Deadline(settings.limits.work_seconds)
    on_progress(deadline.check)
    return LocalTrainer(settings, deadline)
