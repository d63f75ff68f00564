"""Whole federations whose updates have noise: the ledgers of both sides, the budget, and what is sent again."""

import json
from dataclasses import replace

import pytest

from protofleet.coordinator.observe.observers import keep_journal
from protofleet.coordinator.observe.rounds_file import RoundsFile, read_rounds
from protofleet.lab.simulation.federation import Simulation
from protofleet.lab.simulation.network import NetworkConditions
from protofleet.methods.contract.plan import Network
from protofleet.protocol.privacy.ledger import PrivateRelease, spent_epsilon
from protofleet.protocol.settings.dp import DpSettings
from protofleet.protocol.storage.disk import Disk
from tests.support.small_federation import RunPolicy, plan, shard, simulation

DELTA = 1e-4
POLICY = RunPolicy(
    rounds=2, quorum=2, cohort=3, patience_seconds=60.0, grace_seconds=5.0, settle_seconds=0.5, straggler_factor=0.0
)  # fmt: skip
LEAVING = "device-1"


def private(folder, method="fedavg", unit="device", rounds=2, policy=POLICY):
    dp = DpSettings(unit, 8.0, DELTA, 1.0 if unit == "device" else 3.0, rounds)
    hyper = {"form": "gram"} if method == "fedgram" else {}
    made = replace(plan(method, policy.rounds, **hyper), network=Network("mlp", 8), dp=dp)
    shards = {f"device-{i}": shard(i) for i in range(3)}
    return Simulation(made, shards, policy, folder, NetworkConditions())


def ledger(run, device):
    return run.agents[device].state.releases


@pytest.mark.parametrize(
    "method, unit, releases",
    [
        ("fedavg", "device", 2),
        ("fedhp", "device", 2),
        ("fedproto", "device", 2),
        ("fedncm", "sample", 1),
        ("fed3r", "sample", 1),
        ("fedgram", "sample", 1),
    ],
)
def test_both_sides_count_the_same_releases_and_epsilon_reaches_the_budget(method, unit, releases, tmp_path):
    run = private(tmp_path, method, unit, releases)
    run.run()
    found = run.service.run.releases
    for device in run.agents:
        assert ledger(run, device) == found.releases(device)
        assert len(found.releases(device)) == releases
        assert found.epsilon[device] == pytest.approx(8.0, abs=1e-3)
        assert found.epsilon[device] <= 8.0
    assert run.service.finished and not run.service.run.diverged


def test_a_device_shows_its_epsilon_until_the_run_is_over(tmp_path):
    run = private(tmp_path)
    run.run(until=lambda: bool(ledger(run, LEAVING)))
    shown = run.agents[LEAVING].view.privacy
    assert shown.epsilon[LEAVING] == spent_epsilon(ledger(run, LEAVING), DELTA) > 0
    run.run(until=lambda: run.service.finished)
    run.run(until=lambda: run.agents[LEAVING].view.idle)
    assert run.agents[LEAVING].view.privacy is None


def test_the_record_of_a_round_has_the_epsilon_so_far_and_its_limit(tmp_path):
    run = private(tmp_path)
    file = RoundsFile(tmp_path / "rounds.jsonl", Disk(durable=False), 0)
    keep_journal(run.service.run, [file])
    run.run()
    shown = [line["privacy"] for line in read_rounds(tmp_path / "rounds.jsonl")]
    assert [one["limit"] for one in shown] == [8.0] * 3
    assert 0 < shown[0]["epsilon"] < shown[1]["epsilon"] == shown[2]["epsilon"] <= 8.0


def test_a_device_without_privacy_budget_refuses_tasks_and_the_run_continues(tmp_path):
    run = private(tmp_path)
    run.run(until=lambda: run.service.run.machine.round == 1 and bool(ledger(run, LEAVING)))
    table = run.agents[LEAVING].state.table
    again = replace(table.saved.releases[0], attempt=2)
    table.save(replace(table.saved, releases=[*table.saved.releases, again]))
    run.run(until=lambda: run.service.finished)
    assert (
        "the privacy budget of this device is used up: 2 releases have epsilon 8"
        in run.agents[LEAVING].view.problem
    )
    assert len(ledger(run, LEAVING)) == 2
    others = [device for device in run.agents if device != LEAVING]
    assert [len(run.service.run.releases.releases(device)) for device in others] == [2, 2]


def test_an_update_that_is_sent_again_has_the_same_bytes_and_is_one_release(tmp_path):
    run = private(tmp_path)
    run.run(until=lambda: bool(ledger(run, LEAVING)))
    before = run.agents[LEAVING].state.saved.answers[-1].object
    run.kill(LEAVING)
    run.boot_device(LEAVING)
    run.kill("coordinator")
    run.boot_coordinator()
    run.run(until=lambda: run.service.run.machine.round == 2)
    assert before in {answer.object for answer in run.agents[LEAVING].state.saved.answers}
    run.run()
    assert [one.round for one in ledger(run, LEAVING)] == [1, 2]
    assert run.service.run.releases.releases(LEAVING) == ledger(run, LEAVING)


def test_an_update_that_is_computed_again_is_one_more_release(tmp_path):
    run = private(tmp_path, rounds=3)
    run.run(until=lambda: bool(ledger(run, LEAVING)))
    state = run.agents[LEAVING].state
    lost = state.saved.answers[-1].object
    run.kill(LEAVING)
    for path in state.store.folder.glob(f"{lost}*"):
        path.unlink()
    run.boot_device(LEAVING)
    run.run()
    found = [(one.round, one.attempt) for one in ledger(run, LEAVING)]
    assert found == [(1, 1), (1, 2), (2, 1)]
    assert len(run.service.run.releases.releases(LEAVING)) <= 3


def test_a_device_with_a_damaged_ledger_file_reads_the_ledger_from_its_copies(tmp_path):
    run = private(tmp_path)
    run.run()
    state = run.agents[LEAVING].state
    newest = state.folder / "device.json"
    run.kill(LEAVING)
    newest.write_bytes(newest.read_bytes()[:-20])  # The copies of the file are used instead.
    run.boot_device(LEAVING)
    assert len(ledger(run, LEAVING)) == 2


def test_a_new_run_does_not_remove_the_releases_of_earlier_runs(tmp_path):
    run = private(tmp_path)
    run.run()
    state = run.agents[LEAVING].state
    state.of("another").begin("another", "0" * 64)
    assert len(state.releases) == 2
    state.of("another").disk.sync(state.folder)
    book = json.loads((state.folder / "device.json").read_text())["book"]
    assert [row["run"] for row in book["releases"]] == ["simulated", "simulated"]


def test_a_run_without_dp_has_no_ledger(tmp_path):
    run = simulation(tmp_path, "fedavg", policy=POLICY).run()
    assert run.service.run.releases is None
    assert (
        "releases" not in json.loads((run.agents[LEAVING].state.folder / "device.json").read_text())["book"]
    )


def test_each_release_of_a_ledger_increases_its_epsilon():
    one = PrivateRelease("run", 1, "train", 1, "weights", "device", 32768.0, 32768.0 / 2, 10, 0.0)
    assert spent_epsilon([one], 1e-5) < spent_epsilon([one, replace(one, attempt=2)], 1e-5)
