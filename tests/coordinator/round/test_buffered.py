"""Buffered rounds: the first K updates end a round, and a late update counts in the round that is open."""

import pytest

from protofleet.coordinator.round.events import (
    Accept,
    Advance,
    Advanced,
    Answered,
    Close,
    Drop,
    Joined,
    Left,
    Open,
    Recovered,
    Repeat,
    Save,
    Send,
    SentTask,
    Woke,
)
from protofleet.coordinator.round.machine import RoundMachine
from protofleet.coordinator.round.policy import Policy, Stop
from protofleet.protocol.wire.reasons import Problem, Reason

DEVICES = ("a", "b", "c", "d")
POLICY = {
    "mode": "buffered", "buffer": 2, "staleness": 3, "gather": 4, "patience_seconds": 100.0, "settle_seconds": 0.0,
    "grace_seconds": 5.0,
}  # fmt: skip
WRONG = Problem(Reason.NOT_FINITE, "weights.w is not finite")


class Driven:
    """A machine and its disk. The worker answers each Advance at once, with a broadcast that names its round."""

    def __init__(self, rounds=20, past=None, **policy):
        self.machine = RoundMachine(Policy(**(POLICY | policy)), rounds)
        self.now, self.said, self.thinking = 0.0, [], None
        if past is None:
            for device in DEVICES:
                self.happen(Joined(device))
        else:
            self.machine.roster = set(past.roster)
            self.perform(self.machine.resume(past))

    def happen(self, event):
        return self.perform(self.machine.handle(event, self.now))

    def perform(self, commands):
        self.said += commands
        for command in commands:
            if isinstance(command, Advance):
                self.thinking = command
        return commands

    def step(self):
        """Let the worker finish the step that it computes."""
        step, self.thinking = self.thinking, None
        trains = not self.machine.is_last_evaluation
        event = (
            Advanced(None) if step.phase else Advanced("train" if trains else "evaluate", base(step.round))
        )
        return self.happen(event)

    def answer(self, device, number, **more):
        return self.happen(Answered(device, number, "train", base(number), **more))

    def round(self, *devices):
        """Let these devices answer the open round, and open the next round."""
        number = self.machine.round
        for device in devices:
            self.answer(device, number)
        self.step()
        return self.step()

    def used(self, number):
        return [one.devices for one in self.said if isinstance(one, Close) and one.round == number]


def base(number):
    return f"broadcast {number}".encode()


def opened(**policy):
    driven = Driven(**policy)
    driven.step()
    return driven


def kinds(commands, kind):
    return [command for command in commands if isinstance(command, kind)]


def test_the_first_k_updates_end_a_round():
    driven = opened()
    assert not kinds(driven.answer("b", 1), Close)
    assert kinds(driven.answer("a", 1), Close) == [Close(1, "train", ("a", "b"))]


def test_a_device_that_is_at_work_gets_no_second_task_before_it_answers():
    driven = opened()
    sent = kinds(driven.round("a", "b"), Send)
    assert [send.device for send in sent] == ["a", "b"]
    assert driven.machine.waited_for == {"a", "b"}


def test_a_late_update_counts_once_in_the_open_round_with_the_age_of_its_task():
    driven = opened()
    driven.round("a", "b")
    driven.round("a", "b")
    assert kinds(driven.answer("c", 1), Accept) == [Accept("c", 1, "train", 2)]
    assert driven.answer("c", 1) == [Repeat("c", 1, "train")]
    driven.answer("a", 3)
    assert driven.used(3) == [("a", "c")]


def test_a_late_device_gets_the_open_task_at_once():
    driven = opened()
    driven.round("a", "b")
    (sent,) = kinds(driven.answer("c", 1), Send)
    assert (sent.device, sent.round) == ("c", 2)
    driven.answer("a", 2)
    driven.step()
    assert [send.device for send in kinds(driven.step(), Send)] == ["a"]
    assert kinds(driven.answer("c", 2), Accept) == [Accept("c", 2, "train", 1)]


def test_an_update_that_arrives_between_rounds_counts_in_the_next_round():
    driven = opened()
    driven.answer("a", 1)
    driven.answer("b", 1)
    assert driven.answer("c", 1) == []
    driven.step()
    assert kinds(driven.step(), Accept) == [Accept("c", 1, "train", 1)]


def test_a_device_has_at_most_one_update_in_a_round():
    """A device that was started again has two tasks. Its second update waits for the next round."""
    driven = opened(buffer=3, quorum=1)
    driven.round("a", "b", "c")
    driven.happen(Joined("d"))
    driven.answer("d", 1)
    assert driven.answer("d", 2) == []
    driven.round("a", "b")
    assert driven.used(2) == [("a", "b", "d")]
    assert Accept("d", 2, "train", 1) in driven.said


def test_two_late_updates_of_a_device_count_in_two_rounds():
    driven = opened(buffer=3, quorum=1)
    driven.round("a", "b", "c")
    driven.happen(Joined("d"))
    driven.round("a", "b", "c")
    assert kinds(driven.answer("d", 1), Accept) == [Accept("d", 1, "train", 2)]
    assert driven.answer("d", 2) == []
    driven.round("a", "b")
    assert Accept("d", 2, "train", 2) in driven.said


def test_a_second_update_of_a_device_in_the_last_training_round_is_late():
    """Its first update in the round was late. No later round can count the second one."""
    driven = opened(rounds=2)
    driven.round("a", "b")
    driven.happen(Joined("c"))
    assert not kinds(driven.answer("c", 1), Send)
    (drop,) = driven.answer("c", 2)
    assert drop.verdict == "late"


def test_waiting_updates_never_make_a_round_larger_than_the_buffer():
    driven = opened(buffer=1)
    driven.answer("a", 1)
    for device in ("d", "c", "b"):
        driven.answer(device, 1)
    driven.step()
    commands = driven.step()
    assert kinds(commands, Close) == [Close(2, "train", ("d",))] and not kinds(commands, Send)
    driven.step()
    assert kinds(driven.step(), Close) == [Close(3, "train", ("c",))]


def test_an_update_whose_task_is_too_old_is_late():
    driven = opened()
    for _ in range(4):
        driven.round("a", "b")
    (drop,) = driven.answer("c", 1)
    assert drop.verdict == "late"


def test_a_device_whose_task_is_too_old_gets_the_open_task():
    driven = opened()
    for _ in range(3):
        driven.round("a", "b")
    sent = kinds(driven.round("a", "b"), Send)
    assert [send.device for send in sent] == ["a", "b", "c", "d"]


def test_an_update_for_another_broadcast_or_a_later_round_is_late():
    driven = opened()
    driven.round("a", "b")
    driven.round("a", "b")
    for event in (
        Answered("c", 1, "train", b"forged"),
        Answered("c", 9, "train", base(9)),
        Answered("z", 1, "train", base(1)),
    ):
        (drop,) = driven.happen(event)
        assert drop.verdict == "late"


def test_a_device_cannot_answer_an_older_task_than_its_last_task():
    driven = opened(quorum=1, buffer=2, staleness=10)
    driven.round("a", "b")
    driven.round("a", "b")
    driven.answer("c", 1)
    driven.round("a")
    driven.round("c", "b")
    (drop,) = driven.answer("c", 2)
    assert drop.verdict == "late"


def test_an_unusable_late_update_is_refused_and_blames_no_round():
    driven = opened()
    driven.round("a", "b")
    said = [driven.answer(device, 1, problem=WRONG) for device in ("c", "d")]
    assert said == [[Drop(device, 1, "train", "refused", WRONG)] for device in ("c", "d")]
    assert not driven.machine.verdicts.broken


def test_a_round_with_too_few_devices_at_its_deadline_begins_again_with_all_devices():
    driven = opened(quorum=2)
    driven.round("a", "b")
    driven.answer("c", 1)
    driven.now = 500.0
    driven.happen(Woke())
    assert driven.machine.attempt == 1
    commands = driven.step()
    assert {send.device for send in kinds(commands, Send)} == {"a", "b", "d"}
    assert driven.machine.answered == {"c"}


def test_a_round_ends_without_a_full_buffer_if_all_other_devices_have_left():
    driven = opened(quorum=1, buffer=3)
    driven.answer("a", 1)
    for device in ("b", "c", "d"):
        driven.happen(Left(device))
    driven.now = 6.0
    assert kinds(driven.happen(Woke()), Close) == [Close(1, "train", ("a",))]


def test_a_device_at_work_keeps_its_place_in_a_drawn_cohort():
    driven = opened(cohort=3, buffer=2)
    (first,) = kinds(driven.said, Save)
    slow = first.cohort[2]
    commands = driven.round(*first.cohort[:2])
    (second,) = kinds(driven.said, Save)[1:]
    assert slow in second.cohort and len(second.cohort) == 3
    assert slow not in {send.device for send in kinds(commands, Send)}


def test_the_last_evaluation_asks_all_devices_and_counts_no_late_update():
    driven = opened(rounds=1)
    driven.answer("a", 1)
    driven.answer("b", 1)
    driven.step()
    assert {send.device for send in kinds(driven.step(), Send)} == set(DEVICES)
    (drop,) = driven.answer("c", 1)
    assert drop.verdict == "late"


def test_a_restarted_coordinator_accepts_late_updates_and_replays_the_accepted_ones():
    tasks = tuple(SentTask(number, "train", base(number), DEVICES) for number in (1, 2, 3))
    past = Recovered(
        3, 0, DEVICES, {}, {"train": {"c": base(1), "a": base(3)}}, DEVICES, late={"c": 2}, tasks=tasks,
        earlier={"c": (0, {}), "b": (2, {"train": base(2)})},
    )  # fmt: skip
    driven = Driven(past=past)
    assert Close(3, "train", ("a", "c")) in driven.step()
    driven.step()
    driven.step()
    assert kinds(driven.answer("d", 1), Accept) == [Accept("d", 1, "train", 3)]
    assert driven.answer("b", 2) == [Repeat("b", 2, "train")]


def test_open_tasks_are_stored_before_they_are_sent():
    driven = Driven()
    commands = driven.step()
    assert commands[0] == Open(SentTask(1, "train", base(1), DEVICES), -2)
    assert [type(command) for command in commands[1:]] == [Send] * 4


def test_a_synchronous_round_drops_late_updates_and_stores_no_task():
    driven = Driven(mode="synchronous", buffer=0, quorum=2, straggler_factor=1.0)
    driven.step()
    assert not kinds(driven.said, Open)
    for device in DEVICES[:3]:
        driven.answer(device, 1)
    driven.now = 50.0
    driven.happen(Woke())
    driven.step()
    driven.step()
    (drop,) = driven.answer("d", 1)
    assert drop.verdict == "late"


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"mode": "async"}, "mode is 'async', it must be one of synchronous, buffered"),
        ({"buffer": 3}, 'buffer is 3 with mode = "synchronous", but must be 0'),
        ({"mode": "buffered"}, 'buffer is 0 with mode = "buffered", but must be at least quorum = 1'),
        ({"mode": "buffered", "buffer": 2, "quorum": 3}, "must be at least quorum = 3"),
        (
            {"mode": "buffered", "buffer": 4, "cohort": 3},
            "cohort is 3, it must be 0 (all) or at least buffer = 4",
        ),
        ({"mode": "buffered", "buffer": 2, "cohort": 3, "spares": 1}, "spares is 1 with mode"),
        ({"mode": "buffered", "buffer": 2, "stop": Stop(0.9)}, "stop is set with mode"),
        ({"mode": "buffered", "buffer": 2, "staleness": 0}, "staleness"),
    ],
)
def test_settings_that_contradict_each_other_are_refused_with_the_reason(settings, words):
    with pytest.raises(ValueError, match="."):
        Policy(**settings)
    try:
        Policy(**settings)
    except ValueError as error:
        assert words in str(error)


def test_the_weight_of_an_update_falls_with_the_age_of_its_task():
    policy = Policy(mode="buffered", buffer=1)
    assert [policy.weight_of(age) for age in (0, 3, 8)] == [1.0, 0.5, pytest.approx(1 / 3)]
    assert Policy(mode="buffered", buffer=1, staleness_exponent=0.0).weight_of(9) == 1.0
