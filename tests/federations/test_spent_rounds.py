"""Rounds whose devices have helped to unmask a sum that too few devices then completed.

These devices join no other attempt of the round. So the round ends without a sum, and the run continues.
"""

from dataclasses import replace

import pytest

from protofleet.coordinator.round.events import Stage
from tests.support.small_federation import assert_same
from tests.support.summed_simulation import SETTINGS, SumRecorder, summed

PATIENT = replace(SETTINGS, patience_seconds=5.0)
LOST = [("fedavg", "train.unmask"), ("fedproto", "train.unmask")]


@pytest.fixture
def recorder(monkeypatch):
    return SumRecorder(monkeypatch)


def lose_a_round(folder, method, step, restart=False):
    """Run until two of four devices leave in a step of round 1; they return in round 2. Return the run."""
    run = summed(folder, method, settings=PATIENT)
    machine = run.service.run.machine
    run.run(until=lambda: (machine.asked, machine.stage) == (step, Stage.COLLECTING))
    before = {name: value.clone() for name, value in run.service.run.server_runner.server.state().items()}
    run.kill("device-2")
    run.kill("device-3")
    if restart:
        run.kill("coordinator")
        run.boot_coordinator()
    run.run(until=lambda: run.service.run.machine.round == 2, limit=300)
    after = run.service.run.server_runner.server.state()
    assert before.keys() == after.keys()
    assert all(before[name].equal(after[name]) for name in before)
    run.boot_device("device-2")
    run.boot_device("device-3")
    run.run()
    return run


@pytest.mark.parametrize(("method", "step"), LOST)
def test_a_round_without_enough_devices_ends_without_a_sum_and_the_next_round_has_one(
    tmp_path, recorder, method, step, caplog
):
    run = lose_a_round(tmp_path, method, step)
    assert run.service.finished and not run.service.run.diverged
    assert "round 1 ends without a sum, and the model stays as it was" in caplog.text
    recorder.check()
    assert [one.terms.round for one in recorder.sums if one.terms.stage == "values"] == [2]


@pytest.mark.parametrize(("method", "step"), LOST)
def test_a_restart_of_the_waiting_coordinator_changes_no_bit(tmp_path, method, step):
    whole = lose_a_round(tmp_path / "whole", method, step)
    killed = lose_a_round(tmp_path / "killed", method, step, restart=True)
    assert killed.service.finished and not killed.service.run.diverged
    assert_same(killed, whole)


@pytest.mark.parametrize(("method", "step"), LOST)
def test_a_round_ends_with_a_sum_if_its_devices_return_in_time(tmp_path, recorder, method, step):
    run = summed(tmp_path, method, settings=replace(SETTINGS, patience_seconds=60.0))
    machine = run.service.run.machine
    run.run(until=lambda: (machine.asked, machine.stage) == (step, Stage.COLLECTING))
    for name in ("device-2", "device-3"):
        run.kill(name)
        run.boot_device(name)
    run.run()
    assert run.service.finished and not run.service.run.diverged
    recorder.check()
    assert [one.terms.round for one in recorder.sums if one.terms.stage == "values"] == [1, 2]
