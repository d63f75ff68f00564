"""Answers of lying devices to a method that makes its head from sums: each is left out with a reason.

One run over a real broker has all of them. The answers of two honest devices decide the head.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

import numpy as np
import pytest

from protofleet.coordinator.round.policy import Policy
from protofleet.methods.contract.plan import Network
from tests.hostile.device import Answer, honest
from tests.hostile.federation import CLASSES, Federation

D, EXAMPLES = 4, 10
WIDTH = D + 1  # A row is a feature and the constant 1.
METHOD = {"name": "fed3r", "least_samples": 1}


def statistics(seed=0, labels=(0, 1, 2, 0, 1, 2, 0, 1, 2, 0)):
    """Return the arrays of an honest device with samples of these classes."""
    z = np.random.default_rng(seed).normal(size=(len(labels), D))
    x = np.hstack([z * np.sqrt(D) / np.linalg.norm(z, axis=1, keepdims=True), np.ones((len(labels), 1))])
    y = np.array(labels)
    held = sorted(set(labels))
    return {
        "gram": (x.T @ x / len(x))[np.triu_indices(WIDTH)].astype(np.float32),
        "targets": np.stack([x[y == label].mean(0) for label in held]).astype(np.float32),
        "labels": np.array(held),
        "counts": np.array([int((y == label).sum()) for label in held]),
    }


def answers(arrays, examples=EXAMPLES):
    return lambda task: honest(task) if task.phase == "evaluate" else Answer(arrays, examples)


def with_gram(change):
    found = statistics()
    matrix = np.zeros((WIDTH, WIDTH), np.float32)
    matrix[np.triu_indices(WIDTH)] = found["gram"]
    change(matrix)
    return {**found, "gram": matrix[np.triu_indices(WIDTH)]}


def put(row, column, value):
    return lambda matrix: matrix.__setitem__((row, column), value)


def larger(matrix):
    matrix *= 1.01


# Arrays that break a rule of the task, and the reason in the receipt.
REFUSED = {
    "not-finite": ({**statistics(), "gram": np.full(15, np.nan, np.float32)}, "gram is not finite"),
    "infinite": ({**statistics(), "targets": np.full((3, 5), np.inf, np.float32)}, "targets is not finite"),
    "other-width": ({**statistics(), "gram": np.zeros(21, np.float32)}, "gram is (21,), not (15,)"),
    "long-row": (
        {**statistics(), "targets": np.full((3, 5), 2, np.float32)},
        "targets has a row with a norm of 4.47",
    ),
    "fractions": ({**statistics(), "counts": np.array([2.5, 2.5, 5.0])}, "counts is float64, not int64"),
    "negative": ({**statistics(), "counts": np.array([-2, 2, 2])}, "counts has -2, below 1"),
    "too-many": (
        {**statistics(), "counts": np.array([4, 4, 3])},
        "counts add up to 11, of a device with 10 examples",
    ),
}
# Arrays that fit the task, though no samples can give them, and the reason in the coordinator's log.
UNUSED = {
    "diagonal": (with_gram(put(2, 2, -0.5)), "gram has -0.5 on its diagonal, below 0"),
    "trace": (with_gram(larger), "gram has a trace of 5.05, above 5.005"),
    "eigenvalue": (with_gram(put(0, 1, 3.0)), "gram about the class means has an eigenvalue of -"),
}


@dataclass
class Story:
    code: int
    rounds: list
    verdicts: dict
    log: str


@pytest.fixture(scope="module")
def finished_run(tmp_path_factory):
    lies = {**REFUSED, **UNUSED}
    every = len(lies) + 2
    policy = Policy(quorum=2, gather=every, patience_seconds=60, straggler_factor=0.0, settle_seconds=60.0)
    with Federation(
        tmp_path_factory.mktemp("statistics"), "one", "two", *lies, rounds=1, policy=policy, method=METHOD,
        network=Network("mlp", embedding_size=D),
    ) as f:  # fmt: skip
        coordinator = f.coordinator()
        f.raw("one", answers(statistics(1))), f.raw("two", answers(statistics(2)))
        devices = {name: f.raw(name, answers(arrays), again=15.0) for name, (arrays, _) in lies.items()}
        code = f.wait_for_end(coordinator, 120)
        verdicts = {name: device.verdicts() for name, device in devices.items()}
        return Story(code, f.rounds(), verdicts, f.log_of(coordinator))


def test_the_round_ends_with_the_answers_of_the_other_devices(finished_run):
    assert finished_run.code == 0 and "Traceback" not in finished_run.log, finished_run.log[-2000:]
    first = finished_run.rounds[0]
    assert sorted(first["participants"]) == sorted(["one", "two", *UNUSED])
    assert [first["figures"][f"devices.{label}"] for label in range(CLASSES)] == [2, 2, 2]
    assert first["figures"]["samples.counted"] == 2 * EXAMPLES


@pytest.mark.parametrize("name", REFUSED)
def test_arrays_that_break_a_rule_are_refused_with_value_and_limit(finished_run, name):
    (receipt, *_) = finished_run.verdicts[name]
    assert receipt[0] == "refused" and REFUSED[name][1] in receipt[1]
    assert REFUSED[name][1] in finished_run.rounds[0]["dropped"][name]
    assert any(name in line and REFUSED[name][1] in line for line in finished_run.log.splitlines())


@pytest.mark.parametrize("name", UNUSED)
def test_arrays_that_no_samples_can_give_are_left_out_with_one_line(finished_run, name):
    assert finished_run.verdicts[name][0][0] == "accepted"
    (line,) = [line for line in finished_run.log.splitlines() if f"the answer of {name} to round 1" in line]
    assert f"is not used: {UNUSED[name][1]}" in line


ENDS = {
    "no class of enough samples": (
        {}, [0, 1, 2] * 3, "none of the 2 devices that have answered has a class with method.least_samples = 5",
    ),
    "no penalty": (
        {"lam": 0.0, "least_samples": 1}, [0, 1],
        "fed3r: method.lam is 0, and the devices have 4 samples, fewer than the 4 features and the intercept",
    ),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", ENDS)
def test_a_run_whose_devices_give_no_head_ends_with_one_line_and_exit_code_2(tmp_path, name):
    settings, labels, words = ENDS[name]
    sent = statistics(0, labels) if name == "no penalty" else {
        "gram": np.zeros(15, np.float32), "targets": np.zeros((0, 5), np.float32),
        "labels": np.zeros(0, np.int64), "counts": np.zeros(0, np.int64),
    }  # fmt: skip
    policy = Policy(quorum=2, straggler_factor=0.0)
    with Federation(
        tmp_path, "one", "two", rounds=1, policy=policy, method={"name": "fed3r", **settings},
        network=Network("mlp", embedding_size=D),
    ) as f:  # fmt: skip
        coordinator = f.coordinator()
        for device in ("one", "two"):
            f.raw(device, answers(sent, len(labels)), hello={"examples": len(labels)})
        assert f.wait_for_end(coordinator, 60) == 2, f.last_words()
        log = f.log_of(coordinator)
        assert "Traceback" not in log and log.splitlines()[-1].startswith("protofleet: ")
        assert words in log.splitlines()[-1], json.dumps(log.splitlines()[-3:])
        assert f.wait_for_end(f.coordinator(), 60) == 2, "a restart ends in the same way"
