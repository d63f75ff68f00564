"""One run after another under faults until the time is over; then a calm time, the end and the audit."""

from __future__ import annotations

import shutil
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from protofleet.federation.brokers.ports import free_port
from protofleet.lab.local.experiment import Experiment
from protofleet.protocol.settings.reader import decode
from protofleet.protocol.wire.names import COORDINATOR
from tests.chaos.audit import computed_again, evidence_of, violations
from tests.chaos.closed_phases import note_closed_phases
from tests.chaos.faults import Dice, Storm
from tests.chaos.proxy import Proxy
from tests.chaos.seclusion import HUB, Network
from tests.chaos.world import World

CALM_SECONDS = 180.0  # Seconds that a run may take to its end after the last fault.
GO_SECONDS = (
    60.0  # Seconds for devices to receive the end of the run; the longest pause between two tries is 30.
)
TICK = 0.02
# With PATIENT a round waits for all four devices. With HASTY a round needs three of four devices, and waits only a
# short time for the last one.
PATIENT = {"quorum": 4, "patience_seconds": 60.0, "grace_seconds": 20.0, "settle_seconds": 0.0}
HASTY = {"quorum": 3, "patience_seconds": 6.0, "grace_seconds": 1.0, "settle_seconds": 0.2}
# The run is computed again, so a device whose answer was not counted must have learned nothing from it. That is why
# the hasty runs use a method whose devices keep no state.
RunKind: TypeAlias = tuple[str, Mapping[str, float], Mapping[str, float], str]
RUNS: tuple[RunKind, ...] = (
    ("fedavg", HASTY, {"epochs": 2, "batch": 8}, "small"),
    ("fedpall", PATIENT, {"epochs": 1, "batch": 8, "server_epochs": 1}, "off"),
    ("fedavg", PATIENT, {"epochs": 2, "batch": 8}, "off"),
)

# The samples of the devices. Each kind makes about as many weights; an answer of 250 kB is four blocks.
PICTURES = {"source": "folder", "size": 8}
OTHERS = {
    "series": {"source": "arrays", "domain": "series", "shape": (3, 64)},
    "vectors": {"source": "arrays", "domain": "vectors", "shape": (192,)},
}
SAMPLES = (PICTURES, OTHERS["series"], OTHERS["vectors"])


@dataclass
class Outcome:
    seed: int
    folder: Path
    runs: int = 0
    rounds: int = 0
    harmed: int = 0  # The number of rounds that ended while faults came.
    resumed: int = 0
    again: int = 0
    counted: int = 0
    seconds: float = 0.0
    faults: Counter[str] = field(default_factory=Counter)
    starts: Counter[str] = field(default_factory=Counter)
    deaths: Counter[str] = field(default_factory=Counter)
    unheard: int = 0  # The number of devices that did not receive the end of a run.
    refused: int = 0  # The number of second coordinators that were refused.
    violations: list[str] = field(default_factory=list)
    kept: list[Path] = field(default_factory=list)


class Campaign:
    only = ""  # Use only the kinds of faults whose name contains this text.
    runs = RUNS
    run_names: Sequence[str] = ()  # The names of runs that side by side can be paused.
    keep = False  # Keep the folder of every run, not only of the runs that went wrong.

    def __init__(
        self, folder: Path, seed: int, devices: int, rounds: int, pause: float, secluded: bool
    ) -> None:
        self.folder, self.seed, self.rounds, self.pause = folder, seed, rounds, pause
        self.names = [f"device-{i + 1}" for i in range(devices)]
        self.network = Network([COORDINATOR, *self.names]) if secluded else None
        self.outcome, self.worlds = Outcome(seed, folder), 0
        self.port = free_port()
        host = HUB if self.network else "127.0.0.1"
        target = ("127.0.0.1", self.port)
        self.lines = {name: Proxy(host, target) for name in (COORDINATOR, *self.names)}
        pictures(folder / "data", seed)
        for kind in OTHERS:
            arrays(folder / "data", kind, seed)

    def choose(self, method: str) -> None:
        """Make only runs of this method, if it is not empty."""
        self.runs = tuple(run for run in self.runs if method in ("", run[0]))

    def run(self, seconds: float) -> Outcome:
        began = time.monotonic()
        dice = Dice(self.seed, self.names, self.network is not None, self.pause, self.only, self.run_names)
        while time.monotonic() < began + seconds:
            self.one_world(dice, began + seconds)
        self.outcome.seconds = time.monotonic() - began
        return self.outcome

    def world(self, folder: Path, number: int) -> World:
        return World(folder, self.experiment(number), self.lines, self.port, self.network)

    def one_world(self, dice: Dice, until: float) -> None:
        o = self.outcome
        self.worlds += 1
        folder = self.folder / f"run-{self.worlds:02}"
        world = self.world(folder, self.worlds)
        for run in world.audited:
            note_closed_phases(run.results / "coordinator")
        o.runs += len(world.audited)
        world.processes[COORDINATOR].command.append("--events")
        found = []
        with world:
            if problem := self.weather(world, dice, until):
                world.log_states()
                found.append(problem)
            else:
                o.unheard += len(world.let_everybody_go(GO_SECONDS))
        for name, process in world.processes.items():
            o.starts[name] += process.starts - 1
            o.deaths.update(death.split(": ", 1)[1][:90] for death in process.deaths)
        found = found or self.books(world)
        o.rounds += world.rounds
        if found or self.keep:
            o.violations += [f"run {self.worlds}: {words}" for words in found]
            o.kept.append(folder)
        else:
            shutil.rmtree(folder)

    def weather(self, world: World, dice: Dice, until: float) -> str:
        """Apply faults to the run until it is over; return the reason why it does not end, or an empty text."""
        storm, (pause, fault) = Storm(world), dice.draw()
        next_at, calm_at, calm_rounds = time.monotonic() + pause, 0.0, 0
        while not world.finished:
            now = time.monotonic()
            world.watch()
            if problem := world.problem:
                return problem
            if not calm_at and now >= until:
                storm.calm()
                calm_at, calm_rounds = now, world.rounds
            if calm_at and now > calm_at + CALM_SECONDS:
                return f"{world.state} after {CALM_SECONDS:.0f} s without a fault"
            storm.pass_over(now)
            if not calm_at and now >= next_at:
                if storm.strike(fault, now):
                    self.outcome.faults[fault.kind] += 1
                pause, fault = dice.draw()
                next_at = now + pause
            time.sleep(TICK)
        storm.calm()
        self.outcome.harmed += calm_rounds if calm_at else world.rounds
        return world.problem

    def books(self, world: World) -> list[str]:
        found = []
        for run in world.audited:
            e = evidence_of(run)
            self.outcome.counted += sum(len(c.answers) for c in e.final)
            self.outcome.resumed += sum(line["resumed"] for line in e.lines)
            self.outcome.again += sum(line["attempt"] for line in e.lines)
            own = [*violations(e), *computed_again(run, e)]
            found += [f"{run.name}: {words}" if run.name else words for words in own]
        return found

    def experiment(self, number: int) -> Experiment:
        run = self.runs[(number - 1) % len(self.runs)]
        return self.experiment_of(run, number, f"chaos-{number}", self.rounds)

    def experiment_of(self, run: RunKind, number: int, name: str, rounds: int, seed: int = 0) -> Experiment:
        """Return an experiment of a kind, with the samples of the world `number`."""
        method, policy, hyper, codec = run
        samples = samples_of(self.seed, number)
        table = {
            "name": name, "rounds": rounds, "classes": 3, "seed": self.seed + number + seed,
            "method": {"name": method, "lr": 0.02, **hyper},
            "network": {"name": "cnn1d" if len(samples.get("shape", ())) == 2 else "mlp", "feature_size": 300},
            "data": {"root": str(self.folder / "data"), "split": "iid", **samples},
            "devices": {"count": len(self.names)}, "policy": policy, "codec": codec,
        }  # fmt: skip
        return decode(Experiment, table)


def samples_of(seed: int, number: int) -> dict[str, Any]:
    """Return the samples of a run.

    The seed decides which samples the first run has. In nine runs each of the three methods is run
    with each kind of samples.
    """
    return SAMPLES[(seed + number + (number - 1) // len(SAMPLES)) % len(SAMPLES)]


def pictures(root: Path, seed: int) -> None:
    """Write three classes of small pictures, forty of each."""
    from PIL import Image

    dice = np.random.default_rng(seed)
    for label in ("circle", "line", "square"):
        (root / label).mkdir(parents=True)
        base = dice.integers(0, 255, (8, 8, 3))
        for i in range(40):
            noisy = np.clip(base + dice.integers(-20, 20, base.shape), 0, 255).astype(np.uint8)
            Image.fromarray(noisy).save(root / label / f"{i}.png")


def arrays(root: Path, kind: str, seed: int) -> None:
    """Write as many samples of the same three classes that are not pictures."""
    dice = np.random.default_rng(seed)
    labels, shape = np.arange(3).repeat(40), OTHERS[kind]["shape"]
    x = dice.normal(size=(3, *shape))[labels] + 0.3 * dice.normal(size=(len(labels), *shape))
    names = np.array(("circle", "line", "square"))
    np.savez(root / f"{kind}.npz", x=x.astype(np.float32), y=names[labels])
