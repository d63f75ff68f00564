"""A device evaluates its models, saves features for pictures, and reports why it cannot take part."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from protofleet.coordinator.observe.measured import pooled
from protofleet.edge_client.evaluate import evaluate
from protofleet.edge_client.feature_snapshots import Snapshots
from protofleet.edge_client.trainer.job import LocalJob, work
from protofleet.methods.contract.base import Ask
from protofleet.methods.contract.plan import Network
from tests.support.run_policy import RunPolicy
from tests.support.small_federation import CLASSES, TensorSamples, plan, shard, simulation


def half_of(method, i=0):
    data = shard(i)
    return plan(method).client_half(data.train, f"device-{i}"), data


def train(method):
    half, data = half_of(method)
    server = plan(method).server_half()
    server.begin(1, [])
    return work(half, data, next(server.round()), 1, plan(method).load().reports)[1]


def test_a_global_model_is_evaluated_on_arrival_and_after_training():
    metrics = train("fedavg")
    assert {"accuracy.test.global", "accuracy.test.personal"} <= metrics.keys()
    assert metrics["accuracy.test.personal"] > metrics["accuracy.test.global"]
    assert metrics["samples.test"] == 30


def test_only_the_personal_model_is_evaluated_if_no_global_model_arrives():
    assert not any(key.endswith("global") for key in train("singleset"))


def test_the_last_evaluation_measures_the_model_after_the_last_fit():
    half, data = half_of("singleset")
    before = evaluate(half, data, "personal")

    def last_fit():
        with torch.no_grad():
            for weight in half.model.parameters():
                weight.zero_()  # so that all classes are equally likely

    half.after_last_round = last_fit
    _, metrics = work(half, data, Ask("evaluate"), 4, "personal")
    assert metrics["loss.test.personal"] == pytest.approx(math.log(CLASSES)) != before["loss.test.personal"]
    assert metrics == evaluate(half, data, "personal")


@pytest.mark.parametrize("samples", [1, 63, 64, 255, 600])
def test_small_evaluation_batches_give_the_metrics_of_large_batches(samples):
    half, data = half_of("singleset")
    more = replace(
        data, test=TensorSamples(*(torch.cat([part] * 20)[:samples] for part in (data.test.x, data.test.y)))
    )
    blocks = list(zip(more.test.x.split(256), more.test.y.split(256), strict=True))
    with torch.no_grad():
        losses = [float(F.cross_entropy(half.predict(x), y, reduction="sum")) for x, y in blocks]
    score, sizes = half.scores, []
    half.scores = lambda x, rule: (sizes.append(len(x)), score(x, rule))[1]
    found = evaluate(
        half,
        replace(more, validation=TensorSamples(*(part[:0] for part in (data.test.x, data.test.y)))),
        "own",
    )
    assert found["loss.test.own"] == pytest.approx(sum(losses) / samples, rel=1e-6)
    assert sum(sizes) == samples and max(sizes) < 128 and min(sizes) >= min(64, samples)


def test_each_other_prediction_rule_has_its_own_view():
    half, data = half_of("singleset")
    half.other_rules = lambda: {
        "constant": lambda z: torch.eye(CLASSES)[torch.zeros(len(z), dtype=torch.int64)]
    }
    found = evaluate(half, data, "personal")
    assert found["accuracy.test.personal-constant"] == pytest.approx(1 / 3)
    assert {"loss.test.personal-constant", "accuracy.validation.personal-constant"} <= found.keys()


def of_pooled(view, values):
    return {device: {f"accuracy.test.{view}": value} for device, value in values.items()}


def test_pooled_accuracy_is_weighted_by_the_test_samples_of_each_device():
    measured = of_pooled("personal", {"a": 1.0, "b": 0.5, "c": 0.0})
    samples = {"a": 30.0, "b": 10.0}  # c does not state a number
    assert pooled(measured, samples) == {"personal": pytest.approx(0.875)}


def test_a_device_that_claims_too_many_test_samples_has_a_limited_weight():
    """The coordinator cannot check the number of samples, so it caps the number by the median."""
    measured = of_pooled("global", {"a": 0.96, "b": 0.96, "c": 0.96, "liar": 0.0})
    samples = {"a": 10.0, "b": 10.0, "c": 10.0, "liar": 1e12}
    assert pooled(measured, samples)["global"] < 1e-9
    assert pooled(measured, samples, 3.0) == {"global": pytest.approx(0.48)}


def takes_snapshots(agent, snapshots):
    def start_job(plan):
        data = agent.tasks.runner.data
        half = plan.client_half(data.train, agent.link.me.name)
        folder = agent.state.folder / "pictures"
        return LocalJob(half, data, plan.variant.reports, snapshots=snapshots, folder=folder)

    agent.tasks.runner.start_job = start_job


def test_picture_files_contain_the_embedding_and_the_exchanged_arrays(tmp_path):
    run = simulation(tmp_path, "fedproto")
    for agent in run.agents.values():
        takes_snapshots(agent, Snapshots(samples=10, rounds=(2,)))
    run.run()
    album = tmp_path / "device-1" / "pictures"
    assert sorted(p.name for p in album.iterdir()) == ["round-0002.npz", "round-0004.npz"]
    with np.load(album / "round-0002.npz", allow_pickle=False) as saved:
        assert saved["features"].shape == (10, 16) and saved["labels"].tolist() == [0, 1, 2] * 3 + [0]
        assert str(saved["domain"]) == "domain-1"
        assert saved["received.prototypes"].shape == saved["sent.prototypes"].shape == (CLASSES, 16)
        assert saved["sent.counts"].sum() == 54


def test_picture_files_do_not_contain_models(tmp_path):
    run = simulation(tmp_path, "fedavg")
    takes_snapshots(run.agents["device-0"], Snapshots(samples=5))
    run.run()
    with np.load(tmp_path / "device-0" / "pictures" / "round-0004.npz") as saved:
        assert set(saved) == {"features", "labels", "domain"}


def test_a_picture_of_round_0_is_refused():
    with pytest.raises(ValueError, match=r"rounds\[0\] is 0, it must be at least 1"):
        Snapshots(10, (0,))


def test_a_device_with_a_wrong_network_reports_the_reason_and_the_others_continue(tmp_path):
    def build(device, plan, data):
        own = Network("mlp", 64) if device == "device-1" else None
        return plan.client_half(data.train, device, own)

    policy = {"quorum": 2, "cohort": 3, "patience_seconds": 20.0, "settle_seconds": 0.5}
    run = simulation(tmp_path, "fedavg", policy=RunPolicy(rounds=2, **policy), build=build).run()
    assert run.service.finished
    assert "fedavg needs the same network on every device" in run.agents["device-1"].view.problem


def test_three_architectures_learn_in_one_federation(tmp_path):
    """The messages go over the wire, and a perceptron's prototypes are averaged with those of two other widths."""
    widths = {"device-0": None, "device-1": Network("mlp", 64), "device-2": Network("mlp", 8)}
    run = simulation(
        tmp_path, "fedproto", build=lambda device, p, data: p.client_half(data.train, device, widths[device])
    ).run()
    sizes = {sum(p.numel() for p in agent.run.job.half.model.parameters()) for agent in run.agents.values()}
    assert len(sizes) == 3
    for agent in run.agents.values():
        assert agent.state.saved.answers[-1].metrics["accuracy.test.personal"] > 2 / 3
