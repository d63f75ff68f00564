"""A device whose answers pass every check and would ruin the model, in a run with the rules of [policy.robust]."""

import numpy as np
import pytest

from protofleet.coordinator.round.policy import Policy
from protofleet.coordinator.round.robust import Robust
from tests.hostile.device import Answer, honest
from tests.hostile.federation import Federation

HONEST = ("one", "two", "three", "four")
FIVE = {"quorum": 5, "gather": 5, "straggler_factor": 0.0}
FAR = 90.0  # The search for outliers allows answers that are up to 100 times as long as the median.


def opposite(task):
    """Answer with the broadcast in the other direction, as long as the search for outliers allows."""
    if task.phase != "train":
        return honest(task)
    return Answer({n: -FAR * v if v.dtype.kind == "f" else v for n, v in task.arrays.items()})


def federation(folder, **robust):
    rules = {"robust": Robust(**robust)} if robust else {}
    return Federation(folder, *HONEST, "liar", policy=Policy(**FIVE, **rules), rounds=2)


def seen_by(devices, name, work=honest):
    """Start a device that keeps the arrays of each task by its round."""
    tasks = {}

    def keep(task):
        tasks[task.round] = {n: v.copy() for n, v in task.arrays.items()}
        return work(task)

    devices.raw(name, keep)
    return tasks


def most_moved(tasks):
    """Return the largest change of a number from the first broadcast to the last one."""
    first, last = tasks[1], tasks[max(tasks)]
    return max(float(np.abs(last[n] - v).max()) for n, v in first.items() if v.dtype.kind == "f")


@pytest.mark.parametrize("rule", ["cap", pytest.param("trimmed", marks=pytest.mark.slow)])
def test_with_a_rule_a_liar_does_not_move_the_weights_also_after_a_kill(tmp_path, rule):
    """The honest devices send the broadcast back, so a model that moves at all has followed the liar."""
    with federation(tmp_path, weights=rule) as f:
        coordinator = f.coordinator()
        tasks = seen_by(f, "one")
        for name in HONEST[1:]:
            f.raw(name)
        f.raw("liar", opposite)
        f.wait_until(lambda: f.rounds(), "the first round", 60)
        coordinator.kill()
        assert f.wait_for_end(f.coordinator()) == 0, f.last_words()
        assert len(f.rounds()) == 3 and all("liar" in line["participants"] for line in f.rounds()[:2])
        assert [line["robust"] for line in f.rounds()] == [{"weights": rule}, {"weights": rule}, {}]
        assert most_moved(tasks) < 1e-5


@pytest.mark.slow
def test_without_a_rule_the_same_liar_moves_the_weights_far(tmp_path):
    with federation(tmp_path) as f:
        coordinator = f.coordinator()
        tasks = seen_by(f, "one")
        for name in HONEST[1:]:
            f.raw(name)
        f.raw("liar", opposite)
        f.wait_until(lambda: f.rounds() or f.log_of(coordinator).count("back to round"), "the first round")
        f.wait_until(lambda: 2 in tasks or "back to round" in f.log_of(coordinator), "the next task")
        assert "back to round" in f.log_of(coordinator) or most_moved(tasks) > 0.1


def test_with_a_rule_a_liar_does_not_move_the_prototypes(tmp_path):
    """The prototypes of a class are near 1, and the liar sends rows of a class that are near -90."""

    def sends(value):
        def work(task):
            if task.phase != "train":
                return Answer(metrics={"accuracy.test.personal": 0.5, "samples.test": 10})
            rows = np.full((3, 16), value, np.float32)
            return Answer({"prototypes": rows, "labels": np.arange(3), "counts": np.full(3, 3, np.int64)})

        return work

    with federation(tmp_path, prototypes="clip_median") as f:
        coordinator = f.coordinator(method={"name": "fedproto"})
        tasks = seen_by(f, "one", sends(1.0))
        for number, name in enumerate(HONEST[1:]):
            f.raw(name, sends(1.0 + 0.1 * number))
        f.raw("liar", sends(-FAR))
        assert f.wait_for_end(coordinator) == 0, f.last_words()
        assert len(f.rounds()) == 3 and all("liar" in line["participants"] for line in f.rounds()[:2])
        rows = tasks[max(tasks)]["prototypes"]
        assert float(rows.min()) > 0.9 and float(rows.max()) < 1.3
