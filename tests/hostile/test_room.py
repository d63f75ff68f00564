"""One device offers the largest object, offers all free room, or repeats offers.

The answers of the others are still accepted.
"""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from protofleet.coordinator.devices.limits import CoordinatorLimits
from protofleet.coordinator.round.policy import Policy
from protofleet.methods.contract.plan import Network
from tests.hostile import wire
from tests.hostile.device import Answer, honest
from tests.hostile.federation import RUN, Federation
from tests.hostile.lies import leave
from tests.hostile.small_disk import small_disk

DISK = 8 << 20
BLOCK = 1 << 16
SIZE = 128  # Numbers in a prototype.
ROWS = 2_000  # Prototypes of an honest device.
LARGEST = 32_768  # The most prototypes of one device.
METHOD = {"name": "fedplcc", "epochs": 1, "lr": 0.02}
RULES = Policy(quorum=2, cohort=3, gather=3, patience_seconds=120.0, settle_seconds=2.0, straggler_factor=0.0)
GIVEN = {
    "method": METHOD,
    "network": Network("cnn4", feature_size=SIZE),
    "size": 16,
    "policy": RULES,
    "rounds": 1,
}


def of_rows(rows):
    return wire.body({"prototypes": np.zeros((rows, SIZE), np.float32)})


class Honest:
    """A device that answers with the received model and prototypes once the gate is open.

    Two such answers fill half of the disk.
    """

    def __init__(self, f, name, gate=("open",)):
        self.gate, self.device = gate, f.raw(name, self.work, hello={"examples": 2 * ROWS})

    def work(self, task):
        if not self.gate:
            return None
        if task.phase == "evaluate":
            return honest(task)
        weights = {name: value for name, value in task.arrays.items() if name.startswith("weights")}
        rows = np.random.default_rng(0).normal(size=(ROWS, SIZE)).astype(np.float32)
        table = {"prototypes": rows, "labels": np.arange(ROWS) % 3, "counts": np.full(ROWS, 2)}
        body = wire.body({**weights, **table})
        return Answer(self.device.offer(body, BLOCK), examples=2 * ROWS)


class Liar:
    """A device that answers every task with an offer of `rows` rows, and sends `blocks` blocks of it."""

    def __init__(self, f, rows, blocks=0):
        self.rows, self.blocks, self.numbers = rows, blocks, itertools.count()
        self.device = f.raw("liar", self.work, hello={"examples": 1_000_000}, again=1.0)

    def work(self, task):
        data = of_rows(self.rows)
        offer = wire.manifest(data, BLOCK)
        if self.blocks:
            self.device.serves[offer[0]] = (data[: self.blocks * BLOCK], offer)
        return Answer(offer, examples=1_000_000)


def free_bytes(f):
    return f.metrics()["protofleet_disk_free_bytes"]


def refused(f):
    return f.answers() and f.metrics()['protofleet_rejected_total{reason="no_room"}'] > 0


def ends_well(f, coordinator, liar, *honest):
    """Let the liar leave when all others have been accepted, so that no round waits for it; check the end."""
    for device in honest:
        assert device.wait("receipt").fields["verdict"] == "accepted"
    leave(liar)
    assert f.wait_for_end(coordinator) == 0, f.last_words()
    assert "Traceback" not in f.log_of(coordinator)
    assert [line["round"] for line in f.rounds()] == [1, 2]
    assert all({device.name for device in honest} <= set(line["participants"]) for line in f.rounds())
    assert all(line["attempt"] == 0 for line in f.rounds()), "no round had to begin again"


def test_an_offer_of_the_largest_object_without_blocks_does_not_end_the_run(tmp_path):
    with (
        small_disk(tmp_path / "runs" / RUN / "coordinator", DISK) as through,
        Federation(tmp_path, "liar", "b", "c", **GIVEN) as f,
    ):
        coordinator = f.coordinator(through=through)
        liar = Liar(f, LARGEST)
        b, c = Honest(f, "b"), Honest(f, "c")
        f.wait_until(lambda: refused(f), "the offer to be rejected")
        ends_well(f, coordinator, liar.device, b.device, c.device)
        assert len(of_rows(LARGEST)) > DISK and liar.device.answered


@pytest.mark.parametrize("serves", [False, True], ids=["mute", "all-but-one-block"])
def test_an_offer_of_all_free_room_does_not_exclude_other_answers(tmp_path, serves):
    with (
        small_disk(tmp_path / "runs" / RUN / "coordinator", DISK) as through,
        Federation(tmp_path, "liar", "b", "c", **GIVEN) as f,
    ):
        coordinator, gate = f.coordinator(through=through), []
        b, c = Honest(f, "b", gate), Honest(f, "c", gate)
        f.wait_until(f.answers, "the coordinator")
        room = free_bytes(f) - (9 << 17)  # The rest holds the snapshot, broadcast and end of a round.
        rows = int(room) // (4 * SIZE) - 64
        liar = Liar(f, rows, blocks=len(of_rows(rows)) // BLOCK if serves else 0)
        b.device.wait("task")
        if serves:
            f.wait_until(lambda: free_bytes(f) < 1 << 20, "the disk to be full")
        else:
            liar.device.wait("want")
        gate.append("open")
        ends_well(f, coordinator, liar.device, b.device, c.device)


ANSWER = 27_231  # The bytes of an answer of the smallest network.
SCARCE = CoordinatorLimits(
    answer_bytes=ANSWER + 1000, spool_bytes=2 * ANSWER + 2000
)  # There is room for two of three.
WAITS = Policy(quorum=2, cohort=3, gather=3, patience_seconds=120.0, straggler_factor=0.0)


@pytest.mark.parametrize("offers", ["one", "another each time"])
def test_a_silent_offer_loses_its_room_to_devices_that_answer(tmp_path, offers):
    with Federation(tmp_path, "liar", "b", "c", limits=SCARCE, policy=WAITS, rounds=1) as f:
        coordinator, gate, tasks = f.coordinator(), [], []
        liar = f.raw("liar", lambda task: tasks.append(task), again=1.0)
        b = f.raw("b", lambda task: honest(task) if gate else None)
        c = f.raw("c", lambda task: honest(task) if gate else None)
        f.wait_until(lambda: tasks, "the task")
        numbers = itertools.count() if offers != "one" else itertools.repeat(0)

        def say():
            data = tasks[0].body[:-1] + bytes([next(numbers) % 256])
            liar.answer(tasks[0].place, Answer(wire.manifest(data)))

        say()
        liar.wait("want")
        gate.append("open")
        again = 0.6  # Seconds between two offers.
        f.wait_until(lambda: say() or (b.verdicts() and c.verdicts()), "both answers", every=again)
        f.wait_until(lambda: say() or refused(f), "the offer to be rejected", every=again)
        ends_well(f, coordinator, liar, b, c)
