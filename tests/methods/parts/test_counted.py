"""Tests that devices continue from the value after their newest used answer, whether an answer is used or not."""

import random

import pytest
import torch

from protofleet.methods.contract.base import Reply
from protofleet.methods.contract.received import WrongArraysError
from protofleet.methods.parts.counted import Counted, CountedSum, KeptValues, changed, last_used
from protofleet.methods.parts.state import snapshot
from protofleet.methods.parts.weights import sent_parameters
from tests.methods.tiny import same, tiny


def test_the_table_has_the_round_of_the_newest_used_answer_of_each_device():
    counted = Counted()
    assert not counted and counted.table() == {} and last_used({}, "a") == 0
    counted.add(["b", "a"], 1)
    counted.add(["a", "ä"], 3)
    assert len(counted) == 3 and "ä" in counted and "c" not in counted
    assert [last_used(counted.table(), device) for device in ("a", "b", "ä", "c")] == [3, 1, 3, 0]


def test_the_table_has_the_same_bits_in_any_order_of_devices_and_after_a_restart():
    tables, names = [], [f"device-{i}" for i in range(20)]
    for order in (names, names[::-1]):
        counted, again = Counted(), Counted()
        counted.add(order, 2)
        again.restore(snapshot(counted.table()))
        tables += [counted.table(), again.table()]
    assert all(same(tables[0], table) for table in tables)


@pytest.mark.parametrize("table", [torch.zeros(2, 3, dtype=torch.int64), torch.zeros(2, 2), torch.zeros(2)])
def test_a_table_with_a_wrong_shape_or_type_is_refused(table):
    with pytest.raises(WrongArraysError, match="counted is"):
        last_used({"counted": table}, "a")


def test_a_sum_adds_the_changes_in_the_order_of_device_names():
    model = tiny()
    names = sent_parameters(model)
    sizes = {"a": 1e16, "b": -1e16, "c": 1.0}  # In another order, the sum has other bits.
    replies = [Reply(device, 1, {"size": torch.tensor(size)}) for device, size in sizes.items()]
    sums = [CountedSum(model), CountedSum(model)]
    for one, order in zip(sums, (replies, replies[::-1]), strict=True):
        one.add(order, 1, lambda reply, name: reply.payload["size"].double().expand_as(names[name]))
    assert same(sums[0].state(), sums[1].state())


def value_of(history):
    """Return a value whose number shows which answers it counts."""
    return {name: torch.full_like(w, float(history)) for name, w in sent_parameters(MODEL).items()}


MODEL = tiny(projector=False)


class Fleet:
    """One device, and a server that may use an answer or not, and that may go back to the round before.

    Each answer adds a random whole number, which is the only trace of the answer in the value.
    """

    def __init__(self, dice):
        self.dice, self.device = dice, KeptValues("a")
        self.total, self.used = 0, 0  # The sum of the used changes, and the round of the newest used answer.

    def play(self, number):
        """Play a round: the device computes an answer from the value that the server knows."""
        counted = Counted()
        if self.used:
            counted.add(["a"], self.used)
        base, value = self.device.continue_from(counted.table(), MODEL)
        assert same(value, value_of(self.total)), (number, self.used)
        change = self.dice.randrange(1, 1000)
        self.device.keep(number, base, changed(value, value_of(change)))
        if self.dice.random() < 0.3:  # The device is restarted.
            again = KeptValues("a")
            again.restore(snapshot(self.device.state()))
            self.device = again
        return self.total + change

    def run(self, rounds):
        before, number = (
            (0, 0, 0),
            1,
        )  # The server's state at the start of the previous round, and the answer of it.
        while number <= rounds:
            start = (self.total, self.used)
            after = self.play(number) if self.dice.random() < 0.8 else 0
            if (
                number > 1 and self.dice.random() < 0.3
            ):  # Back to the round before: its answer counts, or not.
                total, used, answered = before
                self.total, self.used = total, used
                if answered and self.dice.random() < 0.5:
                    self.total, self.used = answered, number - 1
                continue
            if after and self.dice.random() < 0.7:
                self.total, self.used = after, number
            before, number = (*start, after), number + 1


@pytest.mark.parametrize("seed", range(10))
def test_a_device_has_the_same_value_as_the_server_for_any_used_answers(seed):
    fleet = Fleet(random.Random(seed))
    fleet.run(40)
    assert len(fleet.device.state()) <= 1 + 4 * len(sent_parameters(MODEL))


def test_a_device_without_the_counted_value_continues_from_an_earlier_value():
    device, counted = KeptValues("a"), Counted()
    device.keep(2, 0, value_of(5))
    for number, expected in ((1, (0, 0)), (2, (2, 5)), (7, (2, 5))):
        counted.add(["a"], number)
        base, value = device.continue_from(counted.table(), MODEL)
        assert base == expected[0] and same(value, value_of(expected[1]))
