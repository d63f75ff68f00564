"""One device can make the coordinator compute for a limited time only, and the coordinator survives it."""

import time

import numpy as np
import torch

from protofleet.coordinator.round.policy import Policy
from protofleet.methods.contract.plan import Network
from protofleet.methods.maths.finch import MOST_ROWS, partition
from tests.hostile import wire
from tests.hostile.device import Answer
from tests.hostile.federation import Federation

METHOD = {"name": "fedplcc", "epochs": 1, "lr": 0.02}
WATCHED = 7.0  # Seconds; the loop itself gives a sign of life every 5 seconds.


def crowd(rows, size):
    """Return an answer of `rows` prototypes of one class.

    Their cosines agree in twelve digits and differ in the next digit, which takes FINCH longest.
    """
    dice = np.random.default_rng(0)
    table = {
        "prototypes": (1 + 0.7071e-6 * dice.normal(size=(rows, size))).astype(np.float32),
        "labels": np.zeros(rows, np.int64),
        "counts": np.full(rows, 2, np.int64),
    }
    return table


def enough_for(seconds, size):
    """Return the number of rows that keep one core of this machine busy for these seconds.

    The time is quadratic in the number of rows.
    """
    rows = 2048
    begun = time.process_time()
    partition(torch.from_numpy(crowd(rows, size)["prototypes"]))
    took = time.process_time() - begun
    return min(int(rows * (seconds / took) ** 0.5), MOST_ROWS)


def few(size):
    labels = np.arange(3)
    return {"prototypes": np.eye(3, size, dtype=np.float32), "labels": labels, "counts": np.full(3, 2)}


def answers(device, table):
    """Return work that answers with the received model and these prototypes."""

    def work(task):
        if task.phase == "evaluate":
            return Answer(metrics={"accuracy.test.global": 0.5, "samples.test": 10})
        weights = {name: value for name, value in task.arrays.items() if name.startswith("weights")}
        body = wire.body({**weights, **table})
        made = device["raw"].offer(body, 1 << 18)
        return Answer(made, examples=device["examples"])

    return work


def join(federation, name, table, examples):
    device = {"examples": examples}
    device["raw"] = federation.raw(name, answers(device, table), hello={"examples": examples})
    return device["raw"]


def test_more_prototypes_than_a_device_can_have_are_refused_and_never_clustered(tmp_path):
    # The round waits for the liar, even on a busy machine, because the coordinator does not check a late answer.
    policy = Policy(quorum=2, cohort=3, settle_seconds=2.0, gather=3, straggler_factor=0.0)
    with Federation(tmp_path, "liar", "b", "c", rounds=1, method=METHOD, policy=policy) as f:
        coordinator = f.coordinator(watchdog_seconds=WATCHED)
        liar = join(f, "liar", crowd(40_000, 16), 1_000_000)
        for name in "bc":
            join(f, name, few(16), 10)
        assert f.wait_for_end(coordinator) == 0, f.last_words()
        assert [verdict for verdict, _ in liar.verdicts()][0] == "refused", (
            "the answer is too large, and is refused before it is fetched"
        )


def test_clustering_for_longer_than_the_watchdog_time_does_not_end_the_coordinator(tmp_path):
    network = Network("cnn4", feature_size=512)
    given = {"method": METHOD, "network": network, "size": 16, "policy": Policy(quorum=2, gather=2)}
    with Federation(tmp_path, "liar", "b", rounds=1, **given) as f:
        coordinator = f.coordinator(watchdog_seconds=WATCHED)
        liar = join(f, "liar", crowd(enough_for(3 * WATCHED, 512), 512), 1_000_000)
        join(f, "b", few(512), 10)
        assert f.wait_for_end(coordinator, 300) == 0, f.last_words()
        assert ("accepted", "") in liar.verdicts()
        assert max(line["seconds"] for line in f.rounds()) > WATCHED, "without this, the test shows nothing"
