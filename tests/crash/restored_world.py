"""A queue whose folder is restored from a backup while its devices know later rounds."""

from __future__ import annotations

import shutil
import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

from protofleet.coordinator import run_service
from protofleet.coordinator.run import Run
from protofleet.coordinator.run_service import Lead, RunService, ServiceLoop
from protofleet.coordinator.spool.epochs import save_epoch
from protofleet.edge_client.state.device import DeviceState
from protofleet.protocol.link.base import unverified_header
from protofleet.protocol.transport.base import Arrived, Done
from protofleet.protocol.transport.receive_queue import ReceiveQueue
from protofleet.protocol.wire.forms import DEVICE_FORMS
from protofleet.protocol.wire.messages import Hello
from protofleet.protocol.wire.names import COORDINATOR
from tests.crash.queue_world import DEVICES, EXPERIMENT, Command, QueueWorld, virtual
from tests.crash.world import OUT_SECONDS, TURN_SECONDS, Killed
from tests.support.run_policy import RunPolicy
from tests.support.small_federation import plan, shard

SECONDS = 2000.0
RUN = "red"


@dataclass
class RestoredWorld(QueueWorld):
    """`old` has the devices whose software takes part in one run and does not report its answers."""

    old: tuple[str, ...] = ()
    restored: bool = False  # True if the next coordinator is started with --restored.
    highest: int = 0  # The highest epoch of other coordinators that the next look finds.

    def __post_init__(self) -> None:
        super().__post_init__()
        self.asked: list[
            tuple[str, str, int, str, bytes]
        ] = []  # Device, run, round, phase and base of each update.
        self.numbers = 0

    def boot_device(self, device: str) -> None:
        most, self.runs = self.runs, 1 if device in self.old else self.runs
        super().boot_device(device)
        self.runs = most

    def _boot_service(self) -> None:
        self.disk = self.boot_coordinator_host()
        self.disk.make(self.runs_folder)
        lead = Lead(self.keys[COORDINATOR], self.keyring, {}, standby=None, highest=self.highest)
        self.conducted = RunService(
            self.settings, "", False, lambda folder: None, {}, lead, ReceiveQueue(), lambda: False
        )
        if self.restored:
            self.conducted.pause_restored_runs()
        self.service = ServiceLoop(self.conducted)
        self.conducted.conductor.settle()
        self.connection.connect()

    def begin(self) -> RestoredWorld:
        """Boot all parties; call this and all other methods inside `virtual`."""
        self.begun = True
        publish = self.broker.publish

        def published(topic: str, frame: bytes, retain: bool) -> None:
            if (header := unverified_header(frame)) and header.kind == "update":
                self.asked.append((header.sender, header.run, header.round, header.phase, header.base))
            publish(topic, frame, retain)

        self.broker.publish = published  # type: ignore[method-assign]
        for boot in (self.boot_coordinator, *(partial(self.boot_device, name) for name in DEVICES)):
            boot()
        return self

    def until(self, check: Any, limit: float = SECONDS) -> None:
        """Run until the condition holds; a party that dies on the way is started again."""
        end = self.clock.now + limit
        while not check():
            try:
                self.run(until=check, limit=end - self.clock.now)
            except Killed:
                self._revive(next(name for name, points in self.points.items() if points.dead))
                continue
            assert check(), f"waited {limit} s; {self.rows()}"

    def order(self, verb: str, run: str = RUN, number: int = 0, **args: Any) -> Mapping[str, Any]:
        """Give a command, and repeat it until its result is there."""
        self.numbers += 1
        more = args.pop("request", {})
        request = {"id": f"{number or self.numbers:032x}", "verb": verb, "run": run, "reason": "", **more}
        request |= {"args": args} if args else {}
        told: list[Mapping[str, Any]] = []

        def give() -> None:
            if self.handle is not None:
                told.append(self.handle("local:ann", request))

        while not told:
            self.until(lambda: self.handle is not None)
            try:
                self.broker.clients[COORDINATOR].deliver(Done(give))
                self.run(until=lambda: bool(told), limit=OUT_SECONDS)
            except Killed:
                self._revive(COORDINATOR)
        return told[0]

    def say_hello_beside(self, verb: str, **args: Any) -> None:
        """Give a command, and let all devices say hello in this run so that the hellos arrive in the same turn."""
        client, said = self.broker.clients[COORDINATOR], []
        for name, agent in self.agents.items():
            follower = agent.places.named(RUN)
            assert follower is not None, name
            hello = Hello(name, 3, 12, can=DEVICE_FORMS, answered=follower.state.saved.last_round)
            said.append(Arrived(self.topics.up(name), follower.link.seal(hello, COORDINATOR), False))
        self.numbers += 1
        request = {"id": f"{self.numbers:032x}", "verb": verb, "run": RUN, "reason": "", "args": args}
        told: list[Mapping[str, Any]] = []

        def give() -> None:
            assert self.handle is not None
            told.append(self.handle("local:ann", request))
            for hello in said:
                self.conducted.service.take(hello, self.clock.now)

        client.deliver(Done(give))
        assert [one["verdict"] for one in told] == ["done"]

    def sent_to_devices(self, kind: str) -> list[str]:
        """Return a list that gets the device and the run of each message of this kind to one device."""
        found: list[str] = []
        publish = self.broker.publish

        def published(topic: str, frame: bytes, retain: bool) -> None:
            if (header := unverified_header(frame)) and header.kind == kind:
                found.append(f"{header.recipient} {header.run}")
            publish(topic, frame, retain)

        self.broker.publish = published  # type: ignore[method-assign]
        return found

    @staticmethod
    def experiment(method: str = "fedavg", rounds: int = 6) -> str:
        return EXPERIMENT.format(rounds=rounds, seed=1, method=method)

    def submit(self, method: str = "fedavg", rounds: int = 6) -> None:
        more = {"experiment": self.experiment(method, rounds), "after": "", "priority": 0}
        assert self.order("submit", request=more)["verdict"] == "done"

    def rows(self) -> dict[str, Any]:
        """Return the rows of the queue; empty while the coordinator is dead."""
        if self.handle is None:
            return {}
        request = {"id": "0" * 32, "verb": "runs", "run": "", "reason": ""}
        return {row["run"]: row for row in self.handle("local:ann", request)["runs"]}

    @property
    def red(self) -> Run | None:
        """Return the run, if it is open now."""
        if self.handle is None or RUN not in self.conducted.conductor.open:
            return None
        return self.conducted.conductor.open[RUN].run

    def until_round(self, number: int) -> None:
        """Run until this round is open and has an answer."""
        self.until(
            lambda: (
                self.red is not None and self.red.machine.round >= number and bool(self.red.machine.answered)
            )
        )

    def restart_coordinator(self) -> None:
        """Kill the coordinator, and start it again; wait until all devices have received its state."""
        self._revive(COORDINATOR)
        self.until(
            lambda: (
                self.handle is not None
                and {agent.link.epoch for agent in self.agents.values()} == {self.connection.link.epoch}
            )
        )

    def back_up(self, name: str = "backup") -> Path:
        target = self.folder / name
        shutil.copytree(self.runs_folder, target)
        return target

    def put_back(self, backup: Path, above: bool = True, lower: bool = False) -> None:
        """Replace the folder by its backup, and start the coordinator with --restored.

        With `above`, its epoch is above that of the coordinator before. With `lower`, its clock is behind.
        """
        epoch = self.connection.link.epoch
        self.kill(COORDINATOR)
        self.handle = None
        shutil.rmtree(self.runs_folder)
        shutil.copytree(backup, self.runs_folder)
        self.restored = True
        if above:
            save_epoch(self.runs_folder, "simulated", epoch)
        self.broker.retained.clear()
        self.clock.call_at(self.clock.now + OUT_SECONDS, self.boot_coordinator)
        wall = time.time
        with mock.patch.object(run_service.time, "time", lambda: wall() - 3600.0 if lower else wall()):
            self.until(lambda: self.handle is not None)
        self.restored = False

    def hears_devices(self) -> None:
        """Wait until all devices have said hello to this coordinator."""
        said = self.conducted.service.answered_rounds
        new = set(DEVICES) - set(self.old)
        self.until(lambda: said.of(RUN).keys() >= new)

    def mixed(self) -> list[tuple[str, str, int, str]]:
        """Return the questions without their broadcast to which a device has sent updates with two bases."""
        bases: dict[tuple[str, str, int, str], set[bytes]] = {}
        for *question, base in self.asked:
            bases.setdefault(tuple(question), set()).add(base)  # type: ignore[arg-type]
        return [question for question, found in bases.items() if len(found) > 1]

    def state_of(self, device: str) -> DeviceState:
        return DeviceState(self.folder / device, durable=False)


def restored_world(folder: Path, **more: Any) -> RestoredWorld:
    shards = {name: shard(i, 12) for i, name in enumerate(DEVICES)}
    return RestoredWorld(
        plan("fedavg", 1), shards, RunPolicy(), folder, runs=2, turn_seconds=TURN_SECONDS, **more
    )


__all__ = ["RUN", "Command", "RestoredWorld", "restored_world", "virtual"]
