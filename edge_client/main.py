"""A device process, put together: settings -> key, data, link, agent -> until the run is over."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from edge_client.agent import Agent
from edge_client.caretaker import Caretaker
from edge_client.compute import moved, set_torch
from edge_client.config import DeviceSettings
from edge_client.data import load
from edge_client.evaluate import Splits
from edge_client.metrics import watch_device
from edge_client.pictures import Pictures
from edge_client.state import Memory
from edge_client.status import StatusFile
from edge_client.trainer import Trainer
from edge_client.watched import Systemd, Watched, drain_on_signal
from edge_client.work import Build, Work, work
from methods.base import ClientHalf
from methods.plan import Plan
from protocol import credentials
from protocol.device_link import DeviceLink
from protocol.inbox import BoundedInbox
from protocol.keys import Identity
from protocol.memory import return_large_blocks
from protocol.mqtt import Mqtt
from protocol.party import ThreadWorker, serve, stop_on_signals, wait_for_broker
from protocol.seal import seals
from protocol.topics import Topics

log = logging.getLogger("protofleet.device")


def run_device(settings: DeviceSettings, software: str, version: int = 0) -> str:
    """Serve until told to stop; what comes back is why it ended early, or nothing. `version` is the settings'."""
    systemd = Systemd()
    return_large_blocks()
    keys, keyring = credentials.of_device(
        settings.enrolled, settings.federation, settings.name, settings.key, settings.coordinator_key
    )
    inbox = BoundedInbox()
    memory = Memory(Path(settings.folder))
    training = beside(settings, memory) if settings.trainer == "child" else inside(settings)
    me = Identity(settings.name, memory.boot(int(time.time())), keys)
    topics = Topics(settings.federation)
    link = DeviceLink(me, keyring, topics, None, memory.store)  # type: ignore[arg-type]  # the will needs it first
    inbox.dropped = link.overflowed
    link.sealed = seals(settings.security)
    link.transport = transport = Mqtt(
        f"{settings.federation}.{settings.name}",
        settings.broker,
        inbox,
        will=link.will(topics.device_state(settings.name)),
        subscriptions=topics.device_subscriptions(settings.name),
        session_seconds=settings.session_seconds,
        clean_start=False,
    )

    agent = Agent(
        training.data, training.build, link, memory, ThreadWorker(inbox),
        software=software, stays=settings.stays, pictures=training.pictures, work=training.work,
    )  # fmt: skip
    status = StatusFile(Path(settings.status), software, version) if settings.status else None
    caretaker = Caretaker(agent, settings, training.limit)
    watched = Watched(agent, systemd, status, look_after=caretaker.look)
    systemd.say("READY=1")
    try:
        wait_for_broker(inbox, settings.patience_seconds, watched.look)
        with watch_device(agent, settings.metrics_port):
            stop_on_signals(inbox)
            drain_on_signal(agent, inbox.put)
            serve(watched, inbox, time.monotonic)
        return agent.problem
    finally:
        transport.close()
        training.stop()


@dataclass(frozen=True)
class Training:
    """What the agent needs in order to have something trained."""

    data: Splits
    build: Build
    work: Work
    pictures: Pictures
    limit: Callable[[int, float], None]  # bytes and seconds of what begins from now on
    stop: Callable[[], None]


def inside(settings: DeviceSettings) -> Training:
    """In this very process."""
    place = set_torch(settings)
    data = moved(load(settings.data), place)

    def build(plan: Plan) -> ClientHalf:
        return plan.client_half(data.train, settings.name, settings.network, place)

    return Training(data, build, work, settings.pictures, lambda memory_bytes, seconds: None, lambda: None)


def beside(settings: DeviceSettings, memory: Memory) -> Training:
    """In a process of its own, which may die of it; it takes the pictures too."""
    trainer = Trainer(settings, memory.half)
    return Training(trainer.start(), trainer.build, trainer.work, Pictures(), trainer.limit, trainer.stop)
