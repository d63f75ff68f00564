"""An answer makes the server half fail, although it is not the farthest from the others.

The coordinator finds the guilty device by trial.
"""

from __future__ import annotations

import json

import numpy as np
import pytest

from protofleet.coordinator.devices.limits import CoordinatorLimits
from protofleet.coordinator.round.policy import Policy
from tests.hostile.device import Answer, Work, honest
from tests.hostile.federation import Federation

NAMES = ("far", "one", "three", "two")
TOGETHER = Policy(quorum=4, gather=5, settle_seconds=1.0, straggler_factor=0.0)
STRIKE = 0.4375  # A weight that no other device sends.
SERVER_HALF = f"""
import time
import protofleet.methods.fedavg as fedavg
mean = fedavg.weighted_mean
def fails(replies, wants):
    time.sleep(0.3)  # Time for a kill.
    found = mean(replies, wants)
    if any(float(r.payload[n].reshape(-1)[0]) == {STRIKE} for r in replies for n in wants):
        FAIL
    return found
fedavg.weighted_mean = fails
"""
FAILS = {
    "raises": "raise ZeroDivisionError('no such weight')",
    "is not finite": "found = {n: v * float('inf') if v.is_floating_point() else v for n, v in found.items()}",
}


def says(change: float, rounds: range, first: float | None = None) -> Work:
    """Return work that in these rounds sends the received weights times `change`.

    The first number of each float array is `first` if that is given.
    """

    def work(task):
        if task.phase != "train" or task.round not in rounds:
            return honest(task)
        arrays = {n: v * v.dtype.type(change) if v.dtype.kind == "f" else v for n, v in task.arrays.items()}
        for array in arrays.values():
            if first is not None and array.dtype.kind == "f":
                array.reshape(-1)[0] = np.float32(first)
        return Answer(arrays)

    return work


def run(folder, how, kill_at=""):
    """Return the devices whose answers of round 2 were used, and the state at the end of the run."""
    planted = SERVER_HALF.replace("FAIL", FAILS[how])
    with Federation(
        folder, *NAMES, "liar", policy=TOGETHER, rounds=3, limits=CoordinatorLimits(outlier=0.0)
    ) as f:
        coordinator = f.coordinator(planted=planted)
        for name in NAMES:
            f.raw(name, says(8.0, range(2, 3)) if name == "far" else honest)
        liar = f.raw("liar", says(1.0, range(2, 3), STRIKE))
        if kill_at:
            f.wait_until(lambda: kill_at in f.log_of(coordinator), kill_at)
            coordinator.kill()
            coordinator = f.coordinator(planted=planted)
        assert f.wait_for_end(coordinator) == 0, f.last_words()
        assert [line["round"] for line in f.rounds()] == [1, 2, 3, 4]
        assert json.loads((f.run / "summary.json").read_text())["ended"] == "finished"
        assert {v for v, _ in liar.verdicts()} == {"accepted"}
        counted = [event["answers"] for event in f.events("counted") if event["round"] == 2]
        snapshots = (f.run / "coordinator" / "snapshots").glob("*.body")
        return sorted(counted[-1]), sorted(path.name for path in snapshots)


@pytest.mark.parametrize("how", FAILS)
def test_the_answer_that_makes_the_server_half_fail_is_put_aside_and_not_the_farthest_one(tmp_path, how):
    used, _ = run(tmp_path, how)
    assert used == [*NAMES]


def test_a_coordinator_that_is_killed_during_trials_or_the_repetition_ends_with_the_same_bits(tmp_path):
    places = {"none": "", "trying": "trying round 2", "repeating": "back to round 2"}
    found = {name: run(tmp_path / name, "raises", words) for name, words in places.items()}
    assert found["none"][0] == [*NAMES]
    assert found["trying"] == found["repeating"] == found["none"]
