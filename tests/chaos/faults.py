"""The faults of a run, with their weights: each begins, lasts for some time and ends.

A random generator chooses them.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from signal import SIGCONT, SIGSTOP
from typing import TypeAlias

from protofleet.protocol.wire.names import COORDINATOR
from tests.chaos.world import World

Deed: TypeAlias = Callable[[World, str], None]
EVERYBODY = "everybody"


@dataclass(frozen=True)
class Kind:
    weight: float
    victims: str  # One of: coordinator, device, party (the coordinator or any device), broker, run.
    seconds: tuple[float, float]
    begin: Deed
    end: Deed
    needs_root: bool = False
    needs_queue: bool = False


@dataclass(frozen=True)
class Fault:
    kind: str
    victim: str
    seconds: float


def kill(world: World, who: str) -> None:
    world.processes[who].kill()


def start(world: World, who: str) -> None:
    world.processes[who].start()


def freeze(world: World, who: str) -> None:
    world.processes[who].say(SIGSTOP)


def thaw(world: World, who: str) -> None:
    world.processes[who].say(SIGCONT)


def start_broker(world: World, who: str) -> None:
    world.broker.start()


def pull(world: World, who: str) -> None:
    """Drop all packets of a party: in its network namespace if there is one, else in its proxy."""
    if world.network:
        world.network.pull(who)
    else:
        world.lines[who].hush()


def plug(world: World, who: str) -> None:
    if world.network:
        world.network.plug(who)
    world.lines[who].resume()


def snap(world: World, who: str) -> None:
    world.lines[who].reset()


def mend(world: World, who: str) -> None:
    world.lines[who].resume()


def delay(world: World, who: str) -> None:
    world.lines[who].seconds = 0.05


def hurry(world: World, who: str) -> None:
    world.lines[who].seconds = 0.0


def pause(world: World, run: str) -> None:
    world.give("pause", run)


def resume(world: World, run: str) -> None:
    world.give("resume", run)


SHORT, LONG = (0.0, 3.0), (1.0, 8.0)
KINDS: Mapping[str, Kind] = {
    "kill -9 the coordinator": Kind(3, "coordinator", SHORT, kill, start),
    "kill -9 a device": Kind(4, "device", SHORT, kill, start),
    "freeze the coordinator": Kind(1, "coordinator", LONG, freeze, thaw),
    "freeze a device": Kind(2, "device", LONG, freeze, thaw),
    "freeze the broker": Kind(
        0.5, "broker", LONG, lambda w, _: w.signal_broker(SIGSTOP), lambda w, _: w.signal_broker(SIGCONT)
    ),
    "stop the broker, with its store": Kind(1, "broker", SHORT, lambda w, _: w.stop_broker(), start_broker),
    "kill -9 the broker, with its store": Kind(
        1, "broker", SHORT, lambda w, _: w.crash_broker(), start_broker
    ),
    "kill -9 the broker, store gone": Kind(1, "broker", SHORT, lambda w, _: w.wipe_broker(), start_broker),
    # Its weight is 0, so it comes only on request.
    "ten minutes without the broker, store gone": Kind(
        0, "broker", (600.0, 600.0), lambda w, _: w.wipe_broker(), start_broker
    ),
    "cut a line, in silence": Kind(2, "party", LONG, pull, plug),
    "cut a line for a minute": Kind(0.1, "party", (50.0, 60.0), pull, plug),  # Over 1.5 keepalives.
    "break a line": Kind(2, "party", SHORT, snap, mend),
    "delay a line": Kind(1.5, "party", LONG, delay, hurry),
    "fill a device's disk": Kind(
        1, "device", LONG, lambda w, who: w.disks[who].fill(), lambda w, who: w.disks[who].free(), True
    ),
    "fill the coordinator's disk": Kind(
        0.7, "coordinator", LONG, lambda w, who: w.disks[who].fill(), lambda w, who: w.disks[who].free(), True
    ),
    "pause a run": Kind(3, "run", LONG, pause, resume, needs_queue=True),
    "start a second coordinator": Kind(
        1, "coordinator", (20.0, 30.0), lambda w, _: w.start_second(), lambda w, _: w.end_second(),
        needs_queue=True,
    ),
}  # fmt: skip
BUSY = {  # Two faults of one sort would cancel each other.
    "kill -9 a device": "process", "freeze a device": "process", "kill -9 the coordinator": "process",
    "freeze the coordinator": "process", "cut a line, in silence": "line", "break a line": "line",
    "cut a line for a minute": "line",
}  # fmt: skip


class Dice:
    """A generator of faults: the same seed draws the same faults with the same pauses.

    The clock decides when they begin.
    """

    def __init__(
        self, seed: int, devices: list[str], root: bool, pause: float, only: str = "", runs: Sequence[str] = ()
    ) -> None:  # fmt: skip
        """Create a generator; `runs` are the runs of a queue, and without them there are no faults of a queue."""
        self._random = random.Random(f"chaos/{seed}")
        self._devices, self._pause, self._runs = devices, pause, runs
        self._kinds = {
            name: kind if not only else replace(kind, weight=max(kind.weight, 0.1))
            for name, kind in KINDS.items()
            if (root or not kind.needs_root) and (runs or not kind.needs_queue) and only in name
        }

    def draw(self) -> tuple[float, Fault]:
        """Return the seconds to wait, and the fault that follows."""
        dice = self._random
        name = dice.choices(list(self._kinds), [kind.weight for kind in self._kinds.values()])[0]
        kind = self._kinds[name]
        choice = {
            "coordinator": [COORDINATOR], "device": self._devices, "party": [COORDINATOR, *self._devices],
            "broker": ["broker"], "run": self._runs,
        }[kind.victims]  # fmt: skip
        victim, seconds = dice.choice(choice), dice.uniform(*kind.seconds)
        return dice.expovariate(1 / self._pause), Fault(name, victim, seconds)


class Storm:
    """The active faults of a run; a victim has at most one fault of each sort at a time."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._active: dict[tuple[str, str], tuple[float, Fault]] = {}

    def strike(self, fault: Fault, now: float) -> bool:
        """Begin a fault; return False if the victim already has a fault of this sort."""
        sort = "broker" if fault.victim == "broker" else BUSY.get(fault.kind, fault.kind)
        if (sort, fault.victim) in self._active:
            return False
        self._world.note(f"{fault.kind}: {fault.victim}, {fault.seconds:.1f} s")
        KINDS[fault.kind].begin(self._world, fault.victim)
        self._active[sort, fault.victim] = now + fault.seconds, fault
        return True

    def pass_over(self, now: float) -> None:
        for place, (until, fault) in list(self._active.items()):
            if now >= until:
                del self._active[place]
                self._world.note(f"over: {fault.kind}, {fault.victim}")
                KINDS[fault.kind].end(self._world, fault.victim)

    def calm(self) -> None:
        self.pass_over(float("inf"))
