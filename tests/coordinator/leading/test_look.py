"""A process waits before it leads only as long as another coordinator may still come."""

import random

import pytest

from protofleet.coordinator.leading.leadership import Leadership
from protofleet.coordinator.leading.look import (
    Blocked,
    Clear,
    Look,
    Passed,
    Rank,
    Reconnect,
    SendProbe,
    SendStepDown,
    Taken,
)
from protofleet.coordinator.leading.place import Place, described
from protofleet.coordinator.spool.epochs import process_identity
from protofleet.protocol.link.standby import SeenState
from protofleet.protocol.wire.messages import CONNECTION_LOST, HERE, State

HERE_WHO = "hall-1 pid 7 folder 0123abcd start 00000001"
BEFORE = "hall-1 pid 5 folder 0123abcd start 00000002"
OTHER = "hall-2 pid 9 folder 0123abcd start 00000003"


def look(**more):
    return Look("lab", Place.of(HERE_WHO), dice=random.Random(1), **more)


def said(online=True, reason="", who=OTHER, epoch=50, retained=True, run="spring", runs=None):
    return SeenState(epoch, run, State(online, reason, who, runs=runs), retained)


def begin(rules, state=None, nobody=True):
    orders = rules.connected(0.0)
    if state is not None:
        orders += rules.seen(state, 0.01)
    if nobody:
        orders += rules.nobody_listens(0.02)
    return orders


def seconds_until_clear(rules):
    """Return the length of the wait if no more messages arrive."""
    now = 0.02
    while rules.result is None:
        now = rules.wake_at
        assert now < 1000
        rules.wake(now)
    assert isinstance(rules.result, Clear), rules.result
    return now


LOST = said(False, CONNECTION_LOST)
ENDED = said(False, "signal: SIGTERM")


@pytest.mark.parametrize(
    ("state", "nobody", "seconds"),
    [
        (None, True, 0.1),
        (ENDED, True, 0.02),
        (said(who=BEFORE), True, 0.02),
        (said(False, CONNECTION_LOST, who=BEFORE), True, 0.02),
        (LOST, True, 5.01),
        (said(), True, 60.0),
        (said(False, CONNECTION_LOST, who="another program"), True, 5.01),
        (None, False, 5.0),
        (ENDED, False, 5.01),
        (LOST, False, 5.01),
        (said(who=BEFORE), False, 2.0),
        (said(), False, 60.0),
    ],
)
def test_the_wait_depends_on_the_last_state_and_on_a_present_listener(state, nobody, seconds):
    rules = look()
    assert begin(rules, state, nobody)[:1] == [SendProbe()]
    assert seconds_until_clear(rules) == pytest.approx(seconds)
    assert rules.result == Clear(state.epoch if state else 0)


@pytest.mark.parametrize("reason", ["", HERE])
def test_a_live_answer_ends_the_look_and_the_result_names_the_leading_coordinator(reason):
    rules = look()
    begin(rules, nobody=False)
    rules.seen(said(reason=reason, retained=False, runs=("spring", "red")), 0.1)
    assert isinstance(rules.result, Taken)
    assert rules.result.words == (
        "hall-2 (pid 9) is the coordinator of lab, epoch 50, runs spring and red; --take-over ends it"
    )


def test_a_live_answer_from_the_same_host_and_folder_counts_like_that_of_another_host():
    """Two containers may have the same name and the same path."""
    rules = look()
    begin(rules, said(who=BEFORE), nobody=False)
    rules.seen(said(who=BEFORE, retained=False), 0.5)
    assert isinstance(rules.result, Taken)


def test_an_answer_that_the_run_is_over_ends_the_wait():
    rules = look()
    begin(rules, ENDED, nobody=False)
    rules.seen(said(False, "finished", retained=False), 0.1)
    assert rules.result == Clear(50)


def test_a_probe_is_repeated_each_second():
    rules = look()
    orders = begin(rules, said())
    for now in range(1, 5):
        assert rules.wake_at == pytest.approx(float(now))
        orders += rules.wake(float(now))
    assert orders == [SendProbe()] * 5


def test_a_will_that_comes_during_the_wait_leaves_five_seconds():
    rules = look()
    begin(rules, said())
    rules.seen(said(False, CONNECTION_LOST, retained=False), 30.0)
    assert seconds_until_clear(rules) == pytest.approx(35.0)


def test_a_take_over_repeats_its_request_each_second_and_waits_five_seconds():
    rules = look(take_over=True)
    begin(rules, nobody=False)
    assert rules.seen(said(retained=False), 0.5) == [SendStepDown(50)]
    assert rules.wake(1.0) == [SendStepDown(50)]
    assert seconds_until_clear(rules) == pytest.approx(5.5)


def test_a_take_over_continues_when_the_other_is_offline_and_does_not_end_a_later_coordinator():
    rules = look(take_over=True)
    begin(rules, nobody=False)
    rules.seen(said(retained=False), 0.5)
    rules.seen(said(False, "another coordinator takes over", retained=False), 0.6)
    assert rules.result == Clear(50)
    rules = look(take_over=True)
    begin(rules, nobody=False)
    rules.seen(said(retained=False), 0.5)
    rules.seen(said(epoch=51, retained=False), 0.6)
    assert isinstance(rules.result, Taken) and "epoch 51" in rules.result.words
    assert "--take-over" not in rules.result.words


def test_a_take_over_waits_five_seconds_for_a_coordinator_that_does_not_answer():
    rules = look(take_over=True)
    begin(rules, said(), nobody=False)
    assert seconds_until_clear(rules) == pytest.approx(5.0)


def test_a_process_that_is_cut_pauses_and_tries_again_and_stops_after_six_cuts():
    rules, now = look(), 0.0
    for _ in range(5):
        rules.connected(now)
        assert rules.lost(True, now) == []
        assert 2.0 <= rules.wake_at - now <= 8.0
        now = rules.wake_at
        assert rules.wake(now) == [Reconnect()]
    rules.connected(now)
    rules.lost(True, now)
    assert isinstance(rules.result, Blocked) and "standby of lab 6 times" in rules.result.reason


def test_the_highest_epoch_of_the_look_counts_also_after_a_late_will():
    rules = look()
    begin(rules, said(epoch=60), nobody=False)
    rules.seen(said(False, CONNECTION_LOST, epoch=50, retained=False), 1.0)
    seconds_until_clear(rules)
    assert rules.result == Clear(60)


def test_the_report_that_no_client_listens_counts_for_one_connection_only():
    rules = look()
    begin(rules, LOST)
    rules.lost(True, 0.1)
    now = rules.wake_at
    rules.wake(now)
    rules.connected(now)
    rules.seen(ENDED, now + 0.01)
    assert rules.result is None
    rules.nobody_listens(now + 0.02)
    assert rules.result == Clear(50)


def test_after_another_end_of_a_connection_the_transport_connects_again():
    rules = look()
    rules.connected(0.0)
    rules.lost(False, 1.0)
    assert rules.wake_at == float("inf") and rules.wake(100.0) == []
    assert rules.connected(100.0) == [SendProbe()]


MINE = Rank(50, HERE_WHO)


@pytest.mark.parametrize(
    ("state", "nobody", "seconds"),
    [
        (said(who=HERE_WHO), False, 0.01),
        (said(False, CONNECTION_LOST, who=HERE_WHO), True, 0.02),
        (said(False, CONNECTION_LOST, who=HERE_WHO), False, 5.0),
        (said(epoch=49, retained=False), False, 0.01),
        (None, True, 0.1),
    ],
)
def test_a_cut_coordinator_connects_again_if_no_other_coordinator_outranks_it(state, nobody, seconds):
    rules = look(rank=MINE)
    begin(rules, state, nobody)
    assert seconds_until_clear(rules) == pytest.approx(seconds, abs=0.02)


@pytest.mark.parametrize("state", [said(epoch=51), said(False, CONNECTION_LOST, epoch=51), said()])
def test_a_cut_coordinator_ends_if_another_coordinator_had_precedence(state):
    rules = look(rank=MINE)
    begin(rules, state, nobody=False)
    assert isinstance(rules.result, Taken)


@pytest.mark.parametrize(
    ("state", "nobody", "seconds"),
    [
        (None, True, 0.1),
        (said(epoch=49), True, 0.02),
        (said(False, CONNECTION_LOST, epoch=49), True, 0.02),
        (said(epoch=49), False, 2.0),
        (None, False, 2.0),
    ],
)
def test_the_second_look_of_a_start_waits_only_for_a_present_listener(state, nobody, seconds):
    rules = look(claimed=MINE)
    begin(rules, state, nobody)
    assert seconds_until_clear(rules) == pytest.approx(seconds, abs=0.02)


@pytest.mark.parametrize("epoch", [49, 50, 51])
def test_the_second_look_of_a_start_finds_a_coordinator_that_answers_with_any_epoch(epoch):
    rules = look(claimed=MINE)
    begin(rules, nobody=False)
    rules.seen(said(epoch=epoch, retained=False, reason=HERE), 0.1)
    assert isinstance(rules.result, Taken) and rules.result.words.endswith("--take-over ends it")


@pytest.mark.parametrize("state", [said(epoch=51), said(False, "finished", epoch=51), said()])
def test_the_second_look_of_a_start_finds_a_past_coordinator_that_had_precedence(state):
    rules = look(claimed=MINE)
    begin(rules, state)
    assert rules.result == Passed(state)


def test_within_one_epoch_the_greater_name_has_precedence_and_an_unknown_name_has_none():
    assert Rank(50, "a").is_below(said(who="b")) and not Rank(50, "b").is_below(said(who="a"))
    assert not Rank(50, "").is_below(said(who="b")) and Rank(50, "").is_below(said(epoch=51))


def test_the_place_of_a_process_is_read_from_its_identity(tmp_path):
    who = process_identity(tmp_path)
    place = Place.of(who)
    assert place and place.has_folder_of(process_identity(tmp_path))
    assert not place.has_folder_of(process_identity(tmp_path / "other"))
    assert Place.of("some words") is None and not place.has_folder_of("some words")


@pytest.mark.parametrize(
    ("state", "line"),
    [
        (said(), "hall-2 (pid 9) is the coordinator of lab, epoch 50, run spring"),
        (said(runs=()), "hall-2 (pid 9) is the coordinator of lab, epoch 50, no runs"),
        (said(runs=("a", "b", "c")), "hall-2 (pid 9) is the coordinator of lab, epoch 50, runs a, b and c"),
        (said(who="x\ny", run=""), "x?y is the coordinator of lab, epoch 50, no runs"),
        (said(who=""), "another process is the coordinator of lab, epoch 50, run spring"),
    ],
)
def test_the_description_names_host_process_epoch_and_runs(state, line):
    assert described(state, "lab").replace("\\n", "?") == line


def test_a_coordinator_answers_one_probe_a_second():
    rules = Leadership(MINE)
    assert [rules.answers_probe(now) for now in (0.0, 0.5, 0.99, 1.0, 1.5)] == [
        True,
        False,
        False,
        True,
        False,
    ]


def test_a_birth_follows_a_replaced_state_at_most_every_ten_seconds():
    rules = Leadership(MINE)
    rules.state_seen(40, State(False, CONNECTION_LOST, OTHER), False, 100.0)
    assert not rules.gives_birth(100.9) and rules.gives_birth(101.0) and not rules.gives_birth(200.0)
    rules.state_seen(50, State(False, "", HERE_WHO), False, 102.0)
    assert not rules.gives_birth(110.9) and rules.gives_birth(111.0)


@pytest.mark.parametrize(
    ("state", "retained"),
    [(State(False, CONNECTION_LOST, OTHER), True), (State(True, HERE, OTHER), False)],
)
def test_a_retained_will_and_a_state_that_is_not_retained_cause_no_birth(state, retained):
    rules = Leadership(MINE)
    rules.state_seen(40, state, retained, 100.0)
    assert not rules.gives_birth(1000.0)


def test_the_sixth_cut_within_ten_minutes_is_too_many():
    rules = Leadership(MINE)
    assert [rules.was_cut(100.0 * number) for number in range(7)] == [False] * 5 + [True, True]
    rules = Leadership(MINE)
    assert not any(rules.was_cut(121.0 * number) for number in range(20))
