"""A device that claims a million samples, in training and in its measurements, together with three honest ones."""

import json
from dataclasses import replace

import pytest

from protofleet.coordinator.round.policy import Policy, Stop
from tests.hostile.device import Answer
from tests.hostile.federation import Federation

FOUR = Policy(quorum=4, gather=4, straggler_factor=0.0)
MANY = 1_000_000
NAMES = ("one", "two", "three", "liar")


def measuring(accuracy, validation, samples):
    """Return work that reports these measurements.

    `validation` has one accuracy for the model at the beginning of each round, and at last that of the last
    evaluation.
    """

    def work(task):
        found = {
            "accuracy.test.global": accuracy, "accuracy.validation.global": validation[task.round - 1],
            "samples.test": samples,
        }  # fmt: skip
        body = b"\x01\x00\x00\x00\x90" if task.phase == "evaluate" else task.body
        return Answer(body, examples=min(samples, MANY), metrics=found)

    return work


@pytest.mark.slow
def test_one_device_of_four_does_not_decide_the_published_numbers(tmp_path):
    """Without the cap its weight is 0.99997. Pooled accuracy was 0.00003, and the first model was best."""
    with Federation(tmp_path, *NAMES, policy=FOUR, rounds=2) as f:
        coordinator = f.coordinator()
        for name in NAMES[:3]:
            f.raw(name, measuring(0.96, (0.5, 0.6, 0.7), 10))
        f.raw("liar", measuring(0.0, (1.0, 0.0, 0.0), MANY), hello={"examples": MANY})
        assert f.wait_for_end(coordinator) == 0, f.last_words()
        assert [line["pooled"]["global"] for line in f.rounds()] == [pytest.approx(0.48)] * 3
        summary = json.loads((f.run / "summary.json").read_text())
        assert summary["accuracy"]["best_by_validation"]["point"] == 2
        best = json.loads((f.run / "coordinator" / "best" / "best.json").read_text())
        assert best["round"] == 3


@pytest.mark.slow
def test_one_device_of_four_does_not_stop_the_run(tmp_path):
    """The mean over devices would be 0.625, the median is 0.5."""
    policy = replace(FOUR, stop=Stop(accuracy=0.6))
    with Federation(tmp_path, *NAMES, policy=policy, rounds=2) as f:
        coordinator = f.coordinator()
        for name in NAMES[:3]:
            f.raw(name, measuring(0.5, (0.5, 0.5, 0.5), 10))
        f.raw("liar", measuring(1.0, (1.0, 1.0, 1.0), 10))
        assert f.wait_for_end(coordinator) == 0, f.last_words()
        assert [line["kind"] for line in f.rounds()] == ["training", "training", "evaluation"]
