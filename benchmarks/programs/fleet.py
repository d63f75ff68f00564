"""A real fleet for measures: a broker, device processes with random data, and a coordinator in this process."""

from __future__ import annotations

import contextlib
import json
import queue
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType

from benchmarks.programs.keys import make_keys
from protofleet.coordinator.context import ProcessContext
from protofleet.coordinator.devices.bans import Bans
from protofleet.coordinator.observe.view import RunView
from protofleet.coordinator.round.events import Command, Event
from protofleet.coordinator.round.machine import RoundMachine
from protofleet.coordinator.round.policy import Policy
from protofleet.coordinator.run import Run
from protofleet.coordinator.server.runner import Step
from protofleet.coordinator.service import CoordinatorService
from protofleet.coordinator.spool.spool import Spool
from protofleet.federation.brokers.local import LocalBroker
from protofleet.methods.contract.plan import Plan
from protofleet.protocol.link.coordinator import CoordinatorLink
from protofleet.protocol.link.coordinator_run import CoordinatorRunLink
from protofleet.protocol.link.progress import TransferProgress
from protofleet.protocol.security.keys import Identity, load_keyring, load_keys
from protofleet.protocol.transport.address import BrokerAddress
from protofleet.protocol.transport.base import Item
from protofleet.protocol.transport.mqtt import Mqtt
from protofleet.protocol.wire.messages import Update
from protofleet.protocol.wire.names import COORDINATOR
from protofleet.protocol.wire.topics import Topics
from protofleet.runtime.event_loop import ThreadWorker, serve

FEDERATION = "bench"
PATIENCE = 120.0


class EndRun(BaseException):
    """An exception with which an observer ends the run.

    If an observer raises an `Exception`, the run goes on. Therefore this is a BaseException.
    """


@dataclass
class Clockwork:
    """An observer that notes the duration of each phase, and how long the slowest device of the phase worked."""

    asked_at: float = 0.0
    slowest: float = 0.0
    # Tuples of the phase, the seconds of the phase, and the seconds that the slowest device of the phase worked.
    phases: list[tuple[str, float, float]] = field(default_factory=list)

    def happened(self, run: RunView, event: Event, commands: Sequence[Command], now: float) -> None:
        """Do nothing. The duration of a phase is noted in another method."""

    def transfer_progressed(self, device: str, progress: TransferProgress) -> None:
        """Do nothing. The coordinator calls this method every few seconds while an update is transferred."""

    def stepped(self, run: RunView, step: Step, now: float) -> None:
        self.asked_at, self.slowest = time.monotonic(), 0.0

    def answered(self, run: RunView, update: Update, now: float) -> None:
        self.slowest = max(self.slowest, update.metrics.get("seconds.work", 0.0))
        if len(run.answered) + 1 == len(run.cohort):
            self.phases.append((update.phase, time.monotonic() - self.asked_at, self.slowest))


@contextlib.contextmanager
def broker(folder: Path) -> Iterator[LocalBroker]:
    with LocalBroker(folder / "broker", kind="auto") as running:
        yield running


@contextlib.contextmanager
def members(
    folder: Path,
    names: Sequence[str],
    address: BrokerAddress,
    examples: int,
    ports: Mapping[str, int] = MappingProxyType({}),
) -> Iterator[dict[str, subprocess.Popen[bytes]]]:
    """Start device processes, which really train on random data.

    `ports` has the port of each device that does not use the broker's own port.
    """
    for name in (COORDINATOR, *names):
        make_keys(folder / "keys", name)
    processes = {}
    try:
        for name in names:
            wish = {
                "name": name,
                "folder": str(folder),
                "port": ports.get(name, address.port),
                "examples": examples,
            }
            command = [sys.executable, "-m", "benchmarks.programs.member", json.dumps(wish)]
            processes[name] = subprocess.Popen(command)
        yield processes
    finally:
        for process in processes.values():
            process.terminate()
        for process in processes.values():
            process.wait(30)


def conduct(
    folder: Path, plan: Plan, policy: Policy, address: BrokerAddress, observer: Clockwork
) -> CoordinatorService:
    """Run a whole federation from this process over the broker, and return the coordinator's service."""
    inbox: queue.SimpleQueue[Item] = queue.SimpleQueue()
    topics = Topics(FEDERATION)
    spool = Spool(folder / "spool")
    epoch = spool.start_run(FEDERATION, plan.encode().decode(), int(time.time()))
    me = Identity(COORDINATOR, epoch, load_keys(folder / "keys" / "coordinator.key"))
    ring = load_keyring(folder / "keys" / "public")

    transport = Mqtt("bench-coordinator", address, inbox, subscriptions=topics.coordinator_subscriptions())
    link = CoordinatorLink(me, ring, topics, transport)
    part = CoordinatorRunLink(link, FEDERATION, spool.store)
    part.most_block = address.block_bytes
    context = ProcessContext(link, ThreadWorker(inbox), Bans(spool.folder, spool.disk))
    run = Run(plan, RoundMachine(policy, plan.rounds), spool, context, part, [observer])
    run.tell_of_transfers(observer.transfer_progressed)
    service = CoordinatorService(context, [run])
    transport.connect(link.will(topics.coord_state))
    try:
        service.session.give_up_after(PATIENCE, time.monotonic())
        serve(service, inbox, time.monotonic)
    finally:
        transport.close()
        spool.close()
    return service
