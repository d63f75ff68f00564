"""Federations whose parties are killed at a numbered step of their disk or transport, and are started again."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from protofleet.coordinator.observe.observers import keep_journal
from protofleet.coordinator.observe.rounds_file import RoundsFile, read_rounds
from protofleet.coordinator.round.events import Advance
from protofleet.coordinator.spool.spool import Accepted
from protofleet.edge_client.serving.settings import GLOBAL, ModelSettings
from protofleet.edge_client.serving.versions import ModelVersions
from protofleet.lab.simulation.federation import Simulation
from protofleet.methods.contract.bridge import to_torch
from protofleet.methods.contract.kept import KeptRound
from protofleet.methods.contract.plan import Network
from protofleet.methods.nets.weights_file import read_weights
from protofleet.methods.served.card import read_card
from protofleet.methods.served.rebuild import rebuild
from protofleet.protocol.settings.codec import CodecSettings, CodecStage
from tests.crash.platter import FrailDisk, Platter
from tests.support.run_policy import RunPolicy
from tests.support.small_federation import plan, shard

ROUNDS = 2
LOSSLESS = "fedplcc"  # The method whose updates and broadcasts are coded without loss.
CODED = " with a codec"  # Ends the name of a method whose updates and broadcasts are rounded.
TERNARY = CodecStage("ternary", "broadcast", keep=10, feedback=True)
DOWN = CodecStage("ternary", "broadcast", keep=4)
POLICY = RunPolicy(
    rounds=ROUNDS, quorum=3, cohort=3, patience_seconds=3000.0, settle_seconds=0.5, grace_seconds=100.0,
    straggler_factor=0.0,  # The run waits for a device that died in the last evaluation; it gets the same bits.
)  # fmt: skip
DEVICES = ("device-0", "device-1", "device-2")
PARTIES = ("coordinator", *DEVICES)
LEARNED = ("round", "kind", "participants", "accuracy", "validation", "loss", "pooled")
SERVES = {DEVICES[1]: ModelSettings()}
IN_BLOCKS = DEVICES[
    1
]  # Its answers are sent in blocks, so that crashes also occur in the middle of an answer.
SMALL_INLINE = 256  # Bytes.
TURN_SECONDS = 0.3  # Seconds of a turn; several messages and answers come in one turn.
OUT_SECONDS = 1.0  # Seconds from a death to the next boot.
CHANCE_NAMES = re.compile(r"new-\d+-\d+|[0-9a-f]{64}|(?<=\.)[0-9a-f]{8}(?=\.new$)")


class Killed(BaseException):
    """The death of a process; no `except Exception` of the product may catch it."""


@dataclass
class Points:
    """The steps of all processes of a party; the party is killed just before the steps in `deadly`."""

    deadly: frozenset[int] = frozenset()
    passed: list[str] = field(default_factory=list)
    deaths: int = 0
    dead: bool = False

    def pass_by(self, words: str) -> None:
        if not self.dead:
            self.passed.append(words)
            self.dead = len(self.passed) in self.deadly
        if self.dead:  # A dead party does no more steps, whatever its `finally` blocks try.
            raise Killed(words)


class CountedDisk(FrailDisk):
    """The disk of one process; the numbers of its steps continue through all processes."""

    def __init__(self, points: Points, platter: Platter) -> None:
        super().__init__(platter)
        self._points = points

    def before_step(self, step: str, what: Path | str) -> None:
        name = str(what.relative_to(self.platter.folder.parent)) if isinstance(what, Path) else what
        self._points.pass_by(f"{step} {CHANCE_NAMES.sub('*', name)}")


@dataclass
class Crashing(Simulation):
    """A simulation that boots killed parties again, and keeps all files that the coordinator wrote."""

    deadly: Mapping[str, frozenset[int]] = field(default_factory=dict)
    power: bool = False  # The power fails, so unsynced data is lost.
    dice: random.Random | None = None  # With dice, unsynced data may also be torn or flipped.
    memory: int = 0  # Bytes for small answers that are not whole yet; the others are in files.

    def __post_init__(self) -> None:
        self.points = {name: Points(self.deadly.get(name, frozenset())) for name in PARTIES}
        self.platters = {name: Platter(self.folder / name, self.folder / f"{name}.shelf") for name in PARTIES}
        self.make_disk = self._disk
        self._disks: dict[str, CountedDisk] = {}
        self.counted: dict[tuple[int, str | None], dict[str, bytes]] = {}
        super().__post_init__()

    def boot_coordinator(self) -> None:
        if self._boot("coordinator", super().boot_coordinator):
            spool = self.service.run.spool
            disk, spool.memory.most = spool.disk, self.memory
            path, until = self.folder / "coordinator" / "rounds.jsonl", self.service.run.spool.newest_round
            rounds = RoundsFile(path, disk, until)
            self.service.run.observers.clear()
            keep_journal(self.service.run, [rounds])
            self.service.run.server_runner.step = partial(self._stepped, self.service.run.server_runner.step)  # type: ignore[method-assign]

    def boot_device(self, device: str) -> None:
        booted = self._boot(device, partial(super().boot_device, device))
        if booted and device == IN_BLOCKS:
            link = self.agents[device].link
            link.inline = link.block = SMALL_INLINE
            link.adapt = lambda *limits: None  # type: ignore[method-assign]

    def live(self) -> Crashing:
        """Run to the end, until every device knows that the run is over."""
        while not self.over():
            before = self.clock.now
            try:
                self.run(self.over)
                assert self.over() or self.clock.now > before, "nothing happens any more"
            except Killed:
                name = next(name for name, points in self.points.items() if points.dead)
                self.kill(name)
                self._buried(name)
                again = partial(self.boot_device, name) if name in self.shards else self.boot_coordinator
                self.clock.call_at(self.clock.now + OUT_SECONDS, again)
        return self

    def _stepped(
        self,
        step: Any,
        advance: Advance,
        members: Any,
        answers: Mapping[str, Accepted],
        block: int,
        enrolled: Any,
    ) -> Any:
        """Record the input of the server half, which must be the same in each process of the coordinator."""
        found = {device: answers[device].object for device in advance.devices}
        known = self.counted.setdefault((advance.round, advance.phase), found)
        assert known == found, f"round {advance.round} {advance.phase} has other input than before"
        return step(advance, members, answers, block, enrolled)

    def over(self) -> bool:
        if any(agent.view.problem for agent in self.agents.values()):
            return True  # It has ended, and nothing starts it again.
        alive = [self.service, *(self.agents[d] for d in self.shards if d in self.agents)]
        return len(alive) == len(PARTIES) and all(party.finished for party in alive)

    def _boot(self, name: str, boot: Any) -> bool:
        """Boot a party; as a service manager does, boot it again if it died before it ran."""
        while True:
            try:
                boot()
                return True
            except Killed:
                self._buried(name)

    def _disk(self, name: str) -> CountedDisk:
        self._disks[name] = CountedDisk(self.points[name], self.platters[name])
        return self._disks[name]

    def kill_all(self) -> None:
        """Kill all parties where they are, and close all their files."""
        for disk in self._disks.values():
            disk.die()

    def _buried(self, name: str) -> None:
        self._disks[name].die()
        points = self.points[name]
        points.deaths, points.dead = points.deaths + 1, False
        if self.power:
            self.platters[name].cut(self.dice)


def crashing(
    folder: Path, method: str, deadly: Mapping[str, frozenset[int]] | None = None,
    serves: Mapping[str, ModelSettings] = SERVES, keep: tuple[KeptRound, ...] = (), **more,
) -> Crashing:  # fmt: skip
    shards = {name: shard(i, 12) for i, name in enumerate(DEVICES)}
    name, coded, _ = method.partition(CODED)
    made = replace(
        plan(name, ROUNDS, epochs=1, server_epochs=2),
        network=Network("mlp", 40 if coded else 8),
        codec=CodecSettings({"weights": TERNARY}, {"weights": DOWN}) if coded else None,
        keep=keep,
    )
    if name == LOSSLESS:
        made = made.with_codec("lossless")
    return Crashing(
        made, shards, POLICY, folder, deadly=deadly or {}, turn_seconds=TURN_SECONDS, serves=serves, **more
    )


@dataclass(frozen=True)
class Outcome:
    """All results that must not depend on the killed party and the time of the kill."""

    learned: Mapping[str, torch.Tensor]
    counted: Mapping[tuple[int, str | None], Mapping[str, bytes]]
    rounds: list[dict[str, Any]]
    served: tuple[int, str] | None  # None if no device serves a model.

    def differences(self, other: Outcome) -> Iterator[str]:
        if self.learned.keys() != other.learned.keys():
            yield f"states of {sorted(self.learned.keys() ^ other.learned.keys())}"
        for name in sorted(self.learned.keys() & other.learned.keys()):
            if not torch.equal(self.learned[name], other.learned[name]):
                yield f"the bits of {name}"
        if self.counted != other.counted:
            yield f"the answers that count in {differing(self.counted, other.counted)}"
        if self.served != other.served:
            yield f"what is served: {self.served} and {other.served}"
        if self.rounds != other.rounds:
            one, two = ({line["round"]: line for line in rounds} for rounds in (self.rounds, other.rounds))
            first = next(iter(differing(one, two)), None)
            yield f"what is written of the rounds {differing(one, two)}: {one.get(first)} and {two.get(first)}"


def differing(one: Mapping[Any, Any], two: Mapping[Any, Any]) -> list[Any]:
    return [key for key in {**one, **two} if one.get(key) != two.get(key)]


def served_by(run: Crashing) -> tuple[int, str] | None:
    """Return the round and the hash of the tensors of the served model.

    A device that died at the end may not know whether its last answer was accepted. If it serves a model of
    its own, it then serves the one before. In that case it is enough that the model is whole, and the result
    is (0, "").
    """
    if not run.serves:
        return None
    (device,) = run.serves
    current = ModelVersions(run.folder / device / "models").named("current")
    assert current is not None
    card = read_card((current.folder / "card.json").read_bytes())
    rebuild(card, read_weights(current.folder / "model.safetensors"))  # CardError: they do not match.
    return (current.round, current.tensors) if current.kind == GLOBAL else (0, "")


def outcome(run: Crashing) -> Outcome:
    path = run.folder / "coordinator" / "rounds.jsonl"
    rounds = [{key: line[key] for key in LEARNED} for line in read_rounds(path)]
    # For a device, take the state on its disk: after its last answer a restarted device does not load it again.
    states = {"server": run.service.run.server_runner.server.state()}
    states |= {name: to_torch(agent.state.half() or {}) for name, agent in run.agents.items()}
    learned = {f"{who}/{key}": value.clone() for who, state in states.items() for key, value in state.items()}
    return Outcome(learned, run.counted, rounds, served_by(run))
