"""If the server half keeps answers, a later round asks only the devices that have not answered yet."""

import pytest

from protofleet.coordinator.round.events import (
    NOBODY_LEFT,
    Accept,
    Advance,
    Advanced,
    Answered,
    Blamed,
    Budgeted,
    Close,
    EndEarly,
    Finish,
    Joined,
    Left,
    Recovered,
    Save,
    Send,
    Stage,
    Unenrolled,
    Woke,
)
from protofleet.coordinator.round.machine import RoundMachine
from protofleet.coordinator.round.policy import Policy
from protofleet.protocol.wire.reasons import Problem, Reason

PATIENCE = 100.0
COMPLETE = EndEarly(1, "all enrolled devices have answered", NOBODY_LEFT)
NO_DEVICE_CAME = "no device that had not answered was there for policy.patience_seconds (100 s): c"


def machine(rounds=3, **rules):
    policy = Policy(
        quorum=2,
        settle_seconds=1.0,
        straggler_factor=0.0,
        grace_seconds=0.0,
        patience_seconds=PATIENCE,
        **rules,
    )
    return RoundMachine(policy, rounds)


def began(m, *devices):
    for device in devices:
        m.handle(Joined(device), 0.0)
    m.handle(Woke(), 1.0)
    return m


def answer(m, kept=(), now=2.0):
    """Open the task of the round, and let its cohort answer."""
    asked = m.handle(Advanced("describe", b"", kept=frozenset(kept)), now)
    for device in m.cohort:
        assert Accept(device, m.round, "describe") in m.handle(
            Answered(device, m.round, "describe", b""), now
        )
    return [command.device for command in asked if isinstance(command, Send)]


def end_round(m, kept, left=(), now=2.0):
    return m.handle(Advanced(None, kept=frozenset(kept), left=frozenset(left)), now)


def test_only_a_new_device_gets_the_task_of_the_next_round_and_all_devices_evaluate():
    m = began(machine(rounds=2), "a", "b")
    assert answer(m) == ["a", "b"]
    assert end_round(m, "ab", left="c") == [] and m.stage is Stage.GATHERING
    m.handle(Joined("c"), 10.0)
    assert m.handle(Woke(), 11.0) == [Save(2, 0, ("c",)), Advance(2, None, ())]
    assert answer(m, kept="ab", now=12.0) == ["c"]
    commands = end_round(m, "abc", now=13.0)
    assert commands == [Save(3, 0, ("a", "b", "c")), Advance(3, None, (), evaluate=True)]


def test_the_training_ends_at_once_if_all_enrolled_devices_have_answered():
    m = began(machine(), "a", "b")
    answer(m)
    assert end_round(m, "ab") == [COMPLETE, Save(2, 0, ("a", "b")), Advance(2, None, (), evaluate=True)]
    m.handle(Advanced("evaluate", b"head", kept=frozenset("ab")), 3.0)
    for device in "ab":
        m.handle(Answered(device, 2, "evaluate", b"head"), 3.0)
    assert [c for c in end_round(m, "ab", now=3.0) if isinstance(c, Finish)] == [Finish(1)]


def test_the_run_waits_for_an_absent_device_for_the_patience_and_then_ends_the_training():
    m = began(machine(), "a", "b")
    answer(m)
    assert end_round(m, "ab", left="c") == [] and m.wake_at == 2.0 + PATIENCE
    assert m.handle(Woke(), 50.0) == []
    commands = m.handle(Woke(), 2.0 + PATIENCE)
    assert commands[:2] == [EndEarly(1, NO_DEVICE_CAME, NOBODY_LEFT), Save(2, 0, ("a", "b"))]


def test_a_device_that_comes_and_leaves_does_not_end_the_wait():
    m = began(machine(), "a", "b")
    answer(m)
    end_round(m, "ab", left="c")
    m.handle(Joined("c"), 10.0)
    m.handle(Left("c"), 10.5)
    assert m.handle(Woke(), 11.5) == [] and m.stage is Stage.GATHERING and m.wake_at == 2.0 + PATIENCE


def test_a_device_that_missed_the_round_is_asked_in_the_next_round():
    m = began(machine(cohort=2), "a", "b", "c")
    first = answer(m)
    (other,) = {"a", "b", "c"}.difference(first)
    commands = end_round(m, first, left=other)
    assert commands == [Save(2, 0, (other,)), Advance(2, None, ())]


def late_round(m, now=10.0):
    """Let two devices answer round 1, and begin round 2 with a third one."""
    answer(began(m, "a", "b"))
    end_round(m, "ab", left="c")
    m.handle(Joined("c"), now)
    m.handle(Woke(), now + 1.0)
    m.handle(Advanced("describe", b"", kept=frozenset("ab")), now + 2.0)
    assert m.cohort == ("c",)
    return m


def test_a_later_round_ends_without_an_answer_and_its_device_is_asked_again():
    m = late_round(machine())
    assert m.handle(Left("c"), 13.0) == [Close(2, "describe", ()), Advance(2, "describe", ())]
    assert end_round(m, "ab", left="c", now=14.0) == [] and m.wake_at == 14.0 + PATIENCE
    m.handle(Joined("c"), 20.0)
    assert m.handle(Woke(), 21.0) == [Save(3, 0, ("c",)), Advance(3, None, ())]


def test_a_replay_of_a_round_without_an_answer_sends_no_task():
    m = machine()
    m.resume(Recovered(2, 0, ("c",), {"describe": ()}, roster=("a", "b", "c")))
    assert m.handle(Advanced("describe", b"", kept=frozenset("ab")), 0.0) == [Advance(2, "describe", ())]


@pytest.mark.parametrize("reason", [Reason.NOT_FINITE, Reason.WRONG_SHAPE])
def test_one_bad_device_in_a_later_round_does_not_blame_an_earlier_answer(reason):
    m = late_round(machine())
    commands = m.handle(Answered("c", 2, "describe", b"", Problem(reason, "bad")), 13.0)
    assert commands[1:] == [Close(2, "describe", ()), Advance(2, "describe", ())]
    assert end_round(m, "ab", left="c")[0] == Save(3, 0, ("c",)), "the device is asked once in each round"


def test_devices_whose_answers_are_kept_are_present_and_need_no_budget():
    m = machine()
    answer(began(m, "a", "b"))
    end_round(m, "ab", left="cd")
    m.handle(Budgeted(frozenset("d"), frozenset(), 1, 3, ""), 3.0)
    for device in "cd":
        m.handle(Joined(device), 10.0)
    m.handle(Woke(), 11.0)
    assert (m.cohort, m.present, m.unfunded) == (("c",), ("a", "b", "c"), {"d"})
    assert not m.measured_by_all


def test_spent_budgets_do_not_end_a_run_that_waits_for_a_device_or_has_all_answers():
    m = machine()
    answer(began(m, "a", "b"))
    m.handle(Budgeted(frozenset("ab"), frozenset(), 2, 1, ""), 2.0)
    assert end_round(m, "ab", left="c") == [] and not m.ended_early
    m.handle(Joined("c"), 10.0)
    m.handle(Woke(), 11.0)
    assert answer(m, kept="ab", now=12.0) == ["c"]
    m.handle(Budgeted(frozenset("abc"), frozenset(), 3, 0, ""), 12.0)
    assert end_round(m, "abc", now=13.0)[:1] == [EndEarly(2, COMPLETE.words, NOBODY_LEFT)]


def test_a_pause_longer_than_the_patience_delays_a_new_device_and_does_not_end_the_training():
    m = machine(pause_seconds=5 * PATIENCE)
    answer(began(m, "a", "b"))
    end_round(m, "ab", left="c")
    m.handle(Joined("c"), 3.0)
    while m.wake_at < 2.0 + 5 * PATIENCE:
        now = m.wake_at
        assert m.handle(Woke(), now) == [] and m.wake_at > now
    m.handle(Woke(), m.wake_at)
    assert m.handle(Woke(), m.wake_at)[0] == Save(2, 0, ("c",))


def test_a_replay_of_the_evaluation_knows_that_the_training_has_ended():
    m = machine()
    assert m.resume(Recovered(2, 0, ("a", "b"), roster=("a", "b"), ended_early=COMPLETE)) == [
        Advance(2, None, (), evaluate=True)
    ]


def test_a_replay_that_begins_a_round_earlier_ends_at_the_same_round():
    later = Recovered(2, 0, ("a", "b"), roster=("a", "b"))
    closed, accepted = {"describe": ("a", "b")}, {"describe": {"a": b"", "b": b""}}
    m = machine()
    past = Recovered(1, 0, ("a", "b"), closed, accepted, ("a", "b"), ended_early=COMPLETE, ahead=(later,))
    assert m.resume(past) == [Advance(1, None, ())]
    m.handle(Advanced("describe", b""), 0.0)
    assert end_round(m, "ab") == [Save(2, 0, ("a", "b")), Advance(2, None, (), evaluate=True)]


def test_a_device_whose_answer_is_put_aside_may_be_asked_again():
    m = began(machine(), "a", "b", "c")
    answer(m)
    end_round(m, "abc")
    past = Recovered(
        1,
        0,
        ("a", "b", "c"),
        {"describe": ("a", "b", "c")},
        {"describe": dict.fromkeys("abc", b"")},
        ("a", "b", "c"),
    )
    m.handle(Advanced(None, fault="not finite", kept=frozenset("abc")), 3.0)
    m.handle(Blamed(past, "describe", ("c",), "c is not finite"), 3.0)
    assert m.ended_early is None
    assert answer_again(m) == [] and end_round(m, "ab", left="c", now=4.0)[:1] == [Save(2, 0, ("c",))]


def answer_again(m):
    return [c for c in m.handle(Advanced("describe", b""), 4.0) if isinstance(c, Send)]


def test_the_training_ends_at_once_if_the_last_missing_device_is_removed():
    m = machine()
    answer(began(m, "a", "b"))
    end_round(m, "ab", left="cd")
    assert m.left_to_ask == {"c", "d"}
    assert m.handle(Unenrolled("c"), 10.0) == [] and m.left_to_ask == {"d"}
    assert m.handle(Unenrolled("d"), 11.0)[:2] == [COMPLETE, Save(2, 0, ("a", "b"))]


def test_a_removed_device_does_not_end_the_training_while_another_device_is_present():
    m = machine()
    answer(began(m, "a", "b"))
    end_round(m, "ab", left="c")
    m.handle(Joined("new"), 10.0)
    assert m.handle(Unenrolled("c"), 10.5) == []
    assert m.handle(Woke(), 11.0) == [Save(2, 0, ("new",)), Advance(2, None, ())]


def test_a_device_without_budget_for_a_round_evaluates_if_its_answer_is_kept():
    m = machine()
    answer(began(m, "a", "b"))
    m.handle(Budgeted(frozenset("a"), frozenset(), 1, 2, ""), 2.0)
    end_round(m, "ab", left="c")
    m.handle(Joined("c"), 10.0)
    m.handle(Woke(), 11.0)
    assert (m.cohort, m.present, m.unfunded) == (("c",), ("a", "b", "c"), frozenset())


def test_the_run_waits_for_a_present_device_whose_budget_of_the_month_is_spent():
    m = machine()
    answer(began(m, "a", "b"))
    end_round(m, "ab", left="c")
    m.handle(Joined("c"), 3.0)
    m.handle(Budgeted(frozenset("c"), until_month=frozenset("c")), 3.0)
    assert m.wake_at is None and m.handle(Woke(), 2.0 + 2 * PATIENCE) == []
    m.handle(Budgeted(able=3), 500.0)
    assert m.handle(Woke(), 501.0) == [Save(2, 0, ("c",)), Advance(2, None, ())]
