"""A run with a changed number of rounds has the bits of a run that was planned with it, also after a crash."""

from dataclasses import replace

import pytest

from protofleet.coordinator.models.saved import read_saved_run
from protofleet.coordinator.operator_commands import OperatorCommand
from protofleet.coordinator.round.events import Stage
from protofleet.coordinator.spool.origin import saved_states
from protofleet.coordinator.spool.spool import Spool
from tests.support.small_federation import POLICY, assert_same, once_each, simulation

# The devices take turns and keep a personal model. An evaluation trains this model further, and then it goes back.
TURNS = replace(POLICY, quorum=2, cohort=2, evaluate_every=1)
PLANNED = {"fedavg": (POLICY, {}), "fedproto": (TURNS, {"final_fit": True})}


def of_rounds(folder, method, rounds):
    policy, hyper = PLANNED[method]
    return simulation(folder / str(rounds), method, policy=replace(policy, rounds=rounds), hyper=hyper)


@pytest.fixture(scope="module")
def planned(tmp_path_factory):
    """Return the run of a method that was planned with four rounds."""
    return once_each(lambda method: of_rounds(tmp_path_factory.mktemp(method), method, 4).run())


def extend(run, rounds, name=1, commits=True):
    """Give the command, and return its result; None if the coordinator has not sent it yet."""
    told, commands = [], run.service.run.operator_commands
    command = OperatorCommand(bytes([name]) * 16, "local:ann", "extend", rounds=rounds)
    commands.execute(command, told.append, run.clock.now)
    if commits:
        run.service.end_turn(run.clock.now)
    return (told[0].verdict, told[0].words) if told else None


def reboot(run):
    run.kill("coordinator")
    run.service.run.spool.close()  # Changes that were not committed are lost.
    run.boot_coordinator()


def is_at(run, number, stage):
    m = run.service.run.machine
    return m.round == number and m.stage is stage and (stage is Stage.COMPUTING or bool(m.answered))


@pytest.mark.parametrize("method", PLANNED)
def test_an_extended_run_ends_with_the_bits_of_a_run_that_was_planned_longer(tmp_path, planned, method):
    run = of_rounds(tmp_path, method, 2)
    plan = run.plan.encode()
    run.run(until=lambda: is_at(run, 2, Stage.COLLECTING))
    assert extend(run, 4) == ("done", "the run has 4 rounds now")
    run.run(until=lambda: is_at(run, 3, Stage.COLLECTING))
    reboot(run)
    assert_same(run.run(), planned(method))
    shown = run.service.run.view
    assert (run.plan.encode(), shown.rounds_planned, run.service.run.machine.round) == (plan, 4, 6)
    saved = saved_states(run.folder / "coordinator")
    assert (saved.rounds, saved.snapshots[0][0]) == (4, 4)
    assert read_saved_run(run.folder / "coordinator").rounds == 4
    assert extend(run, 5, name=2)[0] == "refused"


@pytest.mark.parametrize("stage", [Stage.COLLECTING, Stage.COMPUTING])
@pytest.mark.parametrize("commits", [True, False])
def test_a_repeated_extend_command_has_the_same_effect_after_a_crash(tmp_path, planned, stage, commits):
    run = of_rounds(tmp_path, "fedavg", 2)
    run.run(until=lambda: is_at(run, 2, stage))
    assert (extend(run, 4, commits=commits) is not None) is commits
    reboot(run)
    assert Spool(run.folder / "coordinator").total_rounds() == (4 if commits else 0)
    assert extend(run, 4) == ("done", "the run has 4 rounds now")
    assert_same(run.run(), planned("fedavg"))


def test_extend_refuses_too_few_rounds_and_names_the_smallest_number(tmp_path, planned):
    run = of_rounds(tmp_path, "fedavg", 9)
    run.run(until=lambda: is_at(run, 4, Stage.COLLECTING))
    assert extend(run, 3, name=1) == ("refused", "round 4 has begun, so --rounds must be at least 4")
    assert extend(run, 4, name=2)[0] == "done"
    assert extend(run, 4, name=3) == ("done", "the run has 4 rounds already")
    run.run(until=lambda: is_at(run, 5, Stage.COLLECTING))
    verdict, words = extend(run, 6, name=4)
    assert verdict == "refused" and words.startswith("the training is over; `protofleet submit FILE --from")
    assert_same(run.run(), planned("fedavg"))


def test_extend_is_refused_if_the_method_depends_on_the_number_of_rounds(tmp_path):
    run = simulation(tmp_path, "fedkd", policy=replace(POLICY, rounds=2))
    verdict, words = extend(run, 4)
    assert verdict == "refused" and words.startswith("fedkd cannot have another number of rounds, because")
