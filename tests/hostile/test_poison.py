"""One answer within all limits that would ruin the model, and the result of the run."""

import json
import threading
import time

import numpy as np
import pytest

from protofleet.coordinator.devices.limits import CoordinatorLimits
from protofleet.coordinator.round.policy import Policy
from tests.hostile.device import Answer, honest
from tests.hostile.federation import Federation

# No device is dropped as slow: with only one honest answer, the coordinator cannot detect the answer of a liar.
TOGETHER = Policy(quorum=2, gather=3, settle_seconds=1.0, straggler_factor=0.0)


def just_below_the_norm(task):
    """Answer with finite arrays of the asked shapes; each float array has almost the largest allowed norm."""
    if task.phase != "train":
        return honest(task)
    arrays = {
        name: np.full_like(v, 9e5 / np.sqrt(max(1, v.size))) if v.dtype.kind == "f" else v
        for name, v in task.arrays.items()
    }
    return Answer(arrays)


def test_an_update_just_below_each_limit_is_put_aside_and_the_run_finishes(tmp_path):
    with Federation(tmp_path, "one", "two", "liar", policy=TOGETHER, rounds=3) as f:
        coordinator = f.coordinator()
        f.device("one"), f.device("two")
        liar = f.raw("liar", just_below_the_norm)
        assert f.wait_for_end(coordinator, 180) == 0, f.last_words()
        assert {v for v, _ in liar.verdicts()} == {"accepted"}
        assert all(set(line["aside"]) == {"liar"} for line in f.rounds()[:3])
        assert "the answer of liar is put aside: weights." in f.log_of(coordinator)
        assert f.rounds()[-1]["loss"]["global"], "the loss is finite"
        assert [event["round"] for event in f.events("aside")] == [1, 2, 3]


def test_without_the_search_for_outliers_the_poisoned_round_is_repeated_without_its_outlier(tmp_path):
    """A kill of the coordinator after the repeated round does not change this."""
    killed = threading.Event()

    def strikes_in_round_two(task):
        if task.round > 2 and not killed.is_set():
            return None  # The run must not end before the kill.
        return just_below_the_norm(task) if task.round == 2 else honest(task)

    with Federation(
        tmp_path, "one", "two", "liar", policy=TOGETHER, rounds=3, limits=CoordinatorLimits(outlier=0.0)
    ) as f:
        coordinator = f.coordinator()
        f.device("one"), f.device("two")
        f.raw("liar", strikes_in_round_two)
        f.wait_until(lambda: "back to round 2" in f.log_of(coordinator), "the way back", 120)
        assert coordinator.runs()
        coordinator.kill()
        killed.set()
        again = f.coordinator()
        assert f.wait_for_end(again, 180) == 0, f.last_words()
        assert [line["round"] for line in f.rounds()] == [1, 2, 3, 4]
        summary = json.loads((f.run / "summary.json").read_text())
        assert summary["ended"] == "finished"


def test_a_run_in_which_no_device_can_train_ends_as_diverged_with_exit_code_4(tmp_path):
    method = {"name": "fedavg", "lr": 1000.0, "momentum": 0.99, "epochs": 40}
    with Federation(tmp_path, "one", "two", policy=Policy(quorum=2), rounds=3, method=method) as f:
        coordinator = f.coordinator()
        f.device("one"), f.device("two")
        began = time.monotonic()
        assert f.wait_for_end(coordinator, 120) == 4, f.last_words()
        assert time.monotonic() - began < 100.0
        assert f.log_of(coordinator).splitlines()[-1].startswith("protofleet: the run cannot continue: ")
        assert "Traceback" not in f.log_of(coordinator)
        assert json.loads((f.run / "summary.json").read_text())["ended"].startswith("diverged: ")
        assert f.wait_for_end(f.coordinator(), 60) == 4, "a restart ends in the same way"


def tender(task):
    """Send an answer outside the limits if the received weights are too large."""
    norms = {n: np.linalg.norm(v) for n, v in task.arrays.items() if v.dtype.kind == "f"}
    if task.round == 1:
        FIRST.update(norms)
    large = any(norm > 1.6 * FIRST[n] for n, norm in norms.items() if FIRST[n])
    return times(task, 1e9 if large else 1.0)


def times(task, factor):
    if task.phase != "train":
        return honest(task)
    arrays = {n: v * v.dtype.type(factor) if v.dtype.kind == "f" else v for n, v in task.arrays.items()}
    return Answer(arrays)


FIRST = {}  # The norms of the weights at the beginning of the run.


@pytest.mark.slow
@pytest.mark.parametrize("kill", [False, True])
def test_weights_times_eight_of_one_device_of_four_do_not_stop_the_run(tmp_path, kill):
    """The same two were refused in each attempt, 12 times in 260 s, and the run did not end."""
    policy = Policy(quorum=3, gather=4, patience_seconds=8.0, settle_seconds=1.0, straggler_factor=0.0)
    with Federation(tmp_path, "one", "two", "three", "liar", policy=policy, rounds=3) as f:
        coordinator = f.coordinator()
        f.raw("one", tender), f.raw("two", tender), f.raw("three")
        f.raw("liar", lambda task: times(task, 8.0))
        said = "back to round 1, which is repeated without the answer of liar: 2 of 4 devices have diverged"
        if kill:
            f.wait_until(lambda: said in f.log_of(coordinator), "the way back", 120)
            coordinator.kill()
            assert f.wait_for_end(f.coordinator(), 180) == 0, f.last_words()
        else:
            assert f.wait_for_end(coordinator, 180) == 0, f.last_words()
            assert said in f.log_of(coordinator)
        assert [line["round"] for line in f.rounds()] == [1, 2, 3, 4]
        summary = json.loads((f.run / "summary.json").read_text())
        assert summary["ended"] == "finished"
