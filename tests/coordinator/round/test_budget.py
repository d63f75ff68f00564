"""A device whose budget is spent gets no task; if no quorum is possible any more, the run ends with a reason."""

import pytest

from protofleet.coordinator.round.events import (
    BUDGET,
    Accept,
    Advance,
    Advanced,
    Answered,
    Budgeted,
    EndEarly,
    Finish,
    Joined,
    Paused,
    Recovered,
    Rollback,
    Save,
    Send,
    Stage,
    Woke,
)
from protofleet.coordinator.round.machine import RoundMachine
from protofleet.coordinator.round.policy import Policy

WORDS = "budget.bytes_per_device is 1.0 MB"
END = EndEarly(1, "no money", BUDGET)


def reason(spent, devices):
    which = f"{spent} of {devices} devices"
    return f"the budget of {which} does not hold one more round ({WORDS}), and policy.quorum is 3"


def machine(rounds=5, **rules):
    policy = Policy(
        **{"quorum": 2, "settle_seconds": 1.0, "straggler_factor": 0.0, "grace_seconds": 0.0, **rules}
    )
    return RoundMachine(policy, rounds)


def spent(*devices, of=4, evaluation=(), run=True):
    """Return the event that, of `of` devices, these have no budget for one more round."""
    number = len(devices) if run else 0
    return Budgeted(frozenset(devices), frozenset(evaluation), number, of - number, WORDS)


def began(m, devices="abcd"):
    for device in devices:
        m.handle(Joined(device), 0.0)
    m.handle(Woke(), 1.0)
    return m


def end_round(m, event=None, now=2.0):
    """Let the cohort answer, and end the round after `event`."""
    place = m.round, m.attempt
    m.handle(Advanced("train", b"%d" % m.round), now)
    for device in m.cohort:
        m.handle(Answered(device, m.round, "train", m.base), now)
    assert (m.round, m.attempt) == place and m.stage is Stage.COMPUTING
    if event:
        assert m.handle(event, now) == []
    return m.handle(Advanced(None), now)


def test_a_device_with_a_spent_budget_is_in_no_later_cohort_and_in_no_evaluation_before_a_round():
    m = began(machine(cohort=2, evaluate_every=1))
    commands = end_round(m, spent("b"))
    assert isinstance(commands[0], Save) and "b" not in commands[0].cohort
    assert m.present == ("a", "c", "d") and m.unfunded == {"b"}
    assert commands[1] == Advance(2, None, (), evaluate=True) and m.cohort == ("a", "c", "d")


def test_the_open_round_ends_with_the_device_whose_budget_it_has_spent():
    m = began(machine())
    m.handle(Advanced("train", b"base"), 1.0)
    assert m.handle(spent("b"), 1.0) == []
    assert m.handle(Answered("b", 1, "train", b"base"), 1.0) == [Accept("b", 1, "train")]
    assert m.handle(Joined("b"), 1.0) == [] and "b" in m.answered


def test_a_repeated_round_is_drawn_without_a_device_with_a_spent_budget():
    m = began(machine(quorum=3, patience_seconds=5.0))
    m.handle(Advanced("train", b"base"), 1.0)
    m.handle(spent("b"), 2.0)
    assert m.handle(Woke(), 6.0) == [Rollback()]
    assert m.handle(Woke(), 7.0)[0] == Save(1, 1, ("a", "c", "d"))


def test_the_run_waits_for_the_budget_of_the_next_month():
    m = began(machine(quorum=3))
    assert end_round(m, spent("a", "b", run=False)) == [] and m.stage is Stage.GATHERING
    assert m.handle(Woke(), 1e6) == []
    commands = m.handle(spent(), 2e6)
    assert [*commands, *m.handle(Woke(), 2e6 + 1.0)][0] == Save(2, 0, tuple("abcd"))


def test_a_run_without_budget_for_a_quorum_ends_with_an_evaluation_by_devices_with_budget():
    m = began(machine(quorum=3))
    exhaust, save, advance = end_round(m, spent("a", "b", evaluation="b"))
    assert exhaust == m.ended_early == EndEarly(1, reason(2, 4), BUDGET)
    assert save == Save(2, 0, ("a", "c", "d")) and advance == Advance(2, None, (), evaluate=True)
    sends = m.handle(Advanced("evaluate", b"last"), 3.0)
    assert [c.device for c in sends if isinstance(c, Send)] == ["a", "c", "d"]
    for device in "acd":
        m.handle(Answered(device, 2, "evaluate", b"last"), 3.0)
    assert [c for c in m.handle(Advanced(None), 3.0) if isinstance(c, Finish)] == [Finish(1)]


def test_a_run_whose_own_budget_is_spent_ends_after_the_round_or_after_a_pause():
    over = Budgeted(able=4, over="the hours are spent")
    m = began(machine(evaluate_every=1))
    end, save, advance = end_round(m, over)
    assert end == m.ended_early == EndEarly(1, "the hours are spent", BUDGET)
    assert save == Save(2, 0, tuple("abcd")) and advance.evaluate, "all devices measure the last model"
    waits = began(machine())
    waits.handle(Paused("by ann"), 1.5)
    assert end_round(waits, over) == []
    assert waits.handle(Paused(""), 3.0)[1:] == [end, save, advance]


def test_a_run_can_end_while_it_waits_for_devices_and_after_a_repeated_round():
    m = began(machine(quorum=3, patience_seconds=5.0))
    m.handle(Advanced("train", b"base"), 1.0)
    m.handle(spent("a", "b"), 2.0)
    commands = m.handle(Woke(), 6.0)
    assert commands[:3] == [Rollback(), EndEarly(0, reason(2, 4), BUDGET), Save(1, 1, ("a", "b", "c", "d"))]
    waits = machine(quorum=3)
    waits.handle(Joined("c"), 0.0)
    assert waits.handle(spent("a", "b"), 1.0)[:2] == [EndEarly(0, reason(2, 4), BUDGET), Save(1, 0, ("c",))]


@pytest.mark.parametrize("event", [spent(), spent("a", of=2, run=False), spent("a", of=1), Budgeted()])
def test_few_enrolled_devices_and_other_reasons_do_not_end_a_run(event):
    m = machine(quorum=2)
    assert m.handle(event, 0.0) == [] and not m.ended_early


def test_a_replay_takes_the_end_and_the_cohort_from_the_disk_and_not_from_the_budget():
    m = machine(quorum=3)
    past = Recovered(2, 0, ("a", "c"), roster=("a", "c"), ended_early=END)
    assert m.resume(past) == [Advance(2, None, (), evaluate=True)] and m.ended_early == END
    m.handle(spent(*"abcd", evaluation="abcd"), 0.0)
    sends = m.handle(Advanced("evaluate", b"last"), 0.0)
    assert [c.device for c in sends] == ["a", "c"]


def test_a_replay_that_begins_a_round_earlier_ends_at_the_same_round():
    m = machine(quorum=2)
    later = Recovered(3, 0, ("a",), roster=("a",))
    closed, accepted = {"train": ("a", "b")}, {"train": {"a": b"2", "b": b"2"}}
    past = Recovered(
        2,
        0,
        ("a", "b"),
        closed,
        accepted,
        roster=("a", "b"),
        ended_early=EndEarly(2, "no money", BUDGET),
        ahead=(later,),
    )
    assert m.resume(past) == [Advance(2, None, ())], "round 2 trains"
    m.handle(Advanced("train", b"2"), 0.0)
    assert m.handle(Advanced(None), 0.0) == [Save(3, 0, ("a",)), Advance(3, None, (), evaluate=True)]
