"""An operator pauses, resumes, extends or stops a run at every stage, also before and after a crash."""

import pytest
from hypothesis import settings
from hypothesis.stateful import invariant, precondition, rule

from protofleet.coordinator.round.events import (
    OPERATOR,
    Advance,
    Advanced,
    Answered,
    Dismiss,
    Drop,
    EndEarly,
    Extended,
    Finish,
    Joined,
    Left,
    Paused,
    Recovered,
    Repeat,
    Save,
    SavePause,
    SaveRounds,
    Send,
    Stage,
    Stopped,
)
from protofleet.coordinator.round.machine import RoundMachine
from protofleet.coordinator.round.policy import Policy
from tests.coordinator.round.test_machine import AnyWeather

WHY = "paused by local:ann: night"


def machine(rounds=3):
    return RoundMachine(Policy(quorum=1, settle_seconds=0.0, straggler_factor=0.0), rounds)


def gathering():
    return machine()


def computing():
    m = machine()
    m.handle(Joined("a"), 0.0)
    return m


def collecting():
    m = computing()
    m.handle(Advanced("train", b"base"), 1.0)
    return m


def at_the_end_of_the_round():
    m = collecting()
    m.handle(Answered("a", 1, "train", b"base"), 2.0)
    return m


def kinds(commands):
    return [type(command) for command in commands]


def test_a_paused_run_ends_its_open_round_and_then_sends_no_task():
    m = collecting()
    assert m.handle(Paused(WHY), 1.5) == [SavePause(WHY)]
    assert Advance in kinds(m.handle(Answered("a", 1, "train", b"base"), 2.0))
    assert m.handle(Advanced(None), 3.0) == []
    assert (m.stage, m.round, m.wake_at) == (Stage.GATHERING, 2, None)
    assert m.handle(Joined("b"), 4.0) == []
    assert kinds(m.handle(Paused(""), 1000.0)) == [SavePause, Save, Advance]
    assert m.cohort == ("a", "b")


def test_a_run_that_is_paused_before_its_first_round_begins_no_round():
    m = gathering()
    m.handle(Paused(WHY), 0.0)
    assert m.handle(Joined("a"), 1.0) == [] and m.wake_at is None
    assert kinds(m.handle(Paused(""), 2.0)) == [SavePause, Save, Advance]


def test_a_pause_also_delays_the_last_evaluation():
    m = machine(rounds=1)
    m.handle(Joined("a"), 0.0)
    m.handle(Advanced("train", b"base"), 1.0)
    m.handle(Paused(WHY), 1.5)
    m.handle(Answered("a", 1, "train", b"base"), 2.0)
    assert m.handle(Advanced(None), 3.0) == [] and m.is_last_evaluation
    assert kinds(m.handle(Paused(""), 4.0)) == [SavePause, Save, Advance]


def test_the_replay_of_a_paused_run_ends_in_the_pause():
    m = machine()
    m.paused = WHY
    m.resume(
        Recovered(2, 0, ("a",), closed={"train": ("a",)}, accepted={"train": {"a": b"base"}}, roster=("a",))
    )
    m.handle(Advanced("train", b"base"), 5.0)
    assert m.handle(Advanced(None), 6.0) == [] and m.stage is Stage.GATHERING and m.round == 3


@pytest.mark.parametrize(("begun", "saved"), [(gathering, True), (collecting, False)])
def test_a_run_that_is_stopped_between_two_server_steps_ends_at_once(begun, saved):
    m = begun()
    commands = m.handle(Stopped("stopped by local:ann"), 2.0)
    assert commands[0] == EndEarly(0, "stopped by local:ann", OPERATOR)
    assert (Save in kinds(commands)) is saved and Finish(0) in commands
    assert m.stage is Stage.FINISHED
    assert kinds(m.handle(Answered("a", 1, "train", b"base"), 3.0)) == [Drop]


def test_a_run_that_is_stopped_at_the_end_of_a_round_keeps_the_result_of_the_round():
    m = at_the_end_of_the_round()
    assert kinds(m.handle(Stopped("enough"), 2.5)) == [EndEarly]
    commands = m.handle(Advanced(None), 3.0)
    assert commands[:3] == [EndEarly(1, "enough", OPERATOR), Save(2, 0, ()), Finish(1)]


def test_a_run_that_is_stopped_while_a_task_is_computed_sends_no_task():
    m = computing()
    m.handle(Stopped("enough"), 0.5)
    commands = m.handle(Advanced("train", b"base"), 1.0)
    assert Send not in kinds(commands) and Finish(0) in commands


def test_a_stopped_run_is_over_after_a_restart():
    m = machine()
    end = EndEarly(1, "enough", OPERATOR)
    assert Finish(1) in m.resume(Recovered(2, 0, ("a",), ended_early=end))


def end_of_last_round(paused=""):
    """Return a run of one round whose server half has not ended this round yet."""
    m = machine(rounds=1)
    m.handle(Joined("a"), 0.0)
    m.handle(Advanced("train", b"base"), 1.0)
    m.paused = paused
    m.handle(Answered("a", 1, "train", b"base"), 2.0)
    return m


def test_a_run_that_is_extended_before_its_last_evaluation_continues_to_train():
    m = end_of_last_round()
    assert m.handle(Extended(2), 2.5) == [SaveRounds(2)] and m.least_rounds == 1
    assert m.handle(Advanced(None), 3.0) == [Save(2, 0, ("a",)), Advance(2, None, ())]
    held = end_of_last_round(WHY)
    held.handle(Advanced(None), 3.0)
    assert held.is_last_evaluation and not held.has_ended_training
    assert held.handle(Extended(2), 4.0) == [SaveRounds(2)]
    assert held.handle(Paused(""), 5.0)[1:] == [Save(2, 0, ("a",)), Advance(2, None, ())]


def test_a_run_evaluates_at_once_if_its_rounds_are_set_to_the_number_of_completed_rounds():
    m = collecting()
    assert m.least_rounds == 1 and not m.has_ended_training
    m.handle(Answered("a", 1, "train", b"base"), 2.0)
    m.handle(Left("a"), 2.5)
    m.handle(Advanced(None), 3.0)
    assert (m.stage, m.round, m.least_rounds) == (Stage.GATHERING, 2, 1)
    assert m.handle(Extended(1), 4.0) == [
        SaveRounds(1), Save(2, 0, ()), Advance(2, None, (), evaluate=True)
    ]  # fmt: skip
    assert m.has_ended_training


def test_a_round_that_is_only_replayed_from_the_disk_counts_as_begun():
    m = machine()
    done = {"closed": {"train": ("a",)}, "accepted": {"train": {"a": b"base"}}}
    m.resume(Recovered(1, 0, ("a",), **done, ahead=(Recovered(2, 0, ("a",)),)))
    assert (m.round, m.least_rounds, m.has_ended_training) == (1, 2, False)
    m.resume(Recovered(3, 0, ("a",), **done, ahead=(Recovered(4, 0, ("a",)),)))
    assert m.round == 3 and m.has_ended_training


class OperatedRun(AnyWeather):
    """A run with faults of devices that an operator pauses and resumes, and may stop."""

    def __init__(self):
        super().__init__()
        self.disk |= {"paused": "", "end": None}

    def machine_class(self, policy, rounds):
        made = RoundMachine(policy, rounds)
        made.paused = self.disk["paused"] if hasattr(self, "disk") else ""
        return made

    def perform(self, commands):
        for command in commands:
            match command:
                case SavePause(words):
                    self.disk["paused"] = words
                case EndEarly():
                    self.disk["end"] = command
        super().perform(commands)

    @property
    def is_open(self):
        return self.machine.stage is not Stage.FINISHED and not self.machine.is_stopped

    @precondition(lambda self: self.is_open)
    @rule()
    def pause(self):
        self.happen(Paused(WHY))

    @precondition(lambda self: self.is_open and self.machine.paused)
    @rule()
    def go_on(self):
        self.happen(Paused(""))

    @precondition(lambda self: self.is_open and self.machine.round == self.policy.rounds)
    @rule()
    def stop(self):
        self.happen(Stopped("enough"))

    @invariant()
    def begins_no_round_in_a_pause(self):
        paused = False
        for command in self.said:
            match command:
                case SavePause(words):
                    paused = bool(words)
                case Save(cohort=cohort):
                    assert not (paused and cohort)

    @invariant()
    def the_machine_has_a_wake_up_time_while_it_waits(self):
        if not self.machine.paused:
            super().the_machine_has_a_wake_up_time_while_it_waits()

    @invariant()
    def the_machine_gives_no_new_command_after_the_end(self):
        if self.machine.stage is Stage.FINISHED:
            words = [c for c in self.said if not isinstance(c, Drop | Repeat | Dismiss)]
            assert isinstance(words[-1], Finish)

    def teardown(self):
        if self.machine.paused and self.is_open:
            self.happen(Paused(""))
        super().teardown()


OperatedRun.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestOperatedRun = OperatedRun.TestCase
