"""A coordinator that conducts a queue, an operator, and devices that take part in two runs at a time.

The coordinator is the real RunService with the real queue, runs and observers. Its transport, its worker and its time
are those of a simulation. Each party can be killed just before each step of its disk or its transport.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

from protofleet.coordinator import active_run, run_service
from protofleet.coordinator.observe.rounds_file import read_rounds
from protofleet.coordinator.queue.folder import queue_folder
from protofleet.coordinator.queue.queue_file import QueueFile
from protofleet.coordinator.queue_requests import Execute, queue_commands
from protofleet.coordinator.run_service import Lead, RunService, ServiceLoop
from protofleet.coordinator.service_settings import ServiceSettings
from protofleet.coordinator.spool.epochs import save_epoch
from protofleet.coordinator.spool.spool import Spool
from protofleet.lab.simulation.federation import Simulation
from protofleet.protocol.storage.disk import Disk
from protofleet.protocol.transport.base import Done
from protofleet.protocol.transport.receive_queue import ReceiveQueue
from protofleet.protocol.wire.names import COORDINATOR
from protofleet.runtime.control_socket import Handler
from tests.crash.platter import Platter
from tests.crash.world import LEARNED, OUT_SECONDS, TURN_SECONDS, CountedDisk, Killed, Points
from tests.support.run_policy import RunPolicy
from tests.support.small_federation import plan, shard

DEVICES = ("device-0", "device-1")
PARTIES = (COORDINATOR, DEVICES[1])  # The parties that are killed; the devices are alike.
SLOTS = 2
OPERATOR_SECONDS = 0.7  # Seconds between two looks of the operator at the states of the runs.
MOST_SECONDS = 3000.0  # Virtual seconds within which a world must end.

EXPERIMENT = """
rounds = {rounds}
classes = 3
size = 8
seed = {seed}
method = {{ name = "{method}", epochs = 1, batch = 8, lr = 0.02 }}
network = {{ name = "mlp", feature_size = 8 }}
policy = {{ quorum = 2, cohort = 2, patience_seconds = 3000.0, settle_seconds = 0.5, straggler_factor = 0.0 }}
"""


@dataclass(frozen=True)
class Command:
    """A command of the operator, given as soon as runs have these states."""

    wanted: Mapping[str, str]
    verb: str
    run: str
    after: str = ""
    priority: int = 0
    rounds: int = 3
    seed: int = 1
    method: str = "fedavg"

    @property
    def experiment(self) -> str:
        return EXPERIMENT.format(rounds=self.rounds, seed=self.seed, method=self.method)


def submit(run: str, wanted: Mapping[str, str] | None = None, **more: Any) -> Command:
    return Command(wanted or {}, "submit", run, **more)


# "red" and "blue" are conducted at the same time. "long" is stopped in some round, and "never" before its first one.
SCRIPT = (
    submit("red"),
    submit("blue", seed=2, method="ditto"),
    submit("late", after="red", rounds=1, seed=3, method="fedproto"),
    submit("never", priority=-1),
    submit("red", seed=4),
    Command({}, "pause", "never"),
    Command({"red": "running", "blue": "running"}, "pause", "red"),
    Command({"red": "paused"}, "resume", "red"),
    Command({"red": "finished", "blue": "finished"}, "resume", "red"),
    Command({"never": "paused"}, "stop", "never"),
    submit("long", {"late": "finished"}, rounds=200),
    submit("last", after="long"),
    Command({"long": "running"}, "stop", "long"),
)
WHOLE = ("red", "blue", "late")  # The runs that do all their rounds.


@dataclass
class QueueWorld(Simulation):
    deadly: Mapping[str, frozenset[int]] = field(default_factory=dict)
    power: bool = False  # The power fails, so unsynced data is lost.
    script: tuple[Command, ...] = SCRIPT

    def __post_init__(self) -> None:
        self.points = {name: Points(self.deadly.get(name, frozenset())) for name in (COORDINATOR, *DEVICES)}
        self.platters = {
            name: Platter(self.folder / name, self.folder / f"{name}.shelf") for name in self.points
        }
        self.make_disk, self.disks = self._disk, {}
        self.told: dict[int, str] = {}
        self.given: set[int] = set()
        self.handle: Handler | None = None  # Carries out requests; None while the coordinator is dead.
        table = {"federation": "simulated", "folder": str(self.runs_folder), "slots": SLOTS}
        self.settings = ServiceSettings.of(table)
        self.begun = False  # A world begins when it lives.
        super().__post_init__()

    @property
    def runs_folder(self) -> Path:
        return self.folder / COORDINATOR

    # The coordinator, which gets its disk and its connection from the simulation.

    def boot_coordinator(self) -> None:
        if self.begun:
            self._boot(COORDINATOR, self._boot_service)

    def _boot_service(self) -> None:
        self.disk = self.boot_coordinator_host()
        self.disk.make(self.runs_folder)
        self.disk.make(queue_folder(self.runs_folder))
        lead = Lead(self.keys[COORDINATOR], self.keyring, {}, standby=None, highest=0)
        events, is_stopped = ReceiveQueue(), lambda: False
        conducted = RunService(self.settings, "", False, lambda folder: None, {}, lead, events, is_stopped)
        self.service = ServiceLoop(conducted)
        conducted.conductor.settle()
        self.connection.connect()

    def connected(
        self, own: object, keys: object, keyring: object, epoch: int, folder: Path, *more: object
    ) -> VirtualConnection:
        self.connection = VirtualConnection(self, epoch, folder)
        return self.connection

    def commands(self, settings: ServiceSettings, execute: Execute, put: object) -> Handler:
        """Return the handler of the product, which is called on the thread of the event loop here."""
        self.handle = queue_commands(settings, execute, lambda call: call())
        return self.handle

    def save_epoch(self, runs: Path, federation: str, epoch: int) -> None:
        """Write the epoch as the product does; the file is synced without the disk of the simulation."""
        self.points[COORDINATOR].pass_by("rename the epoch")
        save_epoch(runs, federation, epoch)
        self.disk.sync(runs / f".{federation}.epoch")
        self.disk.sync(runs)

    # Deaths.

    def boot_device(self, device: str) -> None:
        if self.begun:
            self._boot(device, partial(super().boot_device, device))

    def _boot(self, name: str, boot: Callable[[], None]) -> None:
        """Boot a party; as a service manager does, boot it again if it died before it ran."""
        while True:
            try:
                return boot()
            except Killed:
                self._bury(name)

    def _disk(self, name: str) -> Disk:
        self.disks[name] = CountedDisk(self.points[name], self.platters[name])
        return self.disks[name]

    def _bury(self, name: str) -> None:
        self.disks[name].die()
        points = self.points[name]
        points.deaths, points.dead = points.deaths + 1, False
        if self.power:
            self.platters[name].cut(None)

    def live(self) -> QueueWorld:
        """Run until the operator has given all commands and all runs are over."""
        with virtual(self):
            self.begun = True
            for boot in (self.boot_coordinator, *(partial(self.boot_device, name) for name in DEVICES)):
                boot()
            self.clock.call_at(OPERATOR_SECONDS, self._look)
            while not self.over:
                try:
                    before = self.clock.now
                    self.run(until=lambda: self.over, limit=MOST_SECONDS)
                    assert self.over or before < self.clock.now < MOST_SECONDS, (
                        f"the world does not continue:  {self.states()}"
                    )
                except Killed:
                    self._revive(next(name for name, points in self.points.items() if points.dead))
            for disk in self.disks.values():
                disk.die()
        return self

    def _revive(self, name: str) -> None:
        self.kill(name)
        if name == COORDINATOR:
            self.handle = None
        self._bury(name)
        again = partial(self.boot_device, name) if name in self.shards else self.boot_coordinator
        self.clock.call_at(self.clock.now + OUT_SECONDS, again)

    # The operator, who repeats each command until its result is there.

    @property
    def over(self) -> bool:
        told = len(self.told) == len(self.script)
        return told and self.handle is not None and all(over for _, over in self.states().values())

    def states(self) -> dict[str, tuple[str, bool]]:
        """Return the state of each run, and whether nothing is left to do for it."""
        if self.handle is None:
            return {}
        shown = self._asked(Command({}, "runs", ""), 0)["runs"]
        return {run["run"]: (run["state"], run["over"]) for run in shown}

    def _look(self) -> None:
        # The next look comes first, because the coordinator may die during this one.
        self.clock.call_at(self.clock.now + OPERATOR_SECONDS, self._look)
        number, states = len(self.told), {name: state for name, (state, _) in self.states().items()}
        if self.handle and number < len(self.script):
            command = self.script[number]
            # A command that was given before is repeated in any state, until its result is there.
            if number in self.given or command.wanted.items() <= states.items():
                self.given.add(number)
                self.broker.clients[COORDINATOR].deliver(Done(partial(self._give, number, command)))

    def _give(self, number: int, command: Command) -> None:
        verdict = self._asked(command, number + 1)["verdict"]
        self.points[COORDINATOR].pass_by("publish the result of a command")
        self.told[number] = verdict

    def _asked(self, command: Command, number: int) -> Mapping[str, Any]:
        assert self.handle is not None
        request = {"id": f"{number:032x}", "verb": command.verb, "run": command.run, "reason": ""}
        if command.verb == "submit":
            more = {"experiment": command.experiment, "after": command.after, "priority": command.priority}
            request |= more
        return self.handle("local:ann", request)

    # The results.

    def outcome(self) -> dict[str, Any]:
        """Return all results that must not depend on the killed party and the time of the kill.

        The number of rounds of a stopped run may depend on it, so such a run has no snapshots here. The accuracy of a
        round is that of the models which the devices keep.
        """
        shown = QueueFile(queue_folder(self.runs_folder), "simulated", lambda: 0.0, Disk(durable=False))
        rows = {name: (run.state, run.reason, run.closed) for name, run in shown.runs.items()}
        shown.close()
        found: dict[str, Any] = {"rows": rows, "told": self.told}
        for run in WHOLE:
            if run in rows:
                found[f"snapshots of {run}"] = snapshots(self.runs_folder / run)
                found[f"rounds of {run}"] = rounds_of(self.runs_folder / run)
        return found


class VirtualConnection:
    """The connection of the coordinator, over the broker of the simulation."""

    def __init__(self, world: QueueWorld, epoch: int, folder: Path) -> None:
        self._world = world
        self.context = world.connect_coordinator(epoch, world.disk, folder / "coordinator")
        self.link = self.context.link
        self.transport = self.link.transport

    def connect(self) -> None:
        topic = self._world.topics.coord_state
        self._world.broker.clients[COORDINATOR].will = self.link.will(topic)

    def look_after_cuts(self, service: object) -> None:
        """Do nothing: no other process leads in this world."""


@contextlib.contextmanager
def virtual(world: QueueWorld) -> Iterator[None]:
    """Let a RunService use the disk, the connection and the worker of a world."""
    disk = lambda: world.disk  # noqa: E731
    spool = lambda folder: Spool(folder, disk=disk())  # noqa: E731
    with (
        mock.patch.object(active_run, "Spool", spool),
        mock.patch.multiple(
            run_service,
            CoordinatorConnection=world.connected,
            Disk=disk,
            QueueFile=lambda *a, **more: QueueFile(*a, **more, disk=disk()),
            WorkThread=mock.Mock(),
            ThreadWorker=mock.Mock(),
            Life=mock.Mock(return_value=mock.Mock(unclean_at=0.0)),
            compute_deterministically=mock.Mock(),
            on_progress=mock.Mock(),
            queue_commands=world.commands,
            save_epoch=world.save_epoch,
        ),
    ):
        yield


def snapshots(folder: Path) -> list[str]:
    """Return the names of the last snapshots of a run, which are hashes of their content."""
    return sorted(path.name for path in (folder / "coordinator" / "snapshots").glob("*.body"))


def rounds_of(folder: Path) -> list[dict[str, Any]]:
    return [{key: line[key] for key in LEARNED} for line in read_rounds(folder / "rounds.jsonl")]


def queue_world(folder: Path, **more: Any) -> QueueWorld:
    shards = {name: shard(i, 12) for i, name in enumerate(DEVICES)}
    return QueueWorld(
        plan("fedavg", 1), shards, RunPolicy(), folder, runs=SLOTS, turn_seconds=TURN_SECONDS, **more
    )
