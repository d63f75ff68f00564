"""The weight that a device with a false claim of a million samples has in the new model."""

import pytest
import torch

from protofleet.coordinator.observe.observers import keep_journal
from protofleet.coordinator.observe.rounds_file import RoundsFile
from protofleet.edge_client.data.shard import Shard, TensorSamples
from tests.support.run_policy import RunPolicy
from tests.support.small_federation import CLASSES, NAMES, final_state, shard, simulation

MANY = 1_000_000
LIAR = "device-3"


def of_a_million(of):
    """Return a shard with a million samples that all share the memory of one."""

    def repeated(samples):
        return TensorSamples(samples.x[:1].expand(MANY, *samples.x.shape[1:]), samples.y[:1].expand(MANY))

    return Shard("domain-3", CLASSES, repeated(of.train), of.validation, of.test, NAMES)


def moves_by_one(device, plan, data):
    """Return a half that answers with the broadcast; the liar adds 1 to each number."""
    half = plan.client_half(data.train, device)
    half.run = lambda ask: {
        name: value + float(device == LIAR) if value.is_floating_point() else value
        for name, value in ask.payload.items()
    }
    return half


def federation(folder, **rules):
    policy = RunPolicy(
        rounds=1, quorum=4, gather=4, patience_seconds=60.0, settle_seconds=0.5, straggler_factor=0.0, **rules
    )
    run = simulation(
        folder, "fedavg", policy=policy, shards={LIAR: of_a_million(shard(3))}, build=moves_by_one
    )
    file = RoundsFile(folder / "rounds.jsonl")
    keep_journal(run.service.run, [file])
    return run, file


@pytest.mark.parametrize(
    ("rules", "most"), [({}, 0.5), ({"weight_cap": 1.0}, 0.25), ({"weight_cap": 0.0}, 1.0)]
)
def test_the_cap_limits_the_weight_of_a_device_that_claims_a_million_samples(tmp_path, rules, most):
    run, _ = federation(tmp_path, **rules)
    before = {k: v.clone() for k, v in run.service.run.server_runner.server.state().items()}
    run.run()
    assert run.service.finished
    after = {k.removeprefix("server/"): v for k, v in final_state(run).items() if k.startswith("server/")}
    moved = [float((after[k] - v).max()) for k, v in before.items() if v.is_floating_point()]
    assert max(moved) == pytest.approx(most, abs=0.04), moved
    assert all(torch.isfinite(v).all() for v in after.values())
