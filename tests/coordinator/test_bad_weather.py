"""Rounds with slow and flapping devices: over-selection, an adaptive deadline, devices that come and leave."""

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
    Recovered,
    Rollback,
    Send,
    Stage,
    Woke,
)
from protofleet.coordinator.round.machine import RoundMachine
from protofleet.coordinator.round.policy import Policy
from tests.coordinator.round.test_machine import WRONG, AnyWeather, answer, machine, started
from tests.support.run_policy import RunPolicy

HARD = RunPolicy(
    rounds=3, quorum=2, cohort=2, patience_seconds=10.0, grace_seconds=3.0, settle_seconds=1.0, spares=2,
    straggler_factor=2.0, flaps=2, flap_seconds=6.0, evaluate_every=1,
)  # fmt: skip


class WithEveryRule(AnyWeather):
    """The same events with an evaluation by all devices before each round that leaves devices out."""

    policy = HARD


WithEveryRule.TestCase.settings = AnyWeather.TestCase.settings
TestWithEveryRule = WithEveryRule.TestCase


def to_round(m, number, devices, seconds, now=0.0):
    """Run whole rounds up to `number` with answers that take `seconds[device]`, and return the time after them."""
    while m.round < number:
        begun = now
        for device in sorted(set(m.cohort) & set(devices), key=seconds.get):
            now = begun + seconds[device]
            m.handle(Answered(device, m.round, "train", b"base"), now)
        if m.stage is Stage.COLLECTING:
            now = m.wake_at
            m.handle(Woke(), now)
        m.handle(Advanced(None), now)
        m.handle(Advanced("train", b"base"), now)
    return now


def closed(commands):
    return next((c.devices for c in commands if isinstance(c, Close)), None)


def test_the_first_answers_close_a_phase_with_spares_and_the_others_are_late():
    m = machine(cohort=2, quorum=2, spares=2, gather=4)
    sends = started(m, "abcd")
    assert [c.device for c in sends] == ["a", "b", "c", "d"]
    assert answer(m, "d") == [Accept("d", 1, "train")]
    assert closed(answer(m, "b")) == ("b", "d")
    (late,) = answer(m, "a")
    assert isinstance(late, Drop) and late.verdict == "late"


def test_the_next_phase_asks_and_waits_for_exactly_the_devices_of_the_first_phase():
    m = machine(cohort=2, quorum=2, spares=1, gather=3)
    started(m, "abc")
    answer(m, "c"), answer(m, "a")
    sends = m.handle(Advanced("mix", b"mixed"), 2.0)
    assert [c.device for c in sends] == ["a", "c"]
    assert closed(answer(m, "a", phase="mix", base=b"mixed")) is None
    assert closed(answer(m, "c", phase="mix", base=b"mixed")) == ("a", "c")


def test_a_quorum_closes_a_later_phase_after_the_grace_time_of_a_device_that_left():
    m = machine(quorum=2, grace_seconds=3.0, settle_seconds=1.0)
    for device in "abc":
        m.handle(Joined(device), 0.0)
    m.handle(Woke(), 1.0), m.handle(Advanced("train", b"base"), 1.0)
    answer(m, "a"), answer(m, "b"), answer(m, "c")
    m.handle(Advanced("mix", b"mixed"), 2.0)
    m.handle(Left("c"), 3.0)
    answer(m, "a", phase="mix", base=b"mixed"), answer(m, "b", phase="mix", base=b"mixed")
    assert m.wake_at == 6.0 and closed(m.handle(Woke(), 6.0)) == ("a", "b")


def test_a_quorum_waits_for_the_rest_for_a_multiple_of_the_median_time():
    m = machine(quorum=2, rounds=9, patience_seconds=100.0, straggler_factor=3.0, settle_seconds=1.0)
    for device in "abc":
        m.handle(Joined(device), 0.0)
    m.handle(Woke(), 1.0), m.handle(Advanced("train", b"base"), 1.0)
    answer(m, "a", now=3.0)
    assert m.wake_at == 101.0, "no deadline before there is a quorum"
    answer(m, "b", now=5.0)
    assert m.wake_at == 1.0 + 3 * 4.0, "the median of 2 s and 4 s is 4 s"
    assert closed(m.handle(Woke(), 13.0)) == ("a", "b")


def test_by_default_a_silent_device_of_four_extends_no_phase_beyond_three_times_the_others():
    m = RoundMachine(Policy(), 6)
    now = 0.0
    for device in "abcd":
        m.handle(Joined(device), now)
    now = m.wake_at
    m.handle(Woke(), now)
    while m.stage is not Stage.FINISHED:
        phase = "train" if m.round <= 6 else "evaluate"
        m.handle(Advanced(phase, b"%d" % m.round), now)
        begun, number = now, m.round
        for seconds, device in enumerate("abc", start=10):
            answer(m, device, now=begun + seconds, round=number, phase=phase, base=m.base)
            m.handle(Joined("d"), begun + seconds)  # It may send a hello at any time.
        now = m.wake_at
        m.handle(Woke(), now)
        assert 12.0 < now - begun <= 3 * 12.0, number
        m.handle(Advanced(None), now)


def test_a_fleet_that_becomes_slow_gets_more_time_at_once():
    m = machine(quorum=1, cohort=3, rounds=50, patience_seconds=1000.0, straggler_factor=1.5, gather=3)
    started(m, "abc")
    now = to_round(m, 10, "abc", {"a": 1.0, "b": 1.0, "c": 1.0})
    answer(m, "a", now=now + 1, round=10)
    assert m.wake_at == now + 1000.0, "one answer of three sets no deadline"
    answer(m, "b", now=now + 8, round=10)
    assert m.wake_at == now + 1.5 * 8


def test_too_fast_answers_of_half_of_the_devices_do_not_exclude_the_others():
    m = machine(quorum=1, patience_seconds=1000.0, straggler_factor=2.5, gather=4)
    started(m, "abcd")
    answer(m, "a", now=0.001)
    answer(m, "b", now=0.002)
    assert m.wake_at == 1000.0, "half of the answers set no deadline"
    answer(m, "c", now=20.0)
    assert m.wake_at == 50.0


def test_the_deadline_for_stragglers_is_never_below_its_minimum():
    m = machine(quorum=2, gather=3, straggler_factor=2.5, straggler_seconds=0.5)
    started(m, "abc")
    answer(m, "a", now=0.001), answer(m, "b", now=0.002)
    assert m.wake_at == 0.5


def test_refused_answers_do_not_count_for_the_deadline():
    m = machine(quorum=1, gather=4, straggler_factor=2.5, patience_seconds=100.0)
    started(m, "abcd")
    for device in "ab":
        answer(m, device, now=0.001, problem=WRONG)
    answer(m, "c", now=10.0)
    assert m.wake_at == 100.0


def resumed(seconds=0.0, known="", **rules):
    """Return a machine in round 1, in which an earlier process spent `seconds` and got the answers of `known`."""
    rules = {"patience_seconds": 100.0, "grace_seconds": 5.0, "straggler_factor": 2.0, **rules}
    m = machine(quorum=2, **rules)
    accepted = {"train": dict.fromkeys(known, b"base")}
    m.resume(Recovered(1, 0, tuple("abcd"), accepted=accepted, seconds=seconds))
    m.handle(Advanced("train", b"base"), 1000.0)
    return m


def test_answers_that_were_ready_at_a_restart_do_not_exclude_devices_at_work():
    m = resumed()
    for device in "abc":
        answer(m, device, now=1000.1)
    assert m.wake_at == 1000.0 + 2 * 5.0, "after a restart, at least the grace time counts"


def test_a_restarted_coordinator_counts_the_time_that_the_earlier_process_waited():
    m = resumed(seconds=30.0)
    for device in "abc":
        answer(m, device, now=1001.0)
    assert m.wake_at == 1000.0 - 30.0 + 2 * 31.0


def test_answers_from_before_a_restart_count_for_the_deadline():
    m = resumed(seconds=20.0, known="abc")
    assert m.wake_at == 1000.0 - 20.0 + 2 * 20.0
    assert closed(m.handle(Woke(), 1020.0)) == ("a", "b", "c")


def test_a_later_phase_of_a_resumed_round_has_its_own_time():
    m = resumed(seconds=20.0, known="abcd")
    m.handle(Advanced("mix", b"mixed"), 1001.0)
    for device in "abc":
        answer(m, device, phase="mix", base=b"mixed", now=1005.0)
    assert m.wake_at == 1001.0 + 2 * 4.0


def test_a_repeated_attempt_measures_each_answer_from_the_first_task_of_its_device():
    m = machine(quorum=3, gather=5, cohort=4, patience_seconds=50.0, straggler_factor=2.0)
    for device in "abcde":
        m.handle(Joined(device), 0.0)
    m.handle(Advanced("train", b"base"), 0.0)
    first = m.cohort
    for device in first[:2]:
        answer(m, device, now=4.0)
    m.handle(Woke(), 50.0)
    m.handle(Advanced("train", b"base"), 50.0)
    (fresh,) = set(m.cohort) - set(first)
    assert m.attempt == 1 and len(set(m.cohort) & set(first[:2])) == 2
    assert m.wake_at == 100.0, "two of three that are needed have answered"
    assert len(closed(answer(m, fresh, now=56.0))) == 3, "the other device has had the task since 0"


def test_the_majority_for_the_deadline_does_not_count_devices_that_left():
    m = machine(quorum=1, gather=4, patience_seconds=100.0, grace_seconds=50.0, straggler_factor=2.0)
    started(m, "abcd")
    answer(m, "a", now=3.0), answer(m, "b", now=4.0)
    assert m.wake_at == 100.0
    m.handle(Left("c"), 5.0)
    assert m.wake_at == 8.0


def test_a_round_waits_the_whole_patience_for_an_answer_that_a_damaged_disk_lost():
    """It is already decided which devices count, so the result must have the same bits."""
    m = machine(quorum=2, patience_seconds=100.0, straggler_factor=2.0)
    accepted = {"train": dict.fromkeys("abc", b"base")}
    m.resume(Recovered(1, 0, tuple("abcd"), {"train": tuple("abcd")}, accepted, seconds=9.0))
    m.handle(Advanced("train", b"base"), 10.0)
    assert m.wake_at == 110.0


def at_the_last_evaluation(devices, took_part):
    m = machine(quorum=1, rounds=1, patience_seconds=50.0, straggler_factor=2.0, gather=len(devices))
    started(m, devices)
    for device in took_part:
        answer(m, device, now=2.0)
    m.handle(Woke(), m.wake_at or 2.0)
    m.handle(Advanced(None), 100.0), m.handle(Advanced("evaluate", b"end"), 100.0)
    return m


def test_the_last_evaluation_gives_no_device_less_time_than_the_round_before():
    m = at_the_last_evaluation("abc", took_part="abc")
    for device in "ab":
        answer(m, device, now=100.01, round=2, phase="evaluate", base=b"end")
    assert m.wake_at == 100.0 + 2 * 2.0, "the evaluation of device c may take longer"


def test_a_device_that_is_silent_in_the_last_evaluation_does_not_delay_the_end():
    m = at_the_last_evaluation("abc", took_part="abc")
    for device in "ab":
        answer(m, device, now=103.0, round=2, phase="evaluate", base=b"end")
    assert m.wake_at == 106.0


def test_the_last_evaluation_does_not_wait_for_a_device_that_never_answered():
    m = at_the_last_evaluation("abc", took_part="ab")
    answer(m, "a", now=103.0, round=2, phase="evaluate", base=b"end")
    assert m.wake_at == 150.0
    answer(m, "b", now=104.0, round=2, phase="evaluate", base=b"end")
    assert m.wake_at == 108.0


def flap(m, device, times, now):
    for i in range(times):
        m.handle(Left(device), now + i)
        m.handle(Joined(device), now + i + 0.5)


def flappy(**rules):
    return machine(
        **{"flaps": 3, "flap_seconds": 60.0, "grace_seconds": 5.0, "patience_seconds": 100.0, **rules}
    )


def test_a_round_does_not_wait_for_a_flapping_device_but_counts_its_answer():
    for late in (True, False):
        m = flappy(quorum=2, settle_seconds=1.0)
        for device in "abc":
            m.handle(Joined(device), 0.0)
        m.handle(Woke(), 1.0), m.handle(Advanced("train", b"base"), 1.0)
        flap(m, "c", 3, 2.0)
        answer(m, "a", now=20.0)
        if not late:
            answer(m, "c", now=21.0)
        assert closed(answer(m, "b", now=22.0)) == (("a", "b") if late else ("a", "b", "c"))


def test_a_round_waits_for_a_device_that_seldom_leaves():
    m = flappy(quorum=2, settle_seconds=1.0)
    for device in "abc":
        m.handle(Joined(device), 0.0)
    m.handle(Woke(), 1.0), m.handle(Advanced("train", b"base"), 1.0)
    flap(m, "c", 2, 2.0)
    assert closed([*answer(m, "a", now=20.0), *answer(m, "b", now=22.0)]) is None and m.wake_at == 101.0


def test_a_round_starts_with_a_quorum_of_steady_devices():
    m = flappy(quorum=2)
    flap(m, "c", 4, 1.0)
    m.handle(Joined("a"), 9.0)
    assert m.roster == {"a", "c"} and m.stage is Stage.GATHERING
    assert [type(c) for c in m.handle(Joined("b"), 10.0)][-1] is Advance
    assert m.cohort == ("a", "b", "c"), "the flapping device still takes part"
    assert [c.device for c in m.handle(Advanced("train", b"base"), 10.0) if isinstance(c, Send)] == [
        "a",
        "b",
        "c",
    ]


def test_a_flapping_device_gets_only_the_places_that_steady_devices_leave():
    m = flappy(quorum=2, cohort=2, gather=4)
    flap(m, "c", 4, 0.0)
    for device in "dab":
        m.handle(Joined(device), 10.0)
    assert len(m.cohort) == 2 and "c" not in m.cohort


def test_a_round_with_too_few_steady_devices_starts_after_the_patience_with_flapping_ones():
    m = flappy(quorum=2)
    flap(m, "c", 4, 1.0)
    m.handle(Joined("a"), 9.0)
    assert m.wake_at == 109.0
    assert m.handle(Woke(), 109.0) and m.cohort == ("a", "c")


def test_a_device_is_steady_again_after_the_flap_time_without_a_loss():
    m = flappy(quorum=2)
    m.handle(Joined("c"), 0.0)
    flap(m, "c", 3, 1.0)
    assert m.flaps.flapping(62.9) == {"c"} and not m.flaps.flapping(63.1)
    flap(m, "c", 1, 62.0)
    assert m.flaps.flapping(121.0) == {"c"}, "one more loss extends the time"
    assert not m.flaps.flapping(122.1)
    flap(m, "c", 1, 130.0)
    assert not m.flaps.flapping(130.0), "one loss after that time does not count"


def test_a_repeated_will_does_not_count_as_a_second_loss():
    m = flappy(quorum=2)
    m.handle(Joined("c"), 0.0)
    for _ in range(5):
        m.handle(Left("c"), 1.0)
    assert not m.flaps.flapping(1.0)


@pytest.mark.parametrize(
    "rules",
    [
        {"spares": 1},
        {"spares": -1, "cohort": 2},
        {"straggler_factor": 0.5},
        {"flaps": 1},
        {"flap_seconds": -1.0},
    ],
)
def test_impossible_settings_are_refused_with_their_value(rules):
    with pytest.raises(ValueError, match=r"is -?[01]"):
        Policy(**rules)


def test_a_repeated_task_is_timed_from_its_first_copy():
    """Two of five devices leave during their work. Without a quorum the round begins again, and they come back."""
    rules = {"straggler_factor": 1.5, "patience_seconds": 50.0, "grace_seconds": 10.0, "settle_seconds": 5.0}
    m = machine(cohort=5, quorum=4, gather=5, **rules)
    started(m, "abcde")
    for device, at in (("a", 5.0), ("b", 6.0), ("c", 7.0)):
        answer(m, device, at)
    for device in "de":
        m.handle(Left(device), 8.0)
    assert Rollback in map(type, m.handle(Woke(), 50.0))
    for device in "de":
        m.handle(Joined(device), 52.0)
    m.handle(Woke(), 57.0)
    m.handle(Advanced("train", b"base"), 57.0)
    answer(m, "d", 60.0)
    assert m.wake_at == 1.5 * 60.0
