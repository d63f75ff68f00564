"""Whole federations whose devices share noise under a masked sum: the noise, the ledgers, and what is sent again."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from protofleet.coordinator.round.events import Stage
from protofleet.edge_client.masked_sums import own_words
from protofleet.edge_client.work_queue import Question
from protofleet.methods.contract import shared_noise as shared_noise_module
from protofleet.methods.contract.bridge import to_numpy
from protofleet.methods.contract.contribution import arrays_of_payload
from protofleet.methods.contract.summed import noise_of_sum, summed_layout
from protofleet.protocol.privacy.mechanism import SIGMA
from protofleet.protocol.settings.dp import DpSettings
from protofleet.protocol.settings.secagg import SecaggSettings
from tests.support.small_federation import CLASSES
from tests.support.summed_simulation import POLICY, SumRecorder, summed

DP = DpSettings("device", 8.0, 1e-4, 0.5, 4)
SHARED = SecaggSettings(patience_seconds=5.0)
ONE_ROUND = replace(POLICY, rounds=1)
LEAVING = "device-1"


def shared(folder, policy=ONE_ROUND, devices=4, dp=DP, method="fedavg", **more):
    policy = replace(policy, gather=devices)
    return summed(folder, method, policy=policy, devices=devices, settings=SHARED, dp=dp, **more)


def at(run, step, number=1):
    machine = run.service.run.machine
    run.run(until=lambda: (machine.round, machine.asked, machine.stage) == (number, step, Stage.COLLECTING))


def masked_answers(run):
    """Return the stored masked vectors of the device that is killed."""
    answers = run.agents[LEAVING].state.saved.answers
    return [answer.object for answer in answers if answer.phase == "train.masked"]


def ask_again(run):
    """Ask the device for its masked vector in another task, and return its answer."""
    agent = run.agents[LEAVING]
    known = next(answer for answer in agent.state.saved.answers if answer.phase == "train.masked")
    question = Question("a" * 64, 1, known.phase, bytes.fromhex(known.base), agent.state.saved.epoch)
    return agent.tasks.runner.answer(agent.tasks.run.job, question, agent.tasks.run.name)


def words_of_devices(run, number):
    """Return the words of the first devices before the noise and the masks."""
    states = {name: run.agents[name].state for name in list(run.shards)[:number]}
    return {name: own_words(state, state.saved.masked.words) for name, state in states.items()}


def ledger(run, device):
    return run.agents[device].state.releases


@pytest.fixture
def recorder(monkeypatch):
    return SumRecorder(monkeypatch)


@pytest.mark.parametrize("devices, lost, colluders", [(4, 0, 0), (5, 1, 1)])
def test_the_sum_has_clipped_updates_and_the_noise_of_the_fewest_devices(
    tmp_path, recorder, devices, lost, colluders
):
    run = shared(tmp_path, devices=devices, dp=replace(DP, colluders=colluders))
    before = to_numpy(run.service.run.server_runner.server.state())
    at(run, "train.masked")
    if lost:
        run.kill("device-4")
    at(run, "train.agree")
    exact = words_of_devices(run, devices - lost)
    run.run()
    recorder.check()
    (one,) = recorder.sums
    field, enough = one.terms.field, {4: 3, 5: 4}[devices]
    assert set(one.survivors) == set(exact)
    noise = noise_of_sum(run.plan, one.terms.length, devices)
    total = field.signed(one.words)
    added = total - sum(field.signed(words) for words in exact.values())
    expected = SIGMA * math.sqrt(len(exact) / (enough - colluders))
    assert added.std() == pytest.approx(expected, rel=4 / math.sqrt(2 * len(added)))
    for words in exact.values():
        assert np.linalg.norm(field.signed(words)) * noise.mechanism.step <= run.plan.dp.clip
    after = to_numpy(run.service.run.server_runner.server.state())
    layout = summed_layout(run.plan, "train", arrays_of_payload(after))
    moved = layout.vector(after, before, 1, 1) * len(exact)
    assert moved == pytest.approx(total * noise.mechanism.step, abs=1e-5)


@pytest.mark.parametrize(
    "method, held", [("fedproto", [(0, 1), (0,), (0, 1), (1,)]), ("fedhp", [(0, 1, 2)] * 4)]
)
def test_class_rows_are_a_table_in_the_sum_without_a_count_of_holders(tmp_path, recorder, method, held):
    """The first broadcast of FedHP has rows, and that of FedProto has none."""
    run = shared(tmp_path, method=method, held=held)
    server = run.service.run.server_runner.server
    before = to_numpy(server.payload()).get("prototypes", 0.0)
    at(run, "train.agree")
    exact = [own_words(one.state, one.state.saved.masked.words) for one in run.agents.values()]
    run.run()
    assert run.service.finished and not run.service.run.diverged
    (one,) = recorder.sums
    assert one.terms.stage == "values" and len(one.survivors) == 4
    field = one.terms.field
    tables = [field.signed(words).reshape(CLASSES, -1) for words in exact]
    for table, own in zip(tables, held, strict=True):
        assert [bool(row.any()) for row in table] == [label in own for label in range(CLASSES)]
    step = noise_of_sum(run.plan, one.terms.length, 4).mechanism.step
    assert max(np.linalg.norm(table) for table in tables) * step <= run.plan.dp.clip
    rows = run.service.run.server_runner.server.prototypes.numpy()
    moved = field.signed(one.words).reshape(rows.shape) * step / 4
    assert rows == pytest.approx(before + moved, abs=1e-5)


def of_samples(folder, method, policy=ONE_ROUND, **more):
    hyper = {"form": "gram"} if method == "fedgram" else {}
    dp = DpSettings("sample", 8.0, 1e-4, 3.0, policy.rounds)
    return shared(folder, policy, method=method, dp=dp, hyper=hyper, **more)


@pytest.mark.parametrize("lost", [0, 1])
@pytest.mark.parametrize("method", ["fedgram", "fed3r", "fedncm"])
def test_the_server_half_gets_noisy_sums_over_samples_as_one_answer(tmp_path, recorder, method, lost):
    run = of_samples(tmp_path, method, devices=5)
    at(run, "describe.masked")
    if lost:
        run.kill("device-4")
    at(run, "describe.agree")
    exact = words_of_devices(run, 5 - lost)
    run.run()
    recorder.check()
    (one,) = recorder.sums
    assert set(one.survivors) == set(exact) and run.service.finished and not run.service.run.diverged
    field, sums = one.terms.field, run.plan.sums
    noise = noise_of_sum(run.plan, one.terms.length, 5)
    total = field.signed(one.words)
    plain = sum(field.signed(words) for words in exact.values())
    expected = SIGMA * math.sqrt(len(exact) / 4)  # 4 of 5 devices are the fewest in the sum.
    assert (total - plain).std() == pytest.approx(expected, rel=4 / math.sqrt(2 * len(total)))
    samples = sum(len(run.shards[name].train.y) for name in exact)
    values = noise.mechanism.values(plain)
    assert sums.samples(torch.from_numpy(values)) == samples
    server = run.service.run.server_runner.server
    vector = torch.from_numpy(noise.mechanism.values(total))
    alone = sums.payload(vector, sums.samples(vector))
    (kept,) = server.answers.replies()
    assert {name: kept.payload[name].tolist() for name in alone} == {
        name: array.tolist() for name, array in alone.items()
    }
    assert server.noise.deviation >= noise.mechanism.deviation * math.sqrt(len(exact) / 4) * (1 - 1e-6)
    assert server.solved and not server.answered() and not server.unused()
    counted = min(int(kept.payload["counts"].sum()), kept.examples)  # Each count is rounded.
    assert server.monitor() == {"samples.counted": counted}


def test_the_sum_of_a_later_round_replaces_the_earlier_sum_and_is_a_release(tmp_path):
    run = of_samples(tmp_path, "fedncm", POLICY).run()
    server, found = run.service.run.server_runner.server, run.service.run.releases
    assert run.service.finished and len(server.answers.replies()) == 1
    for device in run.agents:
        assert ledger(run, device) == found.releases(device)
        assert [(one.round, one.phase, one.kind, one.unit) for one in ledger(run, device)] == [
            (number, "describe.masked", "sums", "sample") for number in (1, 2)
        ]
        assert 0 < found.epsilon[device] <= run.plan.dp.epsilon


def test_masked_sums_over_samples_are_counted_under_the_kind_sums(tmp_path):
    run = of_samples(tmp_path, "fedncm").run()
    assert run.service.run.link.meter.payload["up", "sums"] == 4 * run.plan.sums.numbers * 4


def test_a_device_with_too_many_samples_does_not_take_part_and_the_run_ends(tmp_path, monkeypatch, caplog):
    """The devices have 48, 54, 60 and 66 samples."""
    monkeypatch.setattr(shared_noise_module, "most_samples", lambda *given: 60)
    run = of_samples(tmp_path, "fedncm").run()
    assert run.service.finished and not run.service.run.diverged
    released = [len(run.service.run.releases.releases(device)) for device in run.agents]
    assert released == [1, 1, 1, 0]
    assert "(out_of_range): 66 samples are too many: with secagg.bits = 32" in caplog.text


@pytest.mark.parametrize(
    "method, kind",
    [
        ("fedavg", "weights"),
        ("fedproto", "prototypes"),
        ("fedsa", "prototypes"),
        ("feddistill", "prototypes"),
    ],
)
def test_both_sides_count_each_round_once_and_epsilon_is_within_the_budget(tmp_path, method, kind):
    run = shared(tmp_path, POLICY, method=method).run()
    found = run.service.run.releases
    assert run.service.finished and not run.service.run.diverged
    for device in run.agents:
        assert ledger(run, device) == found.releases(device)
        assert [(one.round, one.phase, one.kind) for one in ledger(run, device)] == [
            (number, "train.masked", kind) for number in (1, 2)
        ]
        assert 0 < found.epsilon[device] <= run.plan.dp.epsilon


def test_a_vector_that_is_requested_again_has_the_same_bytes_and_is_one_release(tmp_path):
    run = shared(tmp_path)
    run.run(until=lambda: bool(masked_answers(run)))
    (before,) = masked_answers(run)
    run.kill(LEAVING)
    run.boot_device(LEAVING)
    run.kill("coordinator")
    run.boot_coordinator()
    at(run, "train.agree")
    assert masked_answers(run) == [before]
    again = ask_again(run)
    assert again.object == before
    run.run()
    assert run.service.finished and not run.service.run.diverged
    assert [one.attempt for one in ledger(run, LEAVING)] == [1]
    assert run.service.run.releases.releases(LEAVING) == ledger(run, LEAVING)


def test_a_new_attempt_has_new_noise_and_is_one_more_release(tmp_path, recorder):
    run = shared(tmp_path)
    at(run, "train.masked")
    run.kill("device-0")
    run.kill("device-2")
    run.run(until=lambda: run.service.run.machine.attempt == 1)
    run.boot_device("device-0")
    run.boot_device("device-2")
    run.run()
    assert run.service.finished and not run.service.run.diverged
    recorder.check()
    first, second = (words[LEAVING] for words in recorder.words.values() if LEAVING in words)
    assert not np.array_equal(first, second)
    assert [one.attempt for one in ledger(run, LEAVING)] == [1, 2]
    assert run.service.run.releases.releases(LEAVING) == ledger(run, LEAVING)


def test_a_device_without_privacy_budget_joins_no_attempt_and_the_run_ends(tmp_path):
    run = shared(tmp_path, POLICY, dp=replace(DP, rounds=2))
    at(run, "train.agree")
    table = run.agents[LEAVING].state.table
    again = replace(table.saved.releases[0], attempt=2)
    table.save(replace(table.saved, releases=[*table.saved.releases, again]))
    run.run(until=lambda: run.service.finished, limit=2000)
    assert "the privacy budget of this device is used up: 2 releases" in run.agents[LEAVING].view.problem
    assert run.agents[LEAVING].state.last_round == 1, "the device does not begin round 2"
    assert [one.round for one in ledger(run, "device-0")] == [1, 2]
    assert [one.round for one in ledger(run, LEAVING)] == [1, 1]
