"""A coordinator with two runs over one connection, devices of both kinds, and an operator.

Some devices take part in both runs; the others follow one run, as devices of earlier versions do. Each run has a
history of its own, and all promises are checked for each run.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from protofleet.coordinator.context import ProcessContext
from protofleet.coordinator.devices.bans import Bans
from protofleet.coordinator.round.events import Paused, Stopped
from protofleet.coordinator.round.machine import Stage
from protofleet.coordinator.run import Run
from protofleet.coordinator.service import CoordinatorService
from protofleet.edge_client.agent import Agent
from protofleet.edge_client.agent_parts import AgentOptions
from protofleet.protocol.link.clocks import Clock as Wall
from protofleet.protocol.link.coordinator_run import CoordinatorRunLink
from protofleet.protocol.link.run_part import RunPart
from protofleet.protocol.security.keys import Identity
from protofleet.protocol.transport.base import Done
from protofleet.protocol.wire.names import COORDINATOR
from protofleet.protocol.wire.topics import Topics
from tests.simulator.federation import FEDERATION, Federation
from tests.simulator.history import observed_spool
from tests.simulator.order import observed_run
from tests.simulator.process import Process
from tests.simulator.scenario import Scenario, draw
from tests.support.run_policy import RunPolicy

FIRST, SECOND = RUNS = ("red", "blue")  # Devices that follow one run take part in the first one.
LOOK_SECONDS = 2.0  # Seconds between two looks of the operator at the runs.
GOES_ON, PAUSES, STOPS = "goes on", "pauses", "stops"


def draw_several(seed: int) -> Scenario:
    """Draw a scenario with two runs. It has dice of its own, so the other seeds keep their scenarios."""
    dice = random.Random(f"{seed}/several")
    base = draw(dice.randrange(1 << 30))
    while base.method != "tally":
        base = draw(dice.randrange(1 << 30))
    able = [device for device in base.devices if dice.random() < 0.75] or [dice.choice(base.devices)]
    return replace(base, seed=seed, able=tuple(able))


class SeveralRuns(Federation):
    def __post_init__(self) -> None:
        super().__post_init__()
        self.plans = {run: replace(self.plan, seed=self.plan.seed + n) for n, run in enumerate(RUNS)}
        parts = self.parts
        self._spools = {run: observed_spool(parts.spool, h) for run, h in self.histories.items()}
        self._runs = {run: observed_run(parts.run, h) for run, h in self.histories.items()}
        twins = self.history.twins
        for history in self.histories.values():
            history.twins = twins

    def operate(self) -> None:
        Operator(self).begin()

    @property
    def policies(self) -> Mapping[str, RunPolicy]:
        """Return the policy of each run; the second run has only the devices that take part in both."""
        policy, able = self.scenario.policy, len(self.scenario.able)
        quorum = min(policy.quorum, able)
        cohort, buffer = min(policy.cohort, able), policy.buffer
        if policy.buffered:
            buffer = max(quorum, min(buffer, cohort or able))
        less = replace(
            policy, quorum=quorum, cohort=cohort, gather=min(policy.gather, able), buffer=buffer,
        )  # fmt: skip
        return {FIRST: policy, SECOND: less}

    @property
    def spools(self) -> Sequence[Path]:
        return [self.folder / COORDINATOR / run for run in RUNS]

    def _boot_coordinator(self, process: Process, name: str, folder: Path) -> None:
        process.disk.make(folder)
        spools = {run: self._spools[run](folder / run, disk=process.disk) for run in RUNS}
        texts, wall = {run: plan.encode().decode() for run, plan in self.plans.items()}, process.host.wall()
        epoch = spools[FIRST].start_run(FIRST, texts[FIRST], wall)
        spools[SECOND].start_run(SECOND, texts[SECOND], wall, exactly=epoch)
        self._look_at_clock(process.host)
        me, topics = Identity(COORDINATOR, epoch, self.keys[COORDINATOR]), Topics(FEDERATION)
        line = self._line(process, name, topics.coordinator_subscriptions(), 0.0, clean=True)
        clock = Wall(process.host.wall)
        link = self._coordinator_link(
            me, self.keyring, topics, line, self.scenario.sealed, clock, process.name
        )
        context = ProcessContext(link, process.worker, Bans(folder, process.disk))
        names = self._class_names() if self.scenario.starts else ()
        runs = []
        for run, plan in self.plans.items():
            machine = self.parts.machine(self.policies[run], plan.rounds, plan.seed)
            part = CoordinatorRunLink(link, run, spools[run].store)
            runs.append(self._runs[run](plan, machine, spools[run], context, part, class_names=names))
        process.turn_items = self.scenario.turn_items
        service = Conducted(context, runs, stays=True)
        line.leave(link.will(topics.coord_state))
        process.start(service, line)

    def _options(self, name: str) -> AgentOptions:
        if name not in self.scenario.able:
            return super()._options(name)
        return replace(super()._options(name), runs=len(RUNS), stays=True)

    def _parts_of(self, party: Agent | CoordinatorService) -> Sequence[RunPart]:
        if not isinstance(party, Conducted):
            return super()._parts_of(party)
        return [*party.link.runs.values(), party.link.unassigned, *party.closed]


class Conducted(CoordinatorService):
    """The service of a conductor that closes each run whose devices know its end, and ends after the last one."""

    def __init__(self, context: ProcessContext, runs: Sequence[Run], stays: bool) -> None:
        self.closed: list[RunPart] = []
        super().__init__(context, runs, stays)

    def end_turn(self, now: float) -> None:
        super().end_turn(now)
        for run in list(self.runs.values()):
            if run.times.shutdown.is_over(now):
                self.remove(run.name)
                self.closed.append(run.link)
                run.spool.close()
                if self.runs:
                    self.lead(next(iter(self.runs)))
        self.finished |= not self.runs


class Operator:
    """An operator who looks at both runs, and repeats an order until the run shows it."""

    def __init__(self, federation: SeveralRuns) -> None:
        self._f = federation
        self._wanted = dict.fromkeys(RUNS, GOES_ON)

    def begin(self) -> None:
        """Schedule the orders. In calm weather no run is paused any more."""
        f, s = self._f, self._f.scenario
        dice = random.Random(f"{s.seed}/operator")
        for _ in range(dice.choice((0, 1, 3, 6))):
            run, order = dice.choice(RUNS), dice.choice((PAUSES, GOES_ON))
            f.clock.at(
                dice.random() * s.bad_seconds, f"the operator: {run} {order}", partial(self._want, run, order)
            )
        if dice.random() < 0.15:
            run = dice.choice(RUNS)
            f.clock.at(
                dice.random() * s.bad_seconds, f"the operator: {run} {STOPS}", partial(self._want, run, STOPS)
            )
        for run in RUNS:
            f.clock.at(s.bad_seconds, f"the operator: {run} {GOES_ON}", partial(self._want, run, GOES_ON))
        self._look()

    def _want(self, run: str, order: str) -> None:
        if self._wanted[run] != STOPS:
            self._wanted[run] = order
        if order == STOPS:
            self._f.stopped.add(run)

    def _look(self) -> None:
        if self._f.finished:
            return
        self._f.clock.after(LOOK_SECONDS, "the operator looks", self._look)
        process = self._f.processes.get(COORDINATOR)
        if process and process.alive and isinstance(process.party, CoordinatorService):
            process.tell(Done(partial(self._order, process.party)))

    def _order(self, service: CoordinatorService) -> None:
        """Give the orders as the conductor of a queue gives them."""
        for name, wanted in self._wanted.items():
            if (run := service.runs.get(name)) is None:
                continue
            machine = run.machine
            if run.times.shutdown.begun or machine.stage is Stage.FINISHED or machine.is_stopped:
                continue
            if wanted == STOPS:
                run.happen(Stopped("the operator stops it"))
            elif wanted == PAUSES and not machine.paused:
                run.happen(Paused("the operator pauses it"))
            elif wanted == GOES_ON and machine.paused:
                service.lift(name)
                run.happen(Paused(""))
