"""Runs of masked sums whose parties are killed at a numbered step; they note each masked vector that is sent."""

from __future__ import annotations

import logging
import random
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

from protofleet.edge_client.masked_sums import own_bytes
from protofleet.edge_client.secagg.book import read_book
from protofleet.methods.contract.plan import Network
from protofleet.protocol.settings.dp import DpSettings
from tests.crash.points import SECOND
from tests.crash.world import DEVICES, POLICY, TURN_SECONDS, Crashing, Outcome, outcome
from tests.support.small_federation import plan, shard
from tests.support.summed_simulation import SETTINGS, SummedSimulation, books_with_secrets

METHODS = (
    "fedavg",
    "fedproto",
)  # A method with weights, and a method with rows of classes, whose holders are counted first.
VICTIMS = ("coordinator", DEVICES[1])
ONE_ROUND = replace(POLICY, rounds=1)
# All three devices are needed in each step, so the run waits for a party that died.
PATIENT = replace(SETTINGS, patience_seconds=3000.0)
HELD = [(0, 1, 2), (0, 1), (0, 1, 2)]  # Class 2 has too few holders, so it is in no sum.


class MaskedRun(SummedSimulation, Crashing):
    """A run of masked sums that notes what its devices mask."""

    def __post_init__(self) -> None:
        # (device, public keys of an attempt, step) -> objects of the masked vectors that left the device.
        self.vectors: dict[tuple[str, bytes, str], set[bytes]] = {}
        # Device -> objects that its attempts need.
        self.own: dict[str, set[str]] = {name: set() for name in DEVICES}
        super().__post_init__()

    def boot_device(self, device: str) -> None:
        super().boot_device(device)
        if device in self.agents:
            agent = self.agents[device]
            agent.link.send_update = partial(self._sent, agent, agent.link.send_update)  # type: ignore[method-assign]

    def _sent(self, agent: Any, send_update: Any, update: Any, name: bytes) -> None:
        masked = agent.state.saved.masked
        if masked and masked.book and update.phase != "evaluate":
            self.own[update.device] |= masked.objects()
            if update.phase.endswith(".masked"):
                stage = "presence" if ".presence." in update.phase else "values"
                book = read_book(own_bytes(agent.state, masked.book_of(stage)))
                self.vectors.setdefault((update.device, book.keys, stage), set()).add(name)
        send_update(update, name)

    def problems(self) -> Iterator[str]:
        """Yield the faults of the attempts after the end of the run."""
        for (device, _, stage), names in self.vectors.items():
            if len(names) > 1:
                yield f"{device} has masked {len(names)} vectors of {stage} with the keys of one attempt"
        for device, agent in self.agents.items():
            yield from (
                f"{device} has kept secrets in {name}" for name in books_with_secrets(agent.state.store)
            )
            masked = agent.state.saved.masked
            if masked is None or masked.payload or masked.words or masked.held:
                yield f"{device} has kept its update: {masked}"
            now = masked.objects() if masked else set()
            kept = [
                name for name in self.own[device] - now if (self.folder_of(device) / f"{name}.body").exists()
            ]
            if kept:
                yield f"{device} has kept {len(kept)} objects of its attempt"

    def folder_of(self, device: str) -> Path:
        return self.agents[device].state.store.folder


def masked_run(
    folder: Path, method: str, deadly: Mapping[str, frozenset[int]] | None = None, dp: DpSettings | None = None,
    **more: Any,
) -> MaskedRun:  # fmt: skip
    shards = {
        name: shard(i, 12, classes=held) for i, (name, held) in enumerate(zip(DEVICES, HELD, strict=True))
    }
    made = replace(plan(method, 1, epochs=1), network=Network("mlp", 8), secagg=PATIENT, dp=dp)
    return MaskedRun(
        made, shards, ONE_ROUND, folder, deadly=deadly or {}, turn_seconds=TURN_SECONDS, serves={}, **more
    )


@dataclass(frozen=True)
class Unbroken:
    """The results of a run without deaths, and the points that its parties pass."""

    outcome: Outcome
    points: Mapping[str, list[str]]
    problems: tuple[str, ...]


@lru_cache
def unbroken(method: str) -> Unbroken:
    with tempfile.TemporaryDirectory() as folder:
        run = masked_run(Path(folder), method).live()
        points = {name: run.points[name].passed for name in VICTIMS}
        return Unbroken(learned(run), points, tuple(run.problems()))


def learned(run: MaskedRun) -> Outcome:
    """Return the results without the updates, because the masks are new in each run."""
    return replace(outcome(run), counted={place: {} for place in run.counted})


@dataclass(frozen=True)
class MaskedDeath:
    """A death in a run of masked sums."""

    method: str
    party: str
    point: int
    fate: str

    @property
    def step(self) -> str:
        return unbroken(self.method).points[self.party][self.point - 1]

    def differences(self) -> list[str]:
        """Return the differences from the unbroken run and the faults of attempts; an empty list is a success."""
        deadly = {self.point, self.point + SECOND} if self.fate == "killed twice" else {self.point}
        dice = random.Random(f"{self.party}/{self.point}") if self.fate == "torn" else None
        power = {} if self.fate.startswith("killed") else {"power": True, "dice": dice}
        whole = unbroken(self.method).outcome
        with tempfile.TemporaryDirectory() as folder:
            try:
                run = masked_run(Path(folder), self.method, {self.party: frozenset(deadly)}, **power).live()
                died = run.points[self.party].deaths
                wrong = [] if 1 <= died <= len(deadly) else [f"it died {died} times"]
                return [*wrong, *whole.differences(learned(run)), *run.problems()]
            except Exception as error:  # noqa: BLE001 - it is what this death has led to
                logging.getLogger(__name__).debug("%s", self, exc_info=error)
                return [f"{type(error).__name__}: {error}"]


def masked_deaths(method: str, party: str, fate: str) -> Iterator[MaskedDeath]:
    for point in range(1, len(unbroken(method).points[party]) + 1):
        yield MaskedDeath(method, party, point, fate)
