"""A method without training asks each device once. Devices may come late, stay away, or be removed."""

import logging
from dataclasses import replace

import pytest
import torch

from protofleet.coordinator.models.best import BestModel
from protofleet.coordinator.observe.observers import keep_journal
from protofleet.coordinator.observe.rounds_file import RoundsFile
from protofleet.coordinator.round.events import NOBODY_LEFT, Stage
from protofleet.lab.export.source import Wanted, find_model
from protofleet.protocol.link import run_part
from protofleet.protocol.security.keys import Keys
from tests.support.small_federation import RunPolicy, assert_same, in_blocks, shard, simulation

METHOD = "fedncm"
PATIENCE = 60.0
POLICY = RunPolicy(rounds=4, quorum=1, patience_seconds=PATIENCE, grace_seconds=5.0, settle_seconds=0.5)
LATE = "device-2"


@pytest.fixture(scope="module")
def together(tmp_path_factory):
    """Return a run in which all devices are present from the beginning."""
    return simulation(tmp_path_factory.mktemp("together"), METHOD, policy=POLICY).run()


def begun_without(device, folder, policy=POLICY):
    """Return a run whose first round has ended without the device."""
    run = simulation(folder, METHOD, policy=policy)
    run.kill(device)
    return run.run(until=lambda: run.service.run.machine.round == 2)


def assert_same_head(run, other):
    """Require the same bits of all kept answers and of the head."""
    one, two = (each.service.run.server_runner.server.state() for each in (run, other))
    assert one.keys() == two.keys() and all(torch.equal(value, two[name]) for name, value in one.items())


def uploads(run, device):
    return {kind: size for (way, kind), size in run.agents[device].link.meter.payload.items() if way == "up"}


def in_round(run, number):
    machine = run.service.run.machine
    return machine.round == number and machine.stage is Stage.COLLECTING


def test_a_late_device_sends_one_upload_and_the_head_has_the_bits_of_a_run_with_all(together, tmp_path):
    run = begun_without(LATE, tmp_path)
    run.boot_device(LATE)
    run.run()
    assert_same(run, together)
    assert all(uploads(run, device) == uploads(together, device) != {} for device in run.agents)
    assert run.service.run.machine.ended_early.round == 2


@pytest.mark.parametrize(
    "away",
    [0.2, pytest.param(20.0, marks=pytest.mark.slow)],
    ids=["back at once", "back after its round has ended"],
)
def test_a_late_device_that_is_killed_during_its_upload_is_counted_once(
    together, tmp_path, monkeypatch, away
):
    run = begun_without(LATE, tmp_path)
    in_blocks(run, monkeypatch)
    run.boot_device(LATE)
    run.agents[LATE].link.inline = run_part.INLINE
    run.run(until=lambda: in_round(run, 2) and run.service.run.link.answers.has_unfinished)
    run.kill(LATE)
    run.clock.call_at(run.clock.now + away, lambda: run.boot_device(LATE))
    run.run()
    assert_same(run, together)
    assert run.service.run.machine.ended_early.round == (2 if away < 1 else 3)


def test_the_reason_of_the_end_names_an_absent_device_and_the_head_lacks_it(tmp_path, caplog):
    caplog.set_level(logging.INFO)
    run = begun_without(LATE, tmp_path)
    began = run.clock.now
    run.run()
    assert PATIENCE <= run.clock.now - began < PATIENCE + 10
    assert f"waiting for devices that have not answered: {LATE}; if" in caplog.text
    view = run.service.run.view  # The fields `stopped` and `stopped_by` of summary.json.
    assert view.ended_by == NOBODY_LEFT
    assert view.ended_early == (
        f"no device that had not answered was there for policy.patience_seconds ({PATIENCE:g} s): {LATE}"
    )
    without = simulation(tmp_path / "without", METHOD, policy=POLICY)
    del without.keyring[LATE]
    assert_same_head(run, without.run())


@pytest.mark.slow
def test_a_coordinator_that_crashes_while_it_waits_asks_no_device_twice(together, tmp_path):
    run = begun_without(LATE, tmp_path)
    run.kill("coordinator")
    run.boot_coordinator()
    run.run(until=lambda: run.service.run.machine.round == 2)
    run.boot_device(LATE)
    run.run(until=lambda: in_round(run, 2))
    run.kill("coordinator")
    run.boot_coordinator()
    run.run()
    assert_same(run, together)
    assert all(uploads(run, device) == uploads(together, device) for device in run.agents)


GONE = "device-1"


def answer_of(run, device):
    """Return the bytes of the class means that the device has sent."""
    half = run.service.run.server_runner.server
    (found,) = [one.payload["prototypes"] for one in half.answers.replies() if one.device == device]
    return found.numpy().tobytes()


def files_with(run, data):
    files = [path for path in (run.folder / "coordinator").rglob("*") if path.is_file()]
    return [path.name for path in files if data in path.read_bytes()]


@pytest.mark.parametrize(
    "killed, policy",
    [
        ("", POLICY),
        pytest.param("before", POLICY, marks=pytest.mark.slow),
        pytest.param("after", POLICY, marks=pytest.mark.slow),
        pytest.param("", replace(POLICY, evaluate_every=1), marks=pytest.mark.slow),
    ],
    ids=["", "killed before the round", "killed in the round", "all evaluate before the round"],
)
def test_removing_a_device_removes_its_answer_from_the_head_and_from_all_files(tmp_path, killed, policy):
    run = begun_without(LATE, tmp_path / "with", policy)
    sent = answer_of(run, GONE)
    assert files_with(run, sent)
    del run.keyring[GONE]
    if killed == "before":
        run.kill("coordinator")
        run.boot_coordinator()
    run.boot_device(LATE)
    run.run(until=lambda: in_round(run, 2))
    assert run.service.run.server_runner.server.answered() == {"device-0"}
    if killed == "after":
        run.kill("coordinator")
        run.boot_coordinator()
    run.run()
    without = simulation(tmp_path / "without", METHOD, policy=POLICY)
    del without.keyring[GONE]
    without.run()
    assert_same_head(run, without)
    assert not files_with(run, sent)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["fedpft", "fedgram"])
def test_other_methods_support_late_and_removed_devices(tmp_path, method):
    policy = replace(POLICY, weight_cap=1.0)  # The median differs between the rounds.
    run = simulation(tmp_path / "with", method, policy=policy)
    run.kill(LATE)
    run.run(until=lambda: run.service.run.machine.round == 2)
    del run.keyring[GONE]
    run.boot_device(LATE)
    run.run()
    without = simulation(tmp_path / "without", method, policy=policy)
    del without.keyring[GONE]
    without.run()
    assert run.service.run.server_runner.server.answered() == {"device-0", LATE}
    assert_same_head(run, without)


def test_an_answer_that_is_removed_during_the_last_evaluation_is_not_saved(tmp_path):
    run = simulation(tmp_path, METHOD, policy=POLICY)
    run.run(until=lambda: in_round(run, 2))
    sent = answer_of(run, GONE)
    assert run.service.run.machine.is_last_evaluation and files_with(run, sent)
    del run.keyring[GONE]
    run.run()
    assert run.service.run.server_runner.server.answered() == {"device-0", LATE} and not files_with(run, sent)


def in_best(run, data):
    best = run.service.run.spool.folder / "best"
    return any(data in path.read_bytes() for path in best.glob("*"))


@pytest.mark.parametrize(
    "again",
    [False, pytest.param(True, marks=pytest.mark.slow)],
    ids=["no device comes then", "another device comes then"],
)
def test_the_best_model_loses_the_answer_of_a_device_that_is_removed_in_a_wait(tmp_path, again):
    last, few = "device-3", "device-4"
    policy = replace(POLICY, evaluate_every=1, patience_seconds=10.0)
    run = simulation(tmp_path, METHOD, policy=policy, shards={last: shard(3), few: shard(0, 6)})
    rounds = RoundsFile(tmp_path / "rounds.jsonl")
    keep_journal(run.service.run, [rounds, BestModel(run.service.run.spool, [])])
    run.kill(LATE)
    run.kill(last)
    run.run(until=lambda: run.service.run.machine.round == 2)
    sent = answer_of(run, GONE)
    if again:
        run.boot_device(LATE)
        run.run(until=lambda: run.service.run.machine.round == 3)
        assert in_best(run, sent)
        run.boot_device(last)
    del run.keyring[GONE]
    run.run()
    assert not files_with(run, sent)
    assert [line["round"] for line in rounds.records if line["removed"] == [GONE]] == [3 if again else 2]
    assert all(line["unused"] == [few] for line in rounds.records)
    best, newest = (find_model(tmp_path, Wanted(chosen)) for chosen in ("best", "last"))
    assert best.card == newest.card and best.card.chosen == "last"


def test_a_run_ends_at_once_if_the_only_device_that_has_not_answered_is_removed(tmp_path):
    run = begun_without(LATE, tmp_path)
    began = run.clock.now
    del run.keyring[LATE]
    run.run()
    assert run.clock.now - began < PATIENCE / 2
    assert run.service.run.view.ended_early == "all enrolled devices have answered"


def enrol_again(run, device, data):
    """Enrol a device under its old name, with new keys and other data."""
    run.kill(device)
    run.keys[device] = Keys.new()
    run.keyring[device] = run.keys[device].public
    run.shards[device] = data


OTHER = shard(7)


@pytest.fixture(scope="module")
def with_other_data(tmp_path_factory):
    """Return a run in which GONE has its new data from the beginning."""
    return simulation(tmp_path_factory.mktemp("other"), METHOD, policy=POLICY, shards={GONE: OTHER}).run()


@pytest.mark.parametrize(
    "killed",
    ["", "before the device is back", "after the round has begun", "after the new answer"],
)
def test_a_newly_enrolled_device_is_asked_again_and_its_old_answer_is_deleted(
    with_other_data, tmp_path, killed
):
    run = begun_without(LATE, tmp_path)
    sent = answer_of(run, GONE)
    enrol_again(run, GONE, OTHER)

    def kill_coordinator(now):
        if killed == now:
            run.kill("coordinator")
            run.boot_coordinator()

    kill_coordinator("before the device is back")
    run.boot_device(GONE)
    run.boot_device(LATE)
    run.run(until=lambda: in_round(run, 2))
    assert run.service.run.machine.cohort == (GONE, LATE)
    assert run.service.run.server_runner.server.answered() == {"device-0"}
    kill_coordinator("after the round has begun")
    run.run(until=lambda: GONE in run.service.run.machine.answered)
    kill_coordinator("after the new answer")
    run.run()
    assert_same_head(run, with_other_data)
    assert not files_with(run, sent)


@pytest.mark.parametrize("stage", [Stage.COLLECTING, Stage.COMPUTING])
def test_a_device_that_is_enrolled_again_during_a_round_is_asked_in_the_next_round(
    with_other_data, tmp_path, stage
):
    run = begun_without(LATE, tmp_path)
    run.boot_device(LATE)
    run.run(until=lambda: in_round(run, 2))
    run.run(until=lambda: run.service.run.machine.stage is stage)
    enrol_again(run, GONE, OTHER)
    run.boot_device(GONE)
    run.run(until=lambda: in_round(run, 3))
    assert run.service.run.machine.cohort == (GONE,)
    run.run()
    assert_same_head(run, with_other_data)


def test_the_head_lacks_a_device_that_is_enrolled_again_and_stays_away(tmp_path):
    run = begun_without(LATE, tmp_path / "with")
    sent = answer_of(run, GONE)
    enrol_again(run, GONE, OTHER)
    run.boot_device(LATE)
    run.run()
    without = simulation(tmp_path / "without", METHOD, policy=POLICY)
    del without.keyring[GONE]
    assert_same_head(run, without.run())
    assert not files_with(run, sent)
    assert run.service.run.view.ended_early.endswith(f"({PATIENCE:g} s): {GONE}")
