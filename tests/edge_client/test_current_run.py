"""A device knows its run, and knows if the present coordinator has sent the plan of that run."""

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
def test_a_welcome_is_valid_only_for_its_run_and_its_epoch(run, epoch, welcome):
    assert following().was_welcomed_by(run, epoch) is welcome


def test_a_welcome_counts_as_new_only_if_the_epoch_changes():
    run = CurrentRun("spring")
    assert [run.welcomed(epoch) for epoch in (7, 7, 8, 7)] == [True, False, True, True]


def test_a_welcome_counts_as_new_after_forget_welcome():
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
def test_a_run_gathers_devices_only_until_a_task_or_another_status_arrives(messages, gathering):
    run = following()
    for message in messages:
        run.heard(message)
    assert run.gathering is gathering


def test_a_change_of_run_drops_the_plan_and_the_job():
    run = following()
    run.change("autumn")
    assert (run.name, run.plan, run.job) == ("autumn", None, None)


def test_a_run_stays_over_until_another_run_starts():
    run = following()
    run.over = True
    run.change("autumn")
    assert run.over
    run.start(PLAN, FixedJob())
    assert not run.over
