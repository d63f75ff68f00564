"""A coordinator that crashes while it deletes the kept answer of a removed device deletes all of the answer.

The device may be enrolled again, with other keys and other samples. Then it is asked again.
"""

import functools
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch

from protofleet.coordinator.models.best import BestModel
from protofleet.coordinator.observe.observers import keep_journal
from protofleet.coordinator.observe.rounds_file import read_rounds
from protofleet.methods.contract.plan import Network
from protofleet.protocol.security.keys import Keys
from tests.crash.world import DEVICES, POLICY, Crashing
from tests.support.small_federation import plan, shard

STAYS, GONE, LATE = DEVICES
# All devices evaluate before round 2, so the best model is the snapshot of round 2, which has the removed answer.
RULES = replace(POLICY, rounds=3, quorum=1, cohort=0, evaluate_every=1)
OTHER = shard(7, 24)
EVERY = 11  # The test takes every eleventh point; with 1, it takes all of them.


@dataclass
class Removing(Crashing):
    """A run in which LATE joins, and GONE is removed, when the others have answered."""

    again: bool = False  # True if GONE is enrolled again at once.
    removed_at: int = 0  # Number of points that the coordinator had passed before.

    def boot_coordinator(self):
        super().boot_coordinator()
        lines = read_rounds(self.folder / "coordinator" / "rounds.jsonl")
        keep_journal(self.service.run, [BestModel(self.service.run.spool, lines)])

    def over(self):
        stay = (STAYS, LATE, GONE) if self.again else (STAYS, LATE)
        return self.service.finished and all(self.agents[name].finished for name in stay)

    def live(self):
        self.kill(LATE)
        self.run(lambda: self.service.run.machine.round == 2)
        self.removed_at = len(self.points["coordinator"].passed)
        self.answer = self.bytes_of_answer()
        if self.again:
            self.enrol_again()
        else:
            del self.keyring[GONE]
        self.boot_device(LATE)
        return super().live()

    def enrol_again(self):
        self.kill(GONE)
        self.keys[GONE] = Keys.new()
        self.keyring[GONE], self.shards[GONE] = self.keys[GONE].public, OTHER
        self.boot_device(GONE)

    def bytes_of_answer(self):
        kept = self.service.run.server_runner.server.answers.replies()
        (found,) = [reply.payload["prototypes"] for reply in kept if reply.device == GONE]
        return found.numpy().tobytes()

    def files_with_answer(self):
        files = [path for path in (self.folder / "coordinator").rglob("*") if path.is_file()]
        return [path.name for path in files if self.answer in path.read_bytes()]


def removing(folder, deadly=(), **more):
    made = replace(plan("fedncm", RULES.rounds), network=Network("mlp", 8))
    shards = {name: shard(i, 24) for i, name in enumerate(DEVICES)}
    return Removing(made, shards, RULES, folder, deadly={"coordinator": frozenset(deadly)}, **more)


def state_of(run):
    return {name: value.clone() for name, value in run.service.run.server_runner.server.state().items()}


@functools.cache
def unbroken(again):
    """Return the state at the end of a run without the removed answer, and the points that the removal passes."""
    with tempfile.TemporaryDirectory() as folder:
        without = removing(Path(folder) / "without", again=again)
        if again:
            without.enrol_again()
        else:
            del without.keyring[GONE]
        Crashing.live(without)
        run = removing(Path(folder) / "removal", again=again).live()
        passed = run.points["coordinator"].passed
        assert "remove coordinator/best/best.json" in passed[run.removed_at :] and not run.files_with_answer()
        return state_of(without), range(run.removed_at + 1, len(passed) + 1)


@pytest.mark.slow
@pytest.mark.parametrize("again", [False, True], ids=["removed", "enrolled again"])
@pytest.mark.parametrize("power", [False, True], ids=["killed", "unplugged"])
def test_a_removed_answer_is_gone_even_if_the_coordinator_crashes_meanwhile(tmp_path, power, again):
    expected, points = unbroken(again)
    for point in points[power :: EVERY * (1 + again)]:
        run = removing(tmp_path / str(point), {point}, power=power, again=again).live()
        where = f"before '{run.points['coordinator'].passed[point - 1]}'"
        assert run.points["coordinator"].deaths == 1, where
        found = state_of(run)
        assert found.keys() == expected.keys(), where
        assert all(torch.equal(value, expected[name]) for name, value in found.items()), where
        assert not run.files_with_answer(), where
