"""A device process, put together: settings -> key, data, link, agent -> until the run is over."""

from __future__ import annotations

import logging
import time
from dataclasses import replace
from pathlib import Path

import torch

from edge_client.agent import Agent
from edge_client.config import DeviceSettings
from edge_client.data import Part, Shard, load
from edge_client.metrics import watch_device
from edge_client.state import Memory
from edge_client.status import StatusFile
from edge_client.watched import Systemd, Watched, drain_on_signal
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
from protocol.settings import SettingsError
from protocol.topics import Topics

log = logging.getLogger("protofleet.device")


def run_device(settings: DeviceSettings, software: str, version: int = 0) -> str:
    """Serve until told to stop; what comes back is why it ended early, or nothing. `version` is the settings'."""
    systemd = Systemd()
    return_large_blocks()
    keys, keyring = credentials.of_device(
        settings.enrolled, settings.federation, settings.name, settings.key, settings.coordinator_key
    )
    place = compute_place(settings.compute)
    if settings.threads:
        torch.set_num_threads(settings.threads)
    torch.use_deterministic_algorithms(True, warn_only=True)
    data = moved(load(settings.data), place)
    inbox = BoundedInbox()
    memory = Memory(Path(settings.folder))
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

    def build(plan: Plan) -> ClientHalf:
        return plan.client_half(data.train, settings.name, settings.network, place)

    agent = Agent(
        data, build, link, memory, ThreadWorker(inbox),
        software=software, stays=settings.stays, pictures=settings.pictures,
    )  # fmt: skip
    status = StatusFile(Path(settings.status), software, version) if settings.status else None
    watched = Watched(agent, systemd, status)
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


def compute_place(choice: str) -> torch.device:
    if choice == "cuda" and not torch.cuda.is_available():
        raise SettingsError('compute is "cuda", but torch sees no CUDA device here; use "auto" or "cpu"')
    return torch.device("cuda" if choice != "cpu" and torch.cuda.is_available() else "cpu")


def moved(shard: Shard, place: torch.device) -> Shard:
    if place.type == "cpu":
        return shard

    def move(part: Part) -> Part:
        return Part(part.x.to(place), part.y.to(place))

    return replace(shard, train=move(shard.train), validation=move(shard.validation), test=move(shard.test))
