"""A device process, put together: settings -> key, data, link, agent -> until the run is over."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from protofleet.edge_client.agent import Agent
from protofleet.edge_client.bounds import Builder
from protofleet.edge_client.compute import moved, set_torch
from protofleet.edge_client.config import DeviceSettings
from protofleet.edge_client.data.shard import load
from protofleet.edge_client.evaluate import Splits
from protofleet.edge_client.host.status_file import StatusFile
from protofleet.edge_client.host.supervisor import Supervisor
from protofleet.edge_client.host.systemd import NotifySocket, SystemdNotifier, drain_on_signal
from protofleet.edge_client.metrics import watch_device
from protofleet.edge_client.pictures import Pictures
from protofleet.edge_client.state.device import DeviceState
from protofleet.edge_client.trainer.deadline import Deadline
from protofleet.edge_client.trainer.process import Trainer
from protofleet.edge_client.trainer.work import Build, Work, work
from protofleet.methods.contract.liveness import on_every_step, tensors_work
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
from protofleet.runtime.health import Check, Pulse, disk_takes, loop_turns, watchdog
from protofleet.runtime.host_metrics import Place

log = logging.getLogger("protofleet.device")


def run_device(settings: DeviceSettings, software: str, version: int = 0) -> str:
    """Serve until told to stop; what comes back is why it ended early, or nothing. `version` is the settings'."""
    keep_to_ourselves(Path(settings.folder))
    systemd = NotifySocket()
    return_large_blocks()
    keys, keyring = credentials.of_device(
        settings.enrolled, settings.federation, settings.name, settings.key, settings.coordinator_key
    )
    inbox, pulse = BoundedInbox(), Pulse()
    on_every_step(lambda: pulse.step("work"))
    state = DeviceState(Path(settings.folder))
    training = beside(settings, state) if settings.trainer == "child" else inside(settings)
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
    inbox.dropped = link.overflowed
    transport.connect(link.will(topics.device_state(settings.name)))

    # A child has a limit of its own, and its steps are not seen from here.
    worker = ThreadWorker(inbox, pulse if settings.trainer == "inside" else None)
    agent = Agent(
        training.data, training.build, link, state, worker,
        software=software, stays=settings.stays, pictures=training.pictures, work=training.work,
    )  # fmt: skip
    status = StatusFile(Path(settings.status), software, version) if settings.status else None
    caretaker = Supervisor(agent, settings, training.limit)
    watched = SystemdNotifier(agent, systemd, status, look_after=caretaker.look)
    systemd.say("READY=1")
    try:
        wait_for_broker(inbox, settings.patience_seconds, watched.look)
        checks = health(agent, pulse, state.folder, training.place)
        where = Place(software, "device", state.folder, settings.broker)
        metrics = watch_device(agent, settings.endpoint(), checks, where)
        with metrics, watchdog(pulse, settings.watchdog_seconds):
            stop_on_signals(inbox)
            drain_on_signal(agent, inbox.put)
            serve(watched, inbox, time.monotonic, pulse)
        return agent.problem
    finally:
        transport.close()
        training.stop()


def health(agent: Agent, pulse: Pulse, folder: Path, place: torch.device) -> dict[str, Check]:
    """What has to be true of a device that can do its work."""
    return {
        "loop": loop_turns(pulse),
        "broker": lambda: "" if agent.connected else "there is no session with the broker; see the log",
        "hello": lambda: (
            "" if agent.heard else "no coordinator has answered yet; does it run, does it know us?"
        ),
        "torch": lambda: tensors_work(place),
        "disk": disk_takes(folder),
    }


@dataclass(frozen=True)
class Training:
    """What the agent needs in order to have something trained."""

    data: Splits
    build: Build
    work: Work
    pictures: Pictures
    limit: Callable[[int, float], None]  # bytes and seconds of what begins from now on
    stop: Callable[[], None]
    place: torch.device  # where this process computes itself


def inside(settings: DeviceSettings) -> Training:
    """In this very process."""
    place = set_torch(settings)
    data = moved(load(settings.data), place)

    builder = Builder(settings.limits, data.train, settings.name, settings.network, place)
    deadline = Deadline(settings.limits.work_seconds)
    on_every_step(deadline.look)
    return Training(
        data,
        builder.build,
        deadline.around(work),
        settings.pictures,
        lambda memory_bytes, seconds: None,
        lambda: None,
        place,
    )


def beside(settings: DeviceSettings, state: DeviceState) -> Training:
    """In a process of its own, which may die of it; it takes the pictures too."""
    trainer = Trainer(settings, state.half)
    return Training(
        trainer.start(),
        trainer.build,
        trainer.work,
        Pictures(),
        trainer.limit,
        trainer.stop,
        torch.device("cpu"),
    )
