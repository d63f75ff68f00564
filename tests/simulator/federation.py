"""The real agents and the real coordinator of one scenario, on modelled hosts, lines and broker."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from unittest import mock

import protofleet.methods.contract.plan
from protofleet.coordinator.context import ProcessContext
from protofleet.coordinator.devices.bans import Bans
from protofleet.coordinator.round.machine import RoundMachine
from protofleet.coordinator.run import Run
from protofleet.coordinator.service import CoordinatorService
from protofleet.coordinator.spool.spool import Spool
from protofleet.edge_client.agent import Agent
from protofleet.edge_client.agent_parts import AgentOptions, DeviceData, agent_parts
from protofleet.edge_client.state.device import DeviceState
from protofleet.edge_client.trainer.job import local_jobs
from protofleet.methods.contract.catalog import load
from protofleet.protocol.link.clocks import MOST_AHEAD, ahead
from protofleet.protocol.link.clocks import Clock as Wall
from protofleet.protocol.link.coordinator import CoordinatorLink
from protofleet.protocol.link.coordinator_run import CoordinatorRunLink
from protofleet.protocol.link.device import DeviceLink
from protofleet.protocol.link.run_part import RunPart
from protofleet.protocol.security.keys import Identity, Keyring, Keys
from protofleet.protocol.settings.budget import BudgetSettings
from protofleet.protocol.storage.store import DamagedError
from protofleet.protocol.wire.names import COORDINATOR
from protofleet.protocol.wire.reasons import Reason
from protofleet.protocol.wire.topics import Topics
from tests.crash.platter import FrailDisk, Platter
from tests.simulator import tally
from tests.simulator.broker import Broker
from tests.simulator.clock import Clock
from tests.simulator.hearing import NOTHING, Said, observed_link
from tests.simulator.history import History, observed_agent, observed_spool, observed_state
from tests.simulator.line import Line
from tests.simulator.order import observed_run
from tests.simulator.pipe import Weather
from tests.simulator.process import SAID, Host, Killed, MortalAndFrail, Process
from tests.simulator.promises import BrokenPromise, demand
from tests.simulator.samples import data_of, plan_of
from tests.simulator.scenario import Scenario, manners
from tests.simulator.signatures import both_kinds, quick
from tests.support.run_policy import RunPolicy

RUN, FEDERATION = "simulated", "sky"
KEYS = {name: Keys.new() for name in (COORDINATOR, *(f"d{i}" for i in range(8)))}
QUICK = {name: quick(keys, name) for name, keys in KEYS.items()}


@dataclass(frozen=True)
class Registered:
    """The public keys of a party, in a record that may be renewed."""

    sign: bytes
    receive: bytes
    serial: int = 1
    not_before: int = 0

    @property
    def holder(self) -> str:
        return str(self.serial)

    @staticmethod
    def of(keys: Keys) -> Registered:
        return Registered(keys.public.sign, keys.public.receive)


@dataclass(frozen=True)
class Parts:
    """The classes under test; a planted bug replaces one of them."""

    machine: type[RoundMachine] = RoundMachine
    spool: type[Spool] = Spool
    run: type[Run] = Run
    coordinator_link: type[CoordinatorLink] = CoordinatorLink
    device_link: type[DeviceLink] = DeviceLink
    memory: type[DeviceState] = DeviceState
    agent: type[Agent] = Agent


@contextlib.contextmanager
def tally_known() -> Iterator[None]:
    """Make the method of the simulator known for a while.

    It is not part of the package, so no list of the package may contain it.
    """
    known = lambda name, plugin="": tally.METHOD if name == "tally" else load(name, plugin)  # noqa: E731
    with mock.patch.object(protofleet.methods.contract.plan, "load", known), both_kinds():
        yield


@dataclass
class Federation:
    scenario: Scenario
    folder: Path
    parts: Parts = field(default_factory=Parts)
    log: Callable[[str], None] | None = None

    def __post_init__(self) -> None:
        s = self.scenario
        self.clock = Clock(self.log)
        self.said = Said(s.sealed, self.clock)
        self.histories = {run: History(rules, self.clock, self.said) for run, rules in self.policies.items()}
        self.history = next(iter(self.histories.values()))
        self.dice = random.Random(f"{s.seed}/run")
        self.broker = Broker(self.clock, random.Random(f"{s.seed}/broker"), manners(s))
        self.keys = KEYS if s.sealed else QUICK
        # With a budget, only the devices of the run are enrolled: a run waits for enrolled devices that never come.
        enrolled = {COORDINATOR, *s.devices} if s.budget else self.keys.keys()
        self.keyring = {name: Registered.of(keys) for name, keys in self.keys.items() if name in enrolled}
        self.plan = plan_of(s)
        self.plans = dict.fromkeys(self.histories, self.plan)
        self.data = {name: data_of(s, i) for i, name in enumerate(s.devices)}
        self.hosts = {name: Host(self.clock) for name in (COORDINATOR, *s.devices)}
        self.weather = {name: Weather() for name in (COORDINATOR, *s.devices)}
        self.work_seconds = dict.fromkeys((COORDINATOR, *s.devices), s.work_seconds)
        # The processes by place: a device, "coordinator", or a second process of either.
        self.processes: dict[str, Process] = {}
        self.platters: dict[Path, Platter] = {}
        self.stopped: set[str] = set()  # The runs that an operator has stopped.
        self.ends: list[str] = []  # The words of processes that ended by themselves.
        self.finished, self.boots = False, 0
        self.least_wall = 1.7e9  # The earliest offset that the coordinator's clock ever had, in seconds.
        self._set_at = float("inf")  # The time at which the operator sets the clocks.
        self._names = (COORDINATOR, *s.devices)
        parts, h = self.parts, self.history
        self._spool, self._state = (
            observed_spool(parts.spool, h),
            observed_state(parts.memory, self.histories),
        )
        self._agent, self._run = observed_agent(parts.agent, self.histories), observed_run(parts.run, h)
        self._coordinator_link = observed_link(parts.coordinator_link, self.said)
        self._device_link = observed_link(parts.device_link, self.said)

    @property
    def policies(self) -> Mapping[str, RunPolicy]:
        """Return the policy of each run of the coordinator, by the name of the run."""
        return {RUN: self.scenario.policy}

    def _committed(self, folder: Path) -> None:
        for history in self.histories.values():
            history.committed(folder)

    @property
    def spools(self) -> Sequence[Path]:
        """Return the folders in which the runs of the coordinator are."""
        return [self.folder / COORDINATOR]

    # Boots. A place is the folder in which a process lives; two places may hold the same identity.

    def boot(self, place: str, name: str | None = None, folder: str | None = None) -> None:
        name = name or place
        old = self.processes.get(place)
        if old and old.alive:
            return
        process = self.processes[place] = Process(self.clock, self.hosts[name], self.dice, place)
        process.watch, process.exited = self._watch, lambda p: self._exited(p, name, folder)
        process.worker.seconds = lambda: self._seconds(name)
        process.committed = self._committed
        where = self.folder / (folder or place)
        if "frail_disk" in self.scenario.kinds:
            if where not in self.platters:
                self.platters[where] = Platter(where, self.folder / f"{where.name}.shelf")
            process.disk = MortalAndFrail(process, self.platters[where])
        self.clock.note(f"{place} boots")
        boot = self._boot_coordinator if name == COORDINATOR else self._boot_device
        try:
            boot(process, name, where)
            self._order_of_start(process)
        except DamagedError as error:
            raise BrokenPromise(f"I2: what {place} had made durable is damaged: {error}") from error
        except SAID as error:
            process.ended, process.alive = f"{type(error).__name__}: {error}", False
            self._exited(process, name, folder)
        except Killed:
            process.alive = False
            self._exited(process, name, folder)

    def _order_of_start(self, process: Process) -> None:
        self.boots += 1
        if self.scenario.starts and self.clock.now < self.scenario.bad_seconds:
            dice = random.Random(f"{self.scenario.seed}/start/{self.boots}")
            process.read_late(dice.choice((1.0, 20.0, 60.0)), dice)

    def _boot_coordinator(self, process: Process, name: str, folder: Path) -> None:
        spool = self._spool(folder, disk=process.disk)
        if self.scenario.seed % 2 == 0:
            spool.memory.most = 0  # Small unfinished answers are in files, like larger ones.
        epoch = spool.start_run(RUN, self.plan.encode().decode(), process.host.wall())
        self._look_at_clock(process.host)
        me, topics = Identity(COORDINATOR, epoch, self.keys[COORDINATOR]), Topics(FEDERATION)
        line = self._line(process, name, topics.coordinator_subscriptions(), 0.0, clean=True)

        wall = Wall(process.host.wall)
        link = self._coordinator_link(
            me, self.keyring_of(name), topics, line, self.scenario.sealed, wall, process.name
        )
        machine = self.parts.machine(self.scenario.policy, self.plan.rounds, self.plan.seed)
        context = ProcessContext(link, process.worker, Bans(spool.folder, spool.disk))
        # Where the classes have names, a hello counts that was said to an earlier coordinator.
        names = self._class_names() if self.scenario.starts else ()
        budget = BudgetSettings(bytes_per_device=self.scenario.budget) if self.scenario.budget else None
        part = CoordinatorRunLink(link, RUN, spool.store)
        run = self._run(self.plan, machine, spool, context, part, class_names=names, budget=budget)
        process.turn_items = self.scenario.turn_items
        service = CoordinatorService(context, [run])
        line.leave(link.will(topics.coord_state))
        process.start(service, line)

    def keyring_of(self, name: str) -> Keyring:
        """Return the keys that a party knows."""
        return self.keyring

    def _class_names(self) -> tuple[str, ...]:
        """Return the class names of the devices' data; with other names they could not take part."""
        said = next(data.names for data in self.data.values())
        return tuple(said) or tuple(f"class {i}" for i in range(self.plan.classes))

    def _boot_device(self, process: Process, name: str, folder: Path) -> None:
        memory = self._state(folder, disk=process.disk)
        boot = memory.boot(process.host.wall(), self.keyring[name].holder)
        me, topics = Identity(name, boot, self.keys[name]), Topics(FEDERATION)
        line = self._line(process, name, topics.device_subscriptions(name), 600.0, clean=False)
        clock = Wall(process.host.wall)
        keyring = self.keyring_of(name)
        link = self._device_link(me, keyring, topics, line, memory.store, self.scenario.sealed, clock)
        line.leave(link.will(topics.device_state(name)))
        data = self.data[name]
        start_job = local_jobs(
            lambda plan: plan.client_half(data.train, name, validation=data.validation), data
        )
        options = self._options(name)
        agent = self._agent(*agent_parts(DeviceData(data, start_job), link, memory, process.worker, options))
        process.start(agent, line)

    def _options(self, name: str) -> AgentOptions:
        return AgentOptions(clock=lambda: 0.0)

    def _line(
        self, process: Process, name: str, topics: tuple[str, ...], expires: float, clean: bool
    ) -> Line:
        line = Line(
            self.clock, self.broker, self.dice, process.name, f"{FEDERATION}.{name}", process.tell,
            self.weather[name], topics, expires, clean,
        )  # fmt: skip
        line.says = self.said.says
        return line

    def observed(self) -> contextlib.AbstractContextManager[None]:
        """Return a context in which the run is observed beyond its disks and its network."""
        return contextlib.nullcontext()

    def operate(self) -> None:
        """Schedule the actions of an operator; with one run there are none."""

    # The faults that the nemesis causes.

    def has_twin(self, name: str) -> None:
        for history in self.histories.values():
            history.twins.add(name)

    def card_copied(self, name: str, place: str) -> None:
        for history in self.histories.values():
            history.copied(self.folder / name, self.folder / place)

    def card_lost(self, name: str) -> None:
        for history in self.histories.values():
            history.works.pop(self.folder / name, None)

    def kill(self, place: str, power: bool = False) -> None:
        process = self.processes.get(place)
        if process and process.alive:
            self.clock.note(f"{place} is killed")
            process.kill(power)
            close_files(process)
            if power and (platter := self.platters.get(self.folder / place)):
                self._cut_power(platter, place)

    def _cut_power(self, platter: Platter, place: str) -> None:
        """Kill all processes of that host; then its disk keeps what a power cut leaves."""
        for other, process in self.processes.items():
            if other.startswith(f"{place}-again") and process.alive:
                process.kill(power=True)
                close_files(process)
        platter.cut(random.Random(f"{self.scenario.seed}/platter/{self.clock.events}"))

    def _exited(self, process: Process, name: str, folder: str | None) -> None:
        """Handle a process that ended or died in its own code; its supervisor starts it again."""
        close_files(process)
        if process.ended:
            self.ends.append(f"{process.name}: {process.ended}")
        party = process.party
        if (
            isinstance(party, CoordinatorService)
            and party.finished
            and not party.stopped
            and not process.ended
        ):
            self.finished = True
            return
        if isinstance(party, CoordinatorService) and party.stopped:
            self.ends.append(f"{process.name}: {party.stopped}")
        if isinstance(party, Agent) and party.view.problem:
            self.ends.append(f"{process.name}: {party.view.problem}")
            if "enrol renew" in party.view.problem:
                self._demand_ahead(party.link.me.boot, name)
                self._renew(name)
        if isinstance(party, Agent) and party.finished and not party.view.problem and not process.ended:
            return
        place = process.name
        if place in self._names and self.processes.get(place) is process:  # A second one has no supervisor.
            seconds = 1.0 + 9.0 * self.dice.random()
            self.clock.after(seconds, f"{place} is started again", lambda: self.boot(place, name, folder))

    def _demand_ahead(self, boot: int, name: str) -> None:
        """Demand that no old refusal ends a device: one that a broker kept since its clock was wrong."""
        behind = self.least_wall < 1.7e9 - 0.9 * MOST_AHEAD
        words = f"I13: {name} ended by a refusal of a boot that was another's; its own, {boot}, is none too far ahead"
        demand(behind or boot - 1.7e9 - self.clock.now > 0.9 * MOST_AHEAD, words)

    def _renew(self, name: str) -> None:
        """Renew a refused device after the operator has read the reason: new record, and right clocks."""
        self.clock.note(f"{name} is renewed")
        self.hosts[name].set()
        self.hosts[COORDINATOR].set()
        self.keyring[name] = replace(self.keyring[name], serial=self.keyring[name].serial + 1)
        if self.said.marks.get(name, NOTHING)[0] > self.hosts[COORDINATOR].wall() + MOST_AHEAD:
            del self.said.marks[name]  # It came from the wrong clock, and the new record drops it.

    @staticmethod
    def _far(party: Agent | CoordinatorService) -> Reason:
        """Return the reason that fills the log of a party if its clock or another clock is wrong."""
        return Reason.EPOCH_AHEAD if isinstance(party, Agent) else Reason.BOOT_AHEAD

    def _look_at_clock(self, host: Host) -> None:
        """Let the operator read the log of a coordinator that starts.

        The log says if a stored epoch is far ahead of the clock, and that a clock that is wrong must be set. Often no
        other sign follows: if only the coordinator starts again, it knows all boots, and devices reject its epoch as
        too low.
        """
        is_logged = any(ahead(epoch, host.wall()) for epoch in self.history.epochs)
        if is_logged and host.is_behind:  # If the clock is right, it was ahead when it gave that epoch.
            self._somebody_sets_the_clock()

    def _somebody_sets_the_clock(self) -> None:
        if self._set_at == float("inf"):
            self._set_at = self.clock.now + 20.0 + 40.0 * self.dice.random()
            self.clock.at(self._set_at, "the operator has read the log", self._clock_is_wrong)

    def _clock_is_wrong(self) -> None:
        """Set the clocks, after the operator has read in a log that a boot or an epoch is far ahead of a clock."""
        self._set_at = float("inf")
        self.clock.note("the clocks are set")
        for host in self.hosts.values():
            host.set()
        for name in self.scenario.devices:
            process = self.processes.get(name)
            party = process.party if process and process.alive else None
            if isinstance(party, Agent) and not party.link.clock.is_believable:  # Its numbers are ahead.
                self.kill(name)
                self._renew(name)
                self.clock.after(1.0, f"{name} is started again", lambda name=name: self.boot(name))
        self.kill(COORDINATOR)
        self.clock.after(2.0, f"{COORDINATOR} is started again", lambda: self.boot(COORDINATOR))

    def _seconds(self, name: str) -> float:
        return self.work_seconds[name] * (0.1 + 0.9 * self.dice.random())

    def _watch(self, process: Process) -> None:
        """Check a process after each of its steps."""
        party, line = process.party, process.line
        if party is None or line is None:
            return
        if isinstance(party, Agent):
            words = f"I4: {process.name} went back from epoch {process.epoch} to {party.link.epoch}"
            let_go = party.link.clock.ahead(process.epoch) > 0  # It took it over before its clock was set.
            demand(party.link.epoch >= process.epoch or let_go, words)
            process.epoch = party.link.epoch
        parts = self._parts_of(party)
        if (too_far := sum(one.meter.rejected[self._far(party)] for one in parts)) > process.too_far:
            process.too_far = too_far
            self._somebody_sets_the_clock()
        if isinstance(party, CoordinatorService):
            for run in party.runs.values():
                # The stop of an operator is not on the disk yet while its turn lasts.
                is_saved = run.name not in self.stopped or run.spool.early_end()
                if run.machine.ended_early and is_saved:
                    self.histories[run.name].end_early(run.spool)
            self.least_wall = min(self.least_wall, self.hosts[COORDINATOR].wall_offset)
            errors = party.context.error_boundary.cut_off + sum(
                r.isolation.errors for r in party.runs.values()
            )
            demand(errors == 0, "I8: an error of ours was taken for that of a device, or of an observer")
            banned = party.context.bans.banned
            demand(not banned, f"I8: honest devices are banned: {sorted(banned)}")
        # With several runs, a device may be busy with another run, so a message to it may wait.
        if process.alive and not party.finished and len(self.histories) == 1:
            waited_for = party.run.machine.waited_for if isinstance(party, CoordinatorService) else ()
            party.link.due.look(self.clock.now, self.history.newest, waited_for)  # type: ignore[attr-defined]
        process.looked += 1
        if process.alive and process.looked % 8:
            return  # Sums only grow, so a wrong sum is still wrong at the next look.
        if isinstance(party, Agent) and party.link.has_early_block:
            return  # A block that comes before its task is counted together with the task.
        meters, back, out = [one.meter for one in parts], parts[0].peer_direction, parts[0].direction
        ended = sum(n for meter in meters for (way, _, _), n in meter.messages.items() if way == back)
        words = f"I6: {process.name} was given {process.arrived} frames and counted {ended}"
        demand(ended == process.arrived, words)
        for way, side in ((out, "out"), (back, "in")):
            wire = sum(n for meter in meters for (w, _), n in meter.wire.items() if w == way)
            wire += sum(one.waiting_bytes for one in parts) if way == back else 0
            words = f"I7: {process.name} counted {wire} bytes {side}, {line.bytes[side]} crossed"
            demand(wire == line.bytes[side], words)
            frames = sum(meter.frames[way] for meter in meters)
            demand(frames == line.frames[side], f"I7: frames of {process.name}, {side}")
        for meter in meters:
            tensors = sum(n for _, n in meter.payload.items())
            demand(tensors <= sum(meter.wire.values()), f"I7: {process.name} counts more tensors than bytes")

    def _parts_of(self, party: Agent | CoordinatorService) -> Sequence[RunPart]:
        """Return the parts of a link that count its frames and bytes."""
        return [party.link] if isinstance(party, Agent) else [party.run.link]


def close_files(process: Process) -> None:
    """Do what the system does for an ended process: close its files, and roll back its transactions."""
    if isinstance(process.disk, FrailDisk):
        process.disk.die()
    party = process.party
    fetches = []
    if isinstance(party, CoordinatorService):
        for run in party.runs.values():
            fetches += [fetch for fetch, _ in run.link.answers.fetches.values()]
            run.link.answers.fetches.clear()
            run.spool.close()
    elif isinstance(party, Agent) and party.link._fetch:
        fetches, party.link._fetch = [party.link._fetch], None
    for fetch in fetches:
        fetch.partial.abandon(forget=False)
