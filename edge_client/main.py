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
from methods.base import ClientHalf
from methods.liveness import on_every_step, tensors_work
from methods.plan import Plan
from protocol import credentials
from protocol.device_link import DeviceLink
from protocol.inbox import BoundedInbox
from protocol.keys import Identity
from protocol.memory import return_large_blocks
from protocol.mqtt import Mqtt
from protocol.party import ThreadWorker, serve, stop_on_signals, wait_for_broker
from protocol.place import Place
from protocol.seal import seals
from protocol.settings import SettingsError
from protocol.topics import Topics
from protocol.vitals import Check, Pulse, disk_takes, loop_turns, watchdog

log = logging.getLogger("protofleet.device")


def run_device(settings: DeviceSettings, software: str) -> str:
    """Serve until told to stop; what comes back is why it ended early, or nothing."""
    return_large_blocks()
    keys, keyring = credentials.of_device(
        settings.enrolled, settings.federation, settings.name, settings.key, settings.coordinator_key
    )
    place = compute_place(settings.compute)
    if settings.threads:
        torch.set_num_threads(settings.threads)
    torch.use_deterministic_algorithms(True, warn_only=True)
    data = moved(load(settings.data), place)
    inbox, pulse = BoundedInbox(), Pulse()
    on_every_step(lambda: pulse.step("work"))
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
    try:
        wait_for_broker(inbox, settings.patience_seconds)

        def build(plan: Plan) -> ClientHalf:
            return plan.client_half(data.train, settings.name, settings.network, place)

        agent = Agent(
            data, build, link, memory, ThreadWorker(inbox, pulse),
            software=software, stays=settings.stays, pictures=settings.pictures,
        )  # fmt: skip
        checks = health(agent, pulse, memory.folder, place)
        where = Place(software, "device", memory.folder, settings.broker)
        watched = watch_device(agent, settings.metrics_port, checks, where)
        with watched, watchdog(pulse, settings.watchdog_seconds):
            stop_on_signals(inbox)
            serve(agent, inbox, time.monotonic, pulse)
        return agent.problem
    finally:
        transport.close()


def health(agent: Agent, pulse: Pulse, folder: Path, place: torch.device) -> dict[str, Check]:
    """What has to be true of a device that can do its work."""
    return {
        "loop": loop_turns(pulse),
        "broker": lambda: "" if agent.connected else "there is no session with the broker; see the log",
        "hello": lambda: (
            "" if agent.answered else "no coordinator has answered yet; does it run, does it know us?"
        ),
        "torch": lambda: tensors_work(place),
        "disk": disk_takes(folder),
    }


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
