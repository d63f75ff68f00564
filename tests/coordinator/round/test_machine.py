"""The invariants of a round hold for all events in any order."""

import statistics
from collections import Counter
from copy import deepcopy
from dataclasses import replace
from functools import partial

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from protofleet.coordinator.round.events import (
    Accept,
    Advance,
    Advanced,
    Answered,
    Blame,
    Blamed,
    Budgeted,
    Close,
    Deselected,
    Dismiss,
    Diverge,
    Drop,
    Extended,
    Finish,
    IllegalEventError,
    Joined,
    Left,
    Paused,
    PutAside,
    Recovered,
    Repeat,
    Rollback,
    Save,
    Send,
    Stage,
    Stopped,
    Unenrolled,
    Woke,
)
from protofleet.coordinator.round.machine import RoundMachine
from protofleet.coordinator.round.policy import Policy
from protofleet.protocol.wire.names import EVALUATE
from protofleet.protocol.wire.reasons import Problem, Reason
from tests.support.run_policy import RunPolicy
from tests.support.steps import Name, steps_of

DEVICES = [f"d{i}" for i in range(5)]
PHASES = ("train", "mix")
POLICY = RunPolicy(
    rounds=3, quorum=2, cohort=3, patience_seconds=10.0, grace_seconds=3.0, settle_seconds=1.0, straggler_factor=0.0
)  # fmt: skip
WRONG = Problem(Reason.WRONG_SHAPE, "means is (9, 64), not (10, 64)")

EVENTS = {
    Joined: Joined("z"),
    Left: Left("a"),
    Unenrolled: Unenrolled("a"),
    Deselected: Deselected("a"),
    Answered: Answered("a", 1, "train", b"base"),
    Advanced: Advanced("train", b"base"),
    Blamed: Blamed(Recovered(1, 0, tuple("abcd"), {"train": tuple("abcd")}), "train", ("d",), "too large"),
    Budgeted: Budgeted(frozenset({"d"}), frozenset(), 1, 3),
    Extended: Extended(5),
    Paused: Paused("paused by local:ann"),
    Stopped: Stopped("stopped by local:ann"),
    Woke: Woke(),
}
ONLY_AT = {
    Advanced: Stage.COMPUTING,
    Blamed: Stage.BLAMING,
}  # Only the worker of the coordinator sends these.


def assert_refused(m, event, now):
    before = deepcopy(vars(m))
    refused = ""
    try:
        m.handle(event, now)
    except IllegalEventError as error:
        refused = str(error)
    assert refused.startswith(type(event).__name__) and refused.endswith(m.stage.name.lower())
    assert vars(m) == before


class AnyWeather(RuleBasedStateMachine):
    """Devices that join, leave, and answer late, twice and wrongly, and a coordinator that dies at any moment.

    The test keeps its own disk, which only the commands fill, as in the service.
    """

    machine_class = RoundMachine
    policy = POLICY

    def __init__(self):
        super().__init__()
        self.now, self.said = 0.0, []
        self.unenrolled = set()
        self.deselected = set()
        self.reborn = 0  # Number of commands of earlier processes.
        # Whether a device was silent after the last step, and the rounds in which one was silent.
        self.had_silent, self.rounds_with_silent = False, set()
        self.machine = self.machine_class(self.policy, self.policy.rounds)
        self.thinking = None  # the Advance that the worker has in hand
        self.disk = {"save": None, "closed": {}, "accepted": {}}
        self.history = []  # (round, attempt, phase, devices) that reached the server half

    def happen(self, event):
        self.perform(self.machine.handle(event, self.now))

    def perform(self, commands):
        self.said += commands
        for command in commands:
            match command:
                case Save():
                    self.disk["save"] = command
                    rounds = {k: v for k, v in self.disk["accepted"].items() if k[0] >= command.round}
                    self.disk["accepted"] = rounds
                    self.disk["closed"] = {
                        k: v for k, v in self.disk["closed"].items() if k[0] >= command.round
                    }
                case Rollback():
                    self.disk["closed"] = {}
                case Close(round, phase, devices):
                    self.disk["closed"][round, phase] = devices
                case Accept(device, round, phase):
                    self.disk["accepted"].setdefault((round, phase), {})[device] = self.machine.base
                case Advance(round, phase, devices):
                    self.thinking = command
                    self.history.append((round, self.machine.attempt, phase, devices))

    @rule(device=st.sampled_from(DEVICES))
    def join(self, device):
        self.unenrolled.discard(device)
        self.deselected.discard(device)
        self.happen(Joined(device))

    @rule(device=st.sampled_from(DEVICES))
    def lose_its_record(self, device):
        self.unenrolled.add(device)
        self.happen(Unenrolled(device))

    @rule(device=st.sampled_from(DEVICES))
    def lose_its_place_in_the_selection(self, device):
        self.deselected.add(device)
        self.happen(Deselected(device))

    @rule(device=st.sampled_from(DEVICES))
    def leave(self, device):
        self.happen(Left(device))

    @rule(
        device=st.sampled_from(DEVICES),
        back=st.integers(0, 1),
        phase=st.sampled_from((*PHASES, EVALUATE)),
        stale=st.booleans(),
        problem=st.sampled_from([None, None, None, WRONG]),
    )
    def answer(self, device, back, phase, stale, problem):
        base = b"?" if stale else self.base(phase)
        self.happen(Answered(device, self.machine.round - back, phase, base, problem))

    @precondition(lambda self: self.machine.stage is Stage.COLLECTING)
    @rule()
    def each_device_answers(self):
        for device in self.machine.cohort:
            if self.machine.stage is Stage.COLLECTING:
                self.happen(Answered(device, self.machine.round, self.machine.asked, self.machine.base))

    @precondition(lambda self: self.thinking is not None)
    @rule()
    def server_half_is_done(self):
        done, self.thinking = self.thinking, None
        last = done.round > self.policy.rounds or done.phase == PHASES[-1]
        if done.phase is not None and last:
            self.happen(Advanced(None))
        else:
            following = PHASES[0] if done.phase is None else PHASES[1]
            phase = EVALUATE if done.evaluate or done.round > self.policy.rounds else following
            self.happen(Advanced(phase, self.base(phase)))

    @rule()
    def server_half_sends_an_unexpected_event(self):
        for event, stage in ONLY_AT.items():
            if self.machine.stage is not stage:
                assert_refused(self.machine, EVENTS[event], self.now)

    @rule(seconds=st.floats(0, 15))
    def wait(self, seconds):
        self.now += seconds
        if self.machine.wake_at is not None and self.now >= self.machine.wake_at:
            self.happen(Woke())

    @rule()
    def crash(self):
        """Kill the coordinator, start a machine from the disk alone, and let present devices send hellos again."""
        self.reborn = len(self.said)
        present, self.machine, self.thinking = (
            sorted(self.machine.roster),
            self.machine_class(self.policy, self.policy.rounds),
            None,
        )
        if saved := self.disk["save"]:
            closed = {phase: d for (r, phase), d in self.disk["closed"].items() if r == saved.round}
            accepted = {phase: d for (r, phase), d in self.disk["accepted"].items() if r == saved.round}
            past = Recovered(
                saved.round, saved.attempt, saved.cohort, closed, accepted, ended_early=self.disk.get("end")
            )
            self.perform(self.machine.resume(past))
        self.unenrolled = set()
        self.deselected = set()
        for device in present:
            self.happen(Joined(device))

    def base(self, phase):
        """Return the base of a broadcast, which depends on all that the server half has seen since the save."""
        m = self.machine
        seen = (m.round, phase, self.disk["closed"].get((m.round, PHASES[0])) if phase == "mix" else None)
        return repr(seen).encode()

    @invariant()
    def saves_before_it_sends(self):
        saved = 0
        for command in self.said:
            saved = max(saved, command.round) if isinstance(command, Save) else saved
            assert not isinstance(command, Send) or command.round <= saved

    @invariant()
    def a_phase_is_durable_before_the_server_half_sees_it(self):
        for before, command in zip([None, *self.said], self.said):
            if isinstance(command, Advance) and command.phase is not None and isinstance(before, Close):
                assert before.devices == command.devices

    @invariant()
    def the_server_half_gets_sorted_devices_and_at_least_a_quorum(self):
        for number, _, phase, devices in self.history:
            assert list(devices) == sorted(set(devices))
            assert phase in (None, EVALUATE) or len(devices) >= self.policy.quorum

    @invariant()
    def a_phase_of_one_attempt_always_ends_with_the_same_devices(self):
        ended = {}
        for number, attempt, phase, devices in self.history:
            if phase is not None:
                assert ended.setdefault((number, attempt, phase), devices) == devices

    @invariant()
    def no_device_is_asked_again_after_its_answer(self):
        """Check that no device is asked again after an accepted or a refused answer while the phase is open."""
        said = set()
        for command in self.said[self.reborn :]:
            match command:
                case Save() | Close() | Rollback():
                    said = set()
                case Accept(device) | Drop(device, verdict="refused") if device in self.machine.cohort:
                    said |= {device} if command.round == self.machine.round else set()
                case Send(device):
                    assert device not in said

    @invariant()
    def an_answer_is_accepted_once(self):
        accepted = Counter(
            (c.device, c.round, c.phase, a)
            for c, a in zip(self.said, self.attempts())
            if isinstance(c, Accept)
        )
        assert not accepted or max(accepted.values()) == 1

    def attempts(self):
        attempt = 0
        for command in self.said:
            attempt = attempt + 1 if isinstance(command, Rollback) else attempt
            yield attempt

    @invariant()
    def rounds_only_go_up(self):
        rounds = [c.round for c in self.said if isinstance(c, Save)]
        assert rounds == sorted(rounds)

    @invariant()
    def the_cohort_has_only_present_devices(self):
        assert set(self.machine.cohort) <= set(DEVICES) and len(self.machine.cohort) <= max(3, len(DEVICES))
        # The silent device that is asked in addition may have answered since, and then it is not silent any more.
        if self.machine.silent.devices or self.had_silent:
            self.rounds_with_silent.add(self.machine.round)
        self.had_silent = bool(self.machine.silent.devices)
        if not self.machine.evaluating:
            in_addition = 1 if self.machine.round in self.rounds_with_silent else 0
            most = self.policy.cohort + self.policy.spares + in_addition
            assert len(self.machine.cohort) <= most or self.reborn

    @invariant()
    def the_machine_gives_no_new_command_after_the_end(self):
        if self.machine.stage is Stage.FINISHED:
            words = [c for c in self.said if not isinstance(c, Drop | Repeat | Dismiss)]
            assert isinstance(words[-1], Finish)

    @invariant()
    def the_machine_has_a_wake_up_time_while_it_waits(self):
        m = self.machine
        if m.stage is Stage.COLLECTING:
            assert m.wake_at is not None and m.wake_at <= self.now + self.policy.patience_seconds
        if m.stage is Stage.GATHERING and len(m.roster - self.deselected) >= self.policy.quorum:
            assert m.wake_at is not None
        if m.stage in (Stage.COMPUTING, Stage.BLAMING, Stage.FINISHED):
            assert m.wake_at is None

    @invariant()
    def no_phase_stays_open_after_all_devices_have_answered(self):
        m = self.machine
        over = m.answered | m.verdicts.refused.keys() | self.unenrolled
        assert m.stage is not Stage.COLLECTING or set(m.cohort) - over

    def teardown(self):
        """Check liveness: the run ends when no more faults happen and a quorum is present."""
        for device in DEVICES:
            self.join(device)
        for _ in range(200):
            if self.machine.stage is Stage.FINISHED:
                self.join(DEVICES[0])
                assert self.machine.stage is Stage.FINISHED and isinstance(self.said[-1], Dismiss)
                return
            if self.thinking is not None:
                self.server_half_is_done()
            elif self.machine.stage is Stage.COLLECTING:
                self.each_device_answers()
            else:
                self.wait(1.0)
        raise AssertionError(f"still {self.machine.stage} in round {self.machine.round}")


AnyWeather.TestCase.settings = settings(max_examples=120, stateful_step_count=40, deadline=None)
TestAnyWeather = AnyWeather.TestCase


def machine(rounds=2, **rules):
    return RoundMachine(
        Policy(**{"quorum": 2, "settle_seconds": 0.0, "straggler_factor": 0.0, **rules}), rounds
    )


def started(m, devices="abc", phase="train"):
    for device in devices:
        m.handle(Joined(device), 0.0)
    m.handle(Woke(), 0.0)
    return m.handle(Advanced(phase, b"base"), 0.0)


def answer(m, device, now=1.0, **changed):
    event = {"device": device, "round": 1, "phase": "train", "base": b"base", **changed}
    return m.handle(Answered(**event), now)


def at(stage):
    m, _ = in_round_two() if stage is Stage.BLAMING else (machine(quorum=2, gather=3), None)
    match stage:
        case Stage.GATHERING:
            m.handle(Joined("a"), 0.0)
        case Stage.COMPUTING:
            for device in "abc":
                m.handle(Joined(device), 0.0)
        case Stage.BLAMING:
            all_nan(m, "abc")
        case Stage.COLLECTING:
            started(m)
        case Stage.FINISHED:
            started(m)
            all_nan(m, "ab")
    assert m.stage is stage
    return m


@pytest.mark.parametrize("event", EVENTS)
@pytest.mark.parametrize("stage", Stage)
def test_an_event_is_handled_in_its_stages_and_refused_without_a_change_in_others(stage, event):
    m = at(stage)
    if ONLY_AT.get(event, stage) is stage:
        m.handle(EVENTS[event], 1.0)
    else:
        assert_refused(m, EVENTS[event], 1.0)


def test_the_table_has_a_row_for_each_stage_and_names_only_known_events():
    assert RoundMachine.HANDLERS.keys() == set(Stage)
    assert {event for row in RoundMachine.HANDLERS.values() for event in row} == EVENTS.keys()


def test_a_round_waits_for_the_whole_cohort():
    m = machine(quorum=3)
    assert [c.device for c in started(m)] == ["a", "b", "c"]
    assert answer(m, "c") == [Accept("c", 1, "train")]
    assert answer(m, "a") == [Accept("a", 1, "train")]
    assert answer(m, "b")[1:] == [Close(1, "train", ("a", "b", "c")), Advance(1, "train", ("a", "b", "c"))]


def test_the_deadline_closes_a_round_that_has_its_quorum():
    m = machine(cohort=3, quorum=2, patience_seconds=5.0, settle_seconds=1.0)
    for device in "abc":
        m.handle(Joined(device), 0.0)
    m.handle(Advanced("train", b"base"), 0.0)
    answer(m, "a"), answer(m, "b")
    assert m.wake_at == 5.0 and m.handle(Woke(), 4.9) == []
    assert m.handle(Woke(), 5.0)[0] == Close(1, "train", ("a", "b"))
    (late,) = answer(m, "c", now=6.0)
    assert isinstance(late, Drop) and late.verdict == "late"


def test_a_round_without_a_quorum_at_the_deadline_begins_again_and_keeps_its_answers():
    m = machine(cohort=2, quorum=2, patience_seconds=5.0)
    for device in "ab":
        m.handle(Joined(device), 0.0)
    m.handle(Advanced("train", b"base"), 0.0)
    answer(m, "a")
    commands = m.handle(Woke(), 5.0)
    assert commands[0] == Rollback() and commands[1] == Save(1, 1, ("a", "b"))
    sends = m.handle(Advanced("train", b"base"), 6.0)
    assert [c.device for c in sends] == ["b"]  # The answer of "a" stays valid, because the task is the same.


def test_a_round_that_begins_again_asks_all_devices_its_first_phase_again():
    """This includes devices that did not answer it the first time: no phase of the failed attempt has ended."""
    m = machine(cohort=3, quorum=2, patience_seconds=5.0, settle_seconds=1.0)
    for device in "abc":
        m.handle(Joined(device), 0.0)
    m.handle(Advanced("train", b"base"), 0.0)
    answer(m, "a"), answer(m, "b")
    assert m.handle(Woke(), 5.0)[0] == Close(1, "train", ("a", "b"))
    m.handle(Advanced("mix", b"mixed"), 6.0)
    assert m.handle(Woke(), 11.0)[:2] == [Rollback(), Save(1, 1, ("a", "b", "c"))]
    again = m.handle(Advanced("train", b"base"), 12.0)
    assert [c.device for c in again if isinstance(c, Send)] == ["c"]


def test_a_round_waits_for_a_device_that_left_only_for_the_grace_time():
    m = machine(cohort=3, quorum=2, patience_seconds=100.0, grace_seconds=3.0, settle_seconds=1.0)
    for device in "abc":
        m.handle(Joined(device), 0.0)
    m.handle(Advanced("train", b"base"), 0.0)
    answer(m, "a"), answer(m, "b")
    m.handle(Left("c"), 2.0)
    assert m.wake_at == 5.0
    assert m.handle(Joined("c"), 3.0) == [
        Send("c", 1, "train", 97.0)
    ]  # It is back within the grace time, so it is asked again.
    assert m.wake_at == 100.0


def test_a_round_does_not_wait_for_a_device_that_is_no_longer_enrolled():
    m = machine(cohort=3, quorum=2, patience_seconds=100.0, grace_seconds=3.0, settle_seconds=1.0)
    started(m)
    answer(m, "a"), answer(m, "b")
    m.handle(Left("c"), 1.5)
    closed, advanced = m.handle(Unenrolled("c"), 2.0)
    assert closed == Close(1, "train", ("a", "b")) and advanced == Advance(1, "train", ("a", "b"))


def test_a_round_begins_again_at_once_if_removed_devices_make_a_quorum_impossible():
    m = machine(cohort=2, quorum=2, patience_seconds=100.0, settle_seconds=1.0)
    started(m, "ab")
    answer(m, "a")
    assert m.handle(Unenrolled("b"), 2.0) == [Rollback()] and m.stage is Stage.GATHERING
    assert m.handle(Joined("b"), 3.0) == [Save(1, 1, ("a", "b")), Advance(1, None, ())], (
        "device b was enrolled again"
    )
    assert [c.device for c in m.handle(Advanced("train", b"base"), 4.0)] == ["b"]


def test_a_repeated_round_asks_no_device_that_the_run_does_not_select_any_more():
    m = machine(quorum=2, gather=3, cohort=3, patience_seconds=100.0)
    started(m, "abc")
    assert m.handle(Deselected("c"), 1.0) == [] and m.cohort == ("a", "b", "c")
    answer(m, "a")
    m.handle(Unenrolled("b"), 1.5)
    m.handle(Joined("b"), 1.6)
    repeated = m.handle(Woke(), 101.5)
    assert repeated[1:] == [Save(1, 1, ("a", "b")), Advance(1, None, ())]
    m.handle(Joined("c"), 102.0)
    m.handle(Advanced("train", b"base"), 102.0)
    again = m.handle(Unenrolled("b"), 103.0)
    assert again[1] == Save(1, 2, ("a", "c")), "the run selects it again"


def test_a_device_that_was_removed_during_a_server_step_gets_no_task_also_in_a_replay():
    for resumed in (False, True):
        m = machine(quorum=2, gather=3)
        if resumed:
            m.resume(Recovered(1, 0, tuple("abc"), roster=tuple("abc")))
        else:
            for device in "abc":
                m.handle(Joined(device), 0.0)
        assert m.stage is Stage.COMPUTING and m.handle(Unenrolled("c"), 0.0) == []
        assert m.cohort == ("a", "b", "c"), "the server half gets the saved cohort"
        assert [c.device for c in m.handle(Advanced("train", b"base"), 0.0)] == ["a", "b"]


def test_the_same_answer_is_acknowledged_again_and_another_answer_is_refused():
    m = machine(quorum=3)
    started(m)
    answer(m, "a")
    assert answer(m, "a") == [Repeat("a", 1, "train")]
    (drop,) = answer(m, "b", problem=WRONG)
    assert drop == Drop("b", 1, "train", "refused", WRONG)
    (drop,) = answer(m, "z")
    assert drop.problem.message == "not in this round's cohort"
    (drop,) = answer(m, "c", base=b"other")
    assert drop.verdict == "late"


def test_the_cohort_is_a_seeded_draw():
    def draw(seed):
        m = RoundMachine(Policy(quorum=2, cohort=4, settle_seconds=1.0), 1, seed)
        for i in range(20):
            m.roster.add(f"d{i:02}")
        m.handle(Woke(), 0.0), m.handle(Woke(), 1.0)
        return m.cohort

    assert draw(1) == draw(1) != draw(2) and len(draw(1)) == 4 and list(draw(1)) == sorted(draw(1))


@pytest.mark.parametrize("order", [(0, 1, 2, 3, 4), (4, 2, 0, 1, 3)])
def test_the_first_round_waits_for_all_devices_and_draws_the_same_cohort_in_any_order(order):
    m = machine(cohort=2, quorum=2, gather=5)
    for at, number in enumerate(order):
        assert m.stage is Stage.GATHERING
        m.handle(Joined(f"d{number}"), float(at))
    assert m.stage is Stage.COMPUTING and m.cohort == ("d2", "d4")


def test_only_the_first_round_waits_for_absent_devices_and_at_most_for_the_patience():
    m = machine(cohort=2, quorum=2, gather=5, patience_seconds=50.0)
    for number in range(3):
        m.handle(Joined(f"d{number}"), 0.0)
    assert m.stage is Stage.GATHERING and m.wake_at == 50.0
    m.handle(Woke(), 49.0)
    assert m.stage is Stage.GATHERING
    m.handle(Woke(), 50.0)
    assert m.stage is Stage.COMPUTING
    later = machine(cohort=2, quorum=2, gather=5)
    later.round = 2
    for name in "ab":
        later.handle(Joined(name), 0.0)
    assert later.stage is Stage.COMPUTING


@pytest.mark.parametrize(
    "rules",
    [
        {"quorum": 0},
        {"cohort": 1, "quorum": 2},
        {"patience_seconds": 0.0},
        {"grace_seconds": -1.0},
        {"gather": -1},
    ],
)
def test_impossible_settings_are_refused_with_their_value(rules):
    with pytest.raises(ValueError, match="is -?[01]"):
        Policy(**rules)


def dropped_or_repeated(commands):
    return [c for c in commands if isinstance(c, Drop | Repeat)]


def test_a_round_does_not_wait_for_a_refused_device():
    m = machine(quorum=2, gather=3)
    started(m)
    assert answer(m, "b", problem=WRONG) == [Drop("b", 1, "train", "refused", WRONG)]
    answer(m, "a")
    assert Close(1, "train", ("a", "c")) in answer(m, "c")


def test_a_refused_device_is_not_asked_again_and_gets_the_same_verdict():
    m = machine(quorum=2, gather=3)
    started(m)
    answer(m, "b", problem=WRONG)
    assert m.handle(Joined("b"), 2.0) == []
    assert answer(m, "b", problem=WRONG) == [Repeat("b", 1, "train", WRONG)]
    assert answer(m, "b") == [Repeat("b", 1, "train", WRONG)], "a device has one answer to a task"


def test_a_refused_device_gets_the_next_task():
    m = machine(quorum=2, gather=3)
    started(m)
    answer(m, "b", problem=WRONG), answer(m, "a"), answer(m, "c")
    m.handle(Advanced(None), 2.0)
    assert [c.device for c in m.handle(Advanced("train", b"next"), 2.0)] == ["a", "b", "c"]


def test_a_round_without_a_quorum_after_refusals_begins_again_with_other_devices_first():
    m = machine(quorum=2, cohort=2, gather=4, patience_seconds=50.0)
    for device in "abcd":
        m.handle(Joined(device), 0.0)
    m.handle(Advanced("train", b"base"), 0.0)
    first = m.cohort
    for device in first:
        last = answer(m, device, problem=WRONG)
    assert Rollback() in last and not set(m.cohort) & set(first)
    assert [c.device for c in m.handle(Advanced("train", b"base"), 2.0)] == sorted(set("abcd") - set(first))


def test_rounds_whose_answers_are_always_refused_begin_again_no_faster_than_the_patience():
    m = machine(quorum=2, gather=3, patience_seconds=50.0)
    now, attempts = 0.0, 0
    started(m)
    while now < 500.0:
        for device in sorted(set(m.cohort) - m.verdicts.refused.keys()):
            commands = answer(m, device, now=now, problem=WRONG)
        assert m.stage is Stage.GATHERING and isinstance(commands[-1], Rollback)
        assert "policy.quorum is 2; refused: a (means is (9, 64)" in commands[-1].why
        now = m.wake_at
        m.handle(Woke(), now), m.handle(Advanced("train", b"base"), now)
        attempts += 1
    assert attempts == 10


def test_a_refused_and_a_silent_device_together_delay_a_round_no_longer_than_stragglers():
    m = machine(quorum=4, gather=5, patience_seconds=600.0, straggler_factor=2.5)
    started(m, "abcde")
    answer(m, "a", now=2.0), answer(m, "b", now=3.0), answer(m, "e", now=3.0, problem=WRONG)
    assert m.wake_at == 600.0, "c and d may still make a quorum"
    answer(m, "c", now=4.0)
    assert m.wake_at == 600.0
    answer(m, "d", now=4.0, problem=WRONG)
    assert m.stage is Stage.GATHERING


@pytest.mark.parametrize("rounds_later", [1, 2, 30])
def test_an_accepted_answer_that_is_sent_again_in_a_later_round_is_accepted_again(rounds_later):
    m = machine(quorum=2, gather=3, rounds=50)
    started(m)
    answer(m, "a"), answer(m, "b"), answer(m, "c")
    for number in range(2, 2 + rounds_later):
        m.handle(Advanced(None), 2.0), m.handle(Advanced("train", b"%d" % number), 2.0)
        for device in "ab":
            answer(m, device, round=number, base=b"%d" % number)
        m.handle(Left("c"), 2.0), m.handle(Woke(), 100.0)
    assert answer(m, "c") == [Repeat("c", 1, "train")]
    assert answer(m, "a", round=number - 1, base=b"?")[0].verdict == "late"
    (late,) = answer(m, "c", base=b"other")
    assert late.verdict == "late"


def test_an_accepted_answer_is_accepted_again_after_a_crash_in_a_later_round():
    m = machine(quorum=2)
    m.resume(Recovered(2, 0, ("a", "b"), earlier={"c": (1, {"train": b"base"})}))
    assert answer(m, "c") == [Repeat("c", 1, "train")]
    m.handle(Advanced("train", b"two"), 2.0)
    assert answer(m, "c") == [Repeat("c", 1, "train")]


NAN = Problem(Reason.NOT_FINITE, "weights is not finite")


def in_round_two(**rules):
    """Return a machine after a first round of all four devices, and what the disk would know of that round."""
    m = machine(**{"quorum": 3, "gather": 4, "rounds": 5, **rules})
    started(m, "abcd")
    for device in "abcd":
        answer(m, device)
    m.handle(Advanced(None), 2.0), m.handle(Advanced("train", b"two"), 2.0)
    accepted = {"train": dict.fromkeys("abcd", b"base")}
    return m, Recovered(1, 0, tuple("abcd"), {"train": tuple("abcd")}, accepted)


@pytest.mark.parametrize(
    ("way_out", "said"),
    [("lower method.lr or method.lambda1", "; lower method.lr or method.lambda1)"), ("", ")")],
)
def test_a_run_that_diverges_names_the_settings_of_its_method(way_out, said):
    m, _ = in_round_two()
    m.way_out = way_out
    (blame,) = [c for c in all_nan(m, "abc") if isinstance(c, Blame)]
    assert f"devices have diverged in round 2 train (weights is not finite{said}" in blame.why


def all_nan(m, devices):
    for device in devices:
        commands = answer(m, device, round=m.round, base=m.base, problem=NAN)
    return commands


def test_the_round_before_is_blamed_if_most_answers_are_broken():
    m, _ = in_round_two()
    answer(m, "d", round=2, base=b"two")
    assert not any(isinstance(c, Blame) for c in all_nan(m, "ab"))
    (blame,) = [c for c in all_nan(m, "c") if isinstance(c, Blame)]
    assert (
        blame.round == 1
        and "3 of 4 devices have diverged in round 2 train (weights is not finite; lower method.lr)"
        in blame.why
    )
    assert m.stage is Stage.BLAMING


def test_the_blamed_round_is_repeated_from_the_disk_without_the_blamed_device():
    m, past = in_round_two()
    all_nan(m, "abc")
    commands = m.handle(Blamed(past, "train", ("d",), "too large"), 3.0)
    assert commands == [PutAside(1, "train", ("a", "b", "c"), ("d",), "too large"), Advance(1, None, ())]
    assert m.handle(Advanced("train", b"base"), 3.0) == [Advance(1, "train", ("a", "b", "c"))], (
        "no device is asked"
    )
    assert m.handle(Advanced(None), 3.0)[0] == Save(2, 0, ("a", "b", "c", "d"))


def test_a_round_that_fails_twice_ends_the_run_and_dismisses_all_devices():
    m, past = in_round_two()
    all_nan(m, "abc")
    m.handle(Blamed(past, "train", ("d",), "too large"), 3.0)
    m.handle(Advanced("train", b"base"), 3.0)
    m.handle(Advanced(None), 3.0), m.handle(Advanced("train", b"three"), 3.0)
    commands = all_nan(m, "abc")
    (end,) = [c for c in commands if isinstance(c, Diverge)]
    assert "round 1 was repeated without d" in end.words
    assert commands[-4:] == [Dismiss(d) for d in "abcd"] and m.stage is Stage.FINISHED


def test_the_run_ends_if_no_device_can_be_blamed():
    m, past = in_round_two()
    all_nan(m, "abc")
    assert isinstance(m.handle(Blamed(past, "train", words="none stands out"), 3.0)[0], Diverge)


def test_the_run_ends_if_its_first_phase_fails():
    m = machine(quorum=2, gather=3)
    started(m)
    (end,) = [c for c in all_nan(m, "ab") if isinstance(c, Diverge)]
    assert "no round was before it" in end.words


def test_a_later_phase_that_fails_blames_its_own_round():
    m, _ = in_round_two()
    for device in "abcd":
        answer(m, device, round=2, base=b"two")
    m.handle(Advanced("mix", b"mixed"), 3.0)
    for device in "abc":
        commands = answer(m, device, round=2, phase="mix", base=b"mixed", problem=NAN)
    assert next(c for c in commands if isinstance(c, Blame)).round == 2


def test_a_state_that_is_not_finite_blames_its_round():
    m, _ = in_round_two()
    for device in "abcd":
        answer(m, device, round=2, base=b"two")
    assert m.handle(Advanced(None, fault="w is not finite"), 3.0) == [
        Blame(2, "w is not finite", server_half=True)
    ]


def test_a_restarted_machine_knows_a_repeated_round_and_a_diverged_run():
    m = machine(quorum=2)
    m.resume(Recovered(2, 0, ("a", "b", "c"), aside={1: ("d",)}))
    m.handle(Advanced("train", b"two"), 0.0)
    assert any(isinstance(c, Diverge) for c in all_nan(m, "ab"))
    m = machine(quorum=2)
    assert m.resume(Recovered(2, 0, ("a", "b"), diverged="for good")) == [Diverge(2, "for good")]


def test_a_last_evaluation_that_ended_without_answers_is_not_repeated_after_a_restart():
    m = machine(rounds=2)
    m.resume(Recovered(3, 0, ("a", "b"), {"evaluate": ()}))
    assert m.handle(Advanced("evaluate", b"last"), 0.0) == [Advance(3, "evaluate", ())]


def test_a_device_that_was_put_aside_does_not_count_for_the_quorum_of_its_round():
    m = machine(quorum=3, gather=3, patience_seconds=10.0)
    started(m, "abc")
    past = Recovered(1, 0, tuple("abc"), {"train": tuple("abc")}, {"train": dict.fromkeys("abc", b"base")})
    for device in "abc":
        answer(m, device)
    m.handle(Advanced("mix", b"mixed"), 2.0)
    for device in "ab":
        answer(m, device, phase="mix", base=b"mixed", problem=NAN)
    m.handle(Blamed(past, "train", ("c",), "too large"), 3.0)
    m.handle(Advanced("train", b"base"), 3.0)
    assert [c.device for c in m.handle(Advanced("mix", b"other"), 3.0)] == ["a", "b"]
    answer(m, "a", phase="mix", base=b"other")
    assert Close(1, "mix", ("a", "b")) in answer(m, "b", phase="mix", base=b"other")


def steps_of_an_answer(number, quorum):
    """Count the steps of one late answer among `number` devices, when the deadline for stragglers is known.

    The result is the median of eleven answers, as hash collisions and growing tables make some of them cost more.
    """
    names = [Name(f"device-{i:03}") for i in range(number)]
    m = machine(quorum=quorum, gather=number, straggler_factor=2.5, straggler_seconds=60.0)
    started(m, names)
    for i, device in enumerate(names[:-12]):
        answer(m, device, 1.0 + i / number)
        assert m.wake_at is not None

    def one_more(device):
        answer(m, device, 2.0)
        assert m.wake_at > 2.0

    steps = [steps_of(partial(one_more, device)) for device in names[-12:-1]]
    assert set(m.cohort) == set(names) and m.stage is Stage.COLLECTING and m.waited_for == {names[-1]}
    return statistics.median(steps)


@pytest.mark.parametrize("quorum", [(2, 2), (50, 500)])
def test_the_steps_for_an_answer_do_not_grow_with_the_cohort(quorum):
    few, many = (steps_of_an_answer(n, k) for n, k in zip((50, 500), quorum, strict=True))
    assert many < 1.2 * few


def quorum_but_for_broken(m):
    """Let one of four devices answer with broken numbers in each of three attempts, while the quorum needs all.

    Return the commands at each of its answers.
    """
    said = []
    for attempt in range(3):
        for device in "abc":
            answer(m, device, round=2, base=b"two")
        said.append(answer(m, "d", round=2, base=b"two", problem=NAN))
        if m.stage is Stage.FINISHED:
            return said
        m.handle(Woke(), 1000.0 * (attempt + 2))
        m.handle(Advanced("train", b"two"), 1000.0 * (attempt + 2))
    return said


def test_a_round_without_a_quorum_because_of_broken_numbers_ends_the_run_after_its_attempts():
    for attempts in (1, 2):
        m, _ = in_round_two(quorum=4, attempts=attempts)
        said = quorum_but_for_broken(m)
        assert len(said) == attempts
        (end,) = [c for c in said[-1] if isinstance(c, Diverge)]
        assert end.words == (
            "1 of 4 devices have diverged in round 2 train (weights is not finite; lower method.lr), and "
            "policy.quorum is 4"
        )


def without(past, device, returned=()):
    """Return what the disk knows of round 1 after the answer of `device` is left out."""
    closed = tuple(d for d in past.cohort if d != device)
    return replace(past, closed={"train": closed})


def fails_once_more(m, base, broken="cd", now=3.0):
    """Let the `broken` devices of a cohort of four report that the broadcast fails, and return the last commands."""
    for device in "abcd":
        problem = NAN if device in broken else None
        commands = answer(m, device, round=2, base=base, problem=problem, now=now)
    return commands


def on_trial(**rules):
    """Let round 2 fail twice because of an answer of round 1.

    Return the machine, what the disk knows, and the Blame command.
    """
    m, past = in_round_two(**rules)
    assert any(isinstance(c, Rollback) for c in fails_once_more(m, b"two"))
    m.handle(Woke(), 1000.0), m.handle(Advanced("train", b"two"), 1000.0)
    (blame,) = [c for c in fails_once_more(m, b"two", now=1001.0) if isinstance(c, Blame)]
    assert m.stage is Stage.BLAMING
    return m, past, blame


def leave_out(m, past, device, base):
    """Leave out the answer of `device`, begin round 2 again and return the commands that go back a round."""
    commands = m.handle(Blamed(past, "train", (device,), "one at a time", trial=True), 1002.0)
    m.handle(Advanced("train", b"base"), 1002.0)
    again = m.handle(Advanced(None), 1002.0)
    assert again[0] == Save(2, 0, tuple("abcd"))
    m.handle(Advanced("train", base), 1002.0)
    return commands


def test_a_round_that_fails_twice_by_broken_answers_is_repeated_without_one_earlier_answer():
    m, past, blame = on_trial()
    assert (blame.round, blame.trial, blame.tried, blame.server_half) == (1, True, (), False)
    commands = leave_out(m, past, "d", b"without d")
    assert commands == [
        PutAside(1, "train", tuple("abc"), ("d",), "one at a time", True), Advance(1, None, ())
    ]  # fmt: skip
    for device in "abcd":
        commands = answer(m, device, round=2, base=b"without d", now=1003.0)
    assert Close(2, "train", tuple("abcd")) in commands, (
        "a device that was put aside takes part in the next round"
    )


def test_an_answer_that_was_left_out_without_success_returns_and_another_is_left_out():
    m, past, _ = on_trial()
    leave_out(m, past, "a", b"without a")
    (blame,) = [c for c in fails_once_more(m, b"without a", now=1003.0) if isinstance(c, Blame)]
    assert blame.tried == ("a",), "one more failure is enough"
    commands = leave_out(m, without(past, "a"), "d", b"without d")
    assert commands[0] == PutAside(1, "train", tuple("abc"), ("d",), "one at a time", True, ("a",))


def test_the_search_for_the_bad_answer_continues_after_a_crash_of_the_coordinator():
    m, past, _ = on_trial()
    leave_out(m, past, "a", b"without a")
    m = machine(quorum=3, gather=4, rounds=5)
    roster = tuple("abcd")
    m.resume(Recovered(2, 0, roster, roster=roster, aside={1: ("a",)}, tried={1: ("a",)}))
    m.handle(Advanced("train", b"without a"), 0.0)
    (blame,) = [c for c in fails_once_more(m, b"without a") if isinstance(c, Blame)]
    assert blame.tried == ("a",) and blame.aside == {1: ("a",)}
    assert leave_out(m, without(past, "a"), "d", b"without d")[0].returned == ("a",)


def test_the_next_answer_is_left_out_also_if_most_answers_are_broken_meanwhile():
    m, past, _ = on_trial()
    leave_out(m, past, "a", b"without a")
    for device in "abc":
        commands = answer(m, device, round=2, base=b"without a", problem=NAN, now=1003.0)
    assert [c.tried for c in commands if isinstance(c, Blame)] == [("a",)]


@pytest.mark.parametrize(("attempts", "trials"), [("auto", 4), (4, 3), (2, 0)])
def test_the_run_has_diverged_after_the_set_number_of_attempts(attempts, trials):
    """By default it has one more attempt than the cohort has devices: one with all answers, and one without each."""
    m, past = in_round_two(attempts=attempts)
    fails_once_more(m, b"two")
    m.handle(Woke(), 1000.0), m.handle(Advanced("train", b"two"), 1000.0)
    commands, left_out = fails_once_more(m, b"two", now=1001.0), []
    while not any(isinstance(c, Diverge) for c in commands):
        device = "abcd"[len(left_out)]
        known = without(past, left_out[-1]) if left_out else past
        leave_out(m, known, device, device.encode())
        left_out.append(device)
        commands = fails_once_more(m, device.encode(), now=1003.0)
    assert len(left_out) == trials and m.stage is Stage.FINISHED


def test_with_attempts_0_the_run_never_diverges():
    m, past, blame = on_trial(attempts=0)
    known = past
    for device in "abcdabcd":
        assert blame.endless
        leave_out(m, known, device, device.encode())
        (blame,) = [c for c in fails_once_more(m, device.encode(), now=1003.0) if isinstance(c, Blame)]
        known = without(past, device)


def test_attempts_that_fail_for_other_reasons_than_broken_answers_do_not_count():
    m, _ = in_round_two(patience_seconds=10.0, attempts=2)
    for attempt in range(5):
        assert any(isinstance(c, Rollback) for c in m.handle(Woke(), 100.0 * (attempt + 1)))
        m.handle(Woke(), 100.0 * (attempt + 1) + 50.0)
        m.handle(Advanced("train", b"two"), 100.0 * (attempt + 1) + 50.0)
    commands = fails_once_more(m, b"two", now=551.0)
    assert any(isinstance(c, Rollback) for c in commands) and m.stage is not Stage.FINISHED


def test_the_first_phase_of_the_first_round_blames_no_earlier_answer():
    m = machine(quorum=3, gather=4)
    started(m, "abcd")
    now = 1.0
    for attempt in range(1, 6):
        for device in "abcd":
            commands = answer(m, device, problem=NAN if device in "cd" else None, now=now)
        assert not any(isinstance(c, Blame) for c in commands)
        assert any(isinstance(c, Diverge) for c in commands) == (attempt == 5)
        if attempt < 5:
            now = m.wake_at
            m.handle(Woke(), now), m.handle(Advanced("train", b"base"), now)


def test_a_silent_device_is_not_drawn_again_and_no_round_waits_for_it():
    """With places for all devices but one, the silent device costs one patience, even if it sends a hello.

    It is asked in addition to the cohort.
    """
    m = machine(cohort=3, quorum=3, gather=4, rounds=20, grace_seconds=5.0, patience_seconds=100.0)
    now, patience_spent = 0.0, 0
    for device in "abcd":
        m.handle(Joined(device), now)
    while m.round <= 20:
        m.handle(Advanced("train", b"%d" % m.round), now)
        for device in set(m.cohort) - {"d"}:
            answer(m, device, now=now, round=m.round, base=b"%d" % m.round)
            m.handle(Joined("d"), now)
        if m.stage is Stage.COLLECTING:
            patience_spent += 1
            now = m.wake_at
            m.handle(Woke(), now)
        else:
            m.handle(Advanced(None), now)
    assert patience_spent == 1


def silent_in_round_one(**rules):
    """Return a machine whose first round was closed without device "c" after the whole patience.

    The task of the second round is open.
    """
    m = machine(quorum=2, gather=3, grace_seconds=5.0, patience_seconds=100.0, rounds=9, **rules)
    started(m)
    answer(m, "a"), answer(m, "b")
    assert m.handle(Woke(), 100.0)[0] == Close(1, "train", ("a", "b"))
    m.handle(Advanced(None), 100.0), m.handle(Advanced("train", b"two"), 100.0)
    assert m.cohort == ("a", "b", "c") and m.silent.devices == {"c"} == m.not_counted_on(100.0)
    return m


def test_a_silent_device_is_asked_if_a_place_is_free_and_its_answer_counts():
    m = silent_in_round_one()
    answer(m, "c", now=101.0, round=2, base=b"two")
    assert not m.silent.devices
    answer(m, "a", now=101.0, round=2, base=b"two")
    assert Close(2, "train", ("a", "b", "c")) in answer(m, "b", now=101.0, round=2, base=b"two")


def test_a_quorum_does_not_wait_for_a_silent_device():
    m = silent_in_round_one()
    answer(m, "a", now=101.0, round=2, base=b"two")
    m.handle(Joined("c"), 101.0)
    assert Close(2, "train", ("a", "b")) in answer(m, "b", now=101.0, round=2, base=b"two")


def test_only_a_late_answer_to_a_sent_task_ends_the_silence_of_a_device():
    m = silent_in_round_one()
    answer(m, "c", now=101.0, base=b"?"), answer(m, "c", now=101.0, round=1, phase="mix")
    assert m.silent.devices == {"c"}
    m.handle(Left("c"), 101.0), m.handle(Joined("c"), 101.0)
    assert m.silent.devices == {"c"}, "a hello is not an answer"
    answer(m, "c", now=102.0, round=2, phase="train", base=b"two")
    assert not m.silent.devices and m.wake_at == 200.0


def test_a_device_that_left_or_was_a_straggler_is_not_silent():
    m = machine(quorum=2, gather=4, grace_seconds=5.0, patience_seconds=100.0, straggler_factor=2.5)
    started(m, "abcd")
    answer(m, "a"), answer(m, "b"), answer(m, "c")
    assert isinstance(m.handle(Woke(), m.wake_at)[0], Close) and not m.silent.devices
    m = machine(quorum=2, gather=3, grace_seconds=500.0, patience_seconds=100.0)
    started(m)
    m.handle(Left("c"), 1.0), answer(m, "a"), answer(m, "b")
    assert isinstance(m.handle(Woke(), 100.0)[0], Close) and not m.silent.devices


def test_several_silent_devices_are_asked_in_turns():
    m = machine(cohort=2, quorum=2, gather=4, rounds=9)
    m.silent.gave_no_answer("cd", (0, "", b""))
    for device in "abcd":
        m.handle(Joined(device), 0.0)
    drawn = []
    for number in range(1, 5):
        drawn.append("".join(m.cohort))
        m.handle(Advanced("train", b"%d" % number), 0.0)
        for device in "ab":
            answer(m, device, round=number, base=b"%d" % number)
        m.handle(Advanced(None), 1.0)
    assert drawn == ["abc", "abd", "abc", "abd"]
