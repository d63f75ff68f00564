"""The faults of a run, their times and their lengths, all drawn from the seed before the run begins."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable

from protofleet.protocol.wire.names import COORDINATOR
from protofleet.protocol.wire.topics import Topics
from tests.simulator.broker import honest
from tests.simulator.federation import FEDERATION, Federation
from tests.simulator.keeper import Keeper
from tests.simulator.malice import DEEDS, Malice

YEAR_1970 = -1.7e9


class Nemesis:
    def __init__(self, federation: Federation) -> None:
        self.f, self.s = federation, federation.scenario
        self.dice = random.Random(f"{self.s.seed}/nemesis")
        self.doom_dice = random.Random(f"{self.s.seed}/doom")
        self.parties = (COORDINATOR, *self.s.devices)
        self._twins = 0

    def prepare(self) -> None:
        """Boot all parties, and schedule the faults."""
        f, s, dice = self.f, self.s, self.dice
        for place in self.parties:
            self._climate(place)
            late = "late_joiner" in s.kinds and place != COORDINATOR and dice.random() < 0.4
            when = dice.random() * s.bad_seconds if late else dice.random() * 0.5
            f.clock.at(when, f"{place} is switched on", lambda place=place: f.boot(place))
        deeds = [deed for kind, deed in self._deeds().items() if kind in s.kinds]
        for _ in range(s.faults if deeds else 0):
            self._schedule(dice.choice(deeds))
        if "replaced" in s.kinds:
            self._replace(random.Random(f"{s.seed}/replaced"))
        if "flapping" in s.kinds:
            self._flap(dice.choice(s.devices), dice.uniform(1.0, 12.0))
        if deeds_of_harm := tuple(deed for deed in DEEDS if deed in s.kinds):
            dice = random.Random(f"{s.seed}/malice")
            f.broker.meddle = Malice(
                dice, f.keys, Topics(FEDERATION), s.sealed, deeds_of_harm, s.malice, f.said.says
            ).meddle
        f.broker.meddle = self._keeper().before(f.broker.meddle)
        f.clock.at(s.bad_seconds, "all is well", self.heal)

    def heal(self) -> None:
        """Stop all faults: kill second processes, switch all other parties on, and make the network good."""
        f = self.f
        for kind in ("loss", "repeat", "late"):
            setattr(f.broker.manners, kind, 0.0)
        f.broker.manners.max_queued = max(f.broker.manners.max_queued, 1000)
        f.broker.meddle = self._keeper().before(honest)  # This fault lasts to the end of the run.
        if not f.broker.up:
            f.broker.start()
        for place, process in list(f.processes.items()):
            process.doom, process.paused_until = -1, f.clock.now
            if place not in self.parties:
                f.kill(place)
            elif process.line:
                process.line.heal()
        for place in self.parties:
            w = f.weather[place]
            w.delay, w.jitter, w.bytes_per_second, w.reorder = 0.01, 0.0, 1e8, False
            f.work_seconds[place] = min(f.work_seconds[place], self.s.work_seconds)
            process = f.processes.get(place)
            if process is None or not (process.alive or f.clock.events == 0 or self._done(place)):
                f.clock.after(1.0, f"{place} is switched on", lambda place=place: f.boot(place))

    def _keeper(self) -> Keeper:
        dice, kinds = random.Random(f"{self.s.seed}/keeper"), self.s.kinds
        losses = dice.randint(1, 2 * len(self.s.devices)) if "lost_ends" in kinds else 0
        return Keeper(dice, Topics(FEDERATION), losses, "kept_refusals" in kinds)

    def _done(self, place: str) -> bool:
        """Return whether a party ended correctly; such a party is not started again."""
        party = self.f.processes[place].party
        problem = getattr(party, "problem", "") or getattr(party, "stopped", "")
        return bool(party and party.finished and not problem and not self.f.processes[place].ended)

    def _deeds(self) -> dict[str, Callable[[], None]]:
        return {
            "kill_coordinator": lambda: self._kill(COORDINATOR),
            "kill_device": lambda: self._kill(self._device()),
            "die_inside": self._doom,
            "power_cut": lambda: self._kill(self._anybody(), power=True),
            "broker_kill": lambda: self._broker(self.dice.choice(("nothing", "saved"))),
            "broker_restart": lambda: self._broker("all"),
            "cut": self._cut,
            "partition": lambda: self._partition({"up", "down"}),
            "one_way": lambda: self._partition({self.dice.choice(("up", "down"))}),
            "pause": self._pause,
            "clock_jump": self._jump,
            "second_coordinator": self._second_coordinator,
            "twin": self._twin,
            "new_card": self._new_card,
        }

    def _schedule(self, deed: Callable[[], None]) -> None:
        clock = self.f.clock
        # Many events have the same time, so a fault at a time alone would never fall between them.
        if self.dice.random() < 0.6:
            clock.alarms[self.dice.randrange(20, 2500)] = lambda: self._unless_over(deed)
        else:
            clock.at(self.dice.random() * self.s.bad_seconds, "nemesis", lambda: self._unless_over(deed))

    def _unless_over(self, deed: Callable[[], None]) -> None:
        if self.f.clock.now < self.s.bad_seconds and not self.f.finished:
            deed()

    def _device(self) -> str:
        return self.dice.choice(self.s.devices)

    def _anybody(self) -> str:
        return self.dice.choice((COORDINATOR, self._device()))

    def _briefly(self) -> float:
        return self.dice.choice((0.1, 2.0, 15.0, 70.0)) * (0.2 + 0.8 * self.dice.random())

    def _kill(self, place: str, power: bool = False) -> None:
        self.f.kill(place, power)
        self.f.clock.after(self._briefly(), f"{place} is switched on", lambda: self.f.boot(place))

    def _doom(self) -> None:
        """Let a process die between two effects: written data stays, and messages after it are never sent."""
        place = self._anybody()
        if process := self.f.processes.get(place):
            process.doomed_step = ""
            process.doom = self.dice.randint(1, 30)
            if self.doom_dice.random() < 0.7:  # It dies at a step of one kind, which is rarer.
                process.doomed_step = self.doom_dice.choice(("commit", "publish", "rename", "sync"))
                process.doom = self.doom_dice.randint(1, 5)

    def _broker(self, keeps: str) -> None:
        broker = self.f.broker
        if broker.up:
            self.f.clock.note(f"broker dies, keeps {keeps}")
            broker.die(keeps)
            self.f.clock.after(self._briefly(), "broker starts", lambda: broker.up or broker.start())

    def _cut(self) -> None:
        process = self.f.processes.get(self._anybody())
        if process and process.alive and process.line:
            process.line.reset()

    def _partition(self, ways: set[str]) -> None:
        process = self.f.processes.get(self._anybody())
        if process and process.alive and process.line:
            self.f.clock.note(f"{process.name} is cut off: {sorted(ways)}")
            line = process.line
            line.block(ways)
            self.f.clock.after(self._briefly(), f"{process.name} is reachable", line.heal)

    def _pause(self) -> None:
        process = self.f.processes.get(self._anybody())
        if process and process.alive and process.line:
            seconds, line = self._briefly(), process.line
            process.stop(self.f.clock.now + seconds)
            line.block({"up", "down"})
            self.f.clock.after(seconds, f"{process.name} goes on", line.heal)

    def _jump(self) -> None:
        host = self.f.hosts[self._anybody()]
        host.wall_offset += self.dice.choice((-3600.0, 3600.0, -86_400.0, 1e8, YEAR_1970))

    def _second_coordinator(self) -> None:
        """Start another coordinator on the same folder.

        An impatient operator may do that, or a supervisor in error.
        """
        place = f"{COORDINATOR}-again-{len(self.f.processes)}"
        if COORDINATOR in self.f.processes:
            self.f.boot(place, COORDINATOR, COORDINATOR)

    def _replace(self, dice: random.Random) -> None:
        """Let a coordinator hang while its supervisor starts another; then the first one goes on."""

        def hangs() -> None:
            process, seconds = self.f.processes.get(COORDINATOR), dice.choice((0.5, 5.0, 30.0, 90.0))
            if process and process.alive and process.line:
                process.stop(self.f.clock.now + seconds)
                process.line.block({"up", "down"})
                self.f.clock.after(seconds, f"{process.name} goes on", process.line.heal)
                self._second_coordinator()

        for _ in range(dice.choice((1, 3))):
            when = dice.random() * self.s.bad_seconds
            if dice.random() < 0.5:
                self.f.clock.at(when, "nemesis", lambda: self._unless_over(hangs))
            else:
                self.f.clock.alarms.setdefault(dice.randrange(20, 1500), lambda: self._unless_over(hangs))

    def _twin(self) -> None:
        """Start a second device with the same name, because a card was copied or a name was given twice."""
        name = self._device()
        self._twins += 1
        place = f"{name}-twin-{self._twins}"
        self.f.has_twin(name)
        if self.dice.random() < 0.5 and (self.f.folder / name).is_dir():
            shutil.copytree(self.f.folder / name, self.f.folder / place)
            self.f.card_copied(name, place)
        self.f.boot(place, name)

    def _new_card(self) -> None:
        """Start a device again without its files and with a wrong clock."""
        name = self._device()
        self.f.has_twin(name)
        self.f.kill(name, power=True)
        shutil.rmtree(self.f.folder / name, ignore_errors=True)
        self.f.platters.pop(self.f.folder / name, None)
        self.f.card_lost(name)
        self.f.hosts[name].wall_offset = -self.f.clock.now
        self.f.clock.after(self._briefly(), f"{name} is switched on", lambda: self.f.boot(name))

    def _climate(self, place: str) -> None:
        f, dice, kinds = self.f, self.dice, self.s.kinds
        weather = f.weather[place]
        weather.jitter = dice.choice((0.0, 0.0, 0.05, 1.0))
        weather.reorder = "reorder" in kinds and dice.random() < 0.5
        if "slow_link" in kinds and dice.random() < 0.5:
            weather.bytes_per_second = dice.choice((2e3, 2e4, 1e5))
        if "skew" in kinds:
            f.hosts[place].wall_offset += dice.choice((-3600.0, 0.0, 3600.0, YEAR_1970))
            f.hosts[place].drift = dice.choice((0.95, 1.0, 1.05))
        if "straggler" in kinds and place != COORDINATOR and dice.random() < 0.3:
            f.work_seconds[place] = dice.choice((3.0, 30.0)) * self.s.work_seconds

    def _flap(self, device: str, seconds: float) -> None:
        """Cut the connection of a device again and again."""

        def flap() -> None:
            process = self.f.processes.get(device)
            if process and process.alive and process.line:
                process.line.reset()
            if self.f.clock.now + seconds < self.s.bad_seconds:
                self.f.clock.after(seconds, f"{device} flaps", flap)

        self.f.clock.after(seconds, f"{device} flaps", flap)
