"""A device knows its run, and knows if the coordinator that it hears now has sent the plan of that run."""

import pytest

from protofleet.edge_client.current_run import CurrentRun
from protofleet.protocol.wire.messages import HERE, RoundStatus, State, Task
from tests.edge_client.agent_parts import PLAN, FixedJob

GATHERS = State(True, HERE, now=RoundStatus(1, "", 0, None))


def following():
    run = CurrentRun("spring")
    run.welcomed(7)
    run.start(PLAN, FixedJob())
    return run


@pytest.mark.parametrize(
    ("run", "epoch", "welcome"), [("spring", 7, True), ("autumn", 7, False), ("spring", 8, False)]
)
def test_a_device_is_welcome_only_in_its_run_and_at_the_coordinator_that_said_so(run, epoch, welcome):
    assert following().was_welcomed_by(run, epoch) is welcome


def test_the_first_welcome_of_each_coordinator_is_told_from_those_that_follow():
    run = CurrentRun("spring")
    assert [run.welcomed(epoch) for epoch in (7, 7, 8, 7)] == [True, False, True, True]


def test_a_forgotten_welcome_counts_again():
    run = following()
    run.forget_welcome()
    assert not run.was_welcomed_by("spring", 7) and run.welcomed(7)


@pytest.mark.parametrize(
    ("messages", "gathering"),
    [
        ([State(True)], False),
        ([GATHERS], True),
        ([GATHERS, State(True, HERE, now=RoundStatus(1, "", 0, ()))], False),
        ([State(True, HERE, now=RoundStatus(1, "train", 0, None))], False),
        ([GATHERS, Task(1, "train", 0)], False),
    ],
)  # fmt: skip
def test_a_run_gathers_devices_until_it_asks_one_or_says_otherwise(messages, gathering):
    run = following()
    for message in messages:
        run.heard(message)
    assert run.gathering is gathering


def test_another_run_has_no_plan_and_no_job_yet():
    run = following()
    run.change("autumn")
    assert (run.name, run.plan, run.job) == ("autumn", None, None)


def test_a_run_that_is_over_lasts_until_another_is_followed():
    run = following()
    run.over = True
    run.change("autumn")
    assert run.over
    run.start(PLAN, FixedJob())
    assert not run.over
