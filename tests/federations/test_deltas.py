"""A federation whose broadcasts are sent as deltas: bytes, bits, restarts, absent devices, and deltas that fail."""

from dataclasses import replace

import numpy as np
import pytest

from protofleet.coordinator.spool.update_reader import UpdateReader
from protofleet.methods.contract.plan import Network
from protofleet.protocol.coding.delta import body_of, bytes_of
from protofleet.protocol.coding.update import encode_arrays
from protofleet.protocol.link.meter import DOWN
from protofleet.protocol.settings.codec import CodecSettings, CodecStage
from tests.support.few_methods import FEW_STEPS, few
from tests.support.run_policy import RunPolicy
from tests.support.small_federation import assert_same, restart_in_each_round, shard, simulation

TERNARY = CodecStage("ternary", "broadcast", keep=4)
UP = CodecStage("ternary", "broadcast", keep=10, feedback=True)
INT8 = CodecStage("int8", "broadcast")
UINT4 = CodecStage("uint4", pack=True)
STAGES = {
    "fedavg": ({"weights": UP}, {"weights": TERNARY}),
    "fedlsa": ({"weights": CodecStage("rice", "broadcast", feedback=True)}, {"weights": INT8}),
    "fedproto": ({"prototypes": UINT4}, {"prototypes": UINT4}),
    "fedpall": ({}, {"classifier": TERNARY, "amplifier": TERNARY}),
    "fedga": ({}, {"weights": INT8}),
    "rucr": ({}, {"weights": INT8}),
}
SAMPLED = RunPolicy(
    rounds=8, quorum=2, cohort=2, patience_seconds=20.0, grace_seconds=3.0, settle_seconds=1.0
)


def coded(folder, method, stages=None, hyper=FEW_STEPS, **more):
    """Return a simulation of the method with these stages, and a network with arrays that are not small."""
    run = simulation(folder, method, hyper=hyper, **more)
    codec = CodecSettings(*stages) if stages else None
    made = replace(run.plan, network=Network("mlp", 40), codec=codec)
    return type(run)(made, run.shards, run.policy, folder / "coded", run.conditions, run.seed)


def received(part):
    return sum(n for (direction, _), n in part.meter.payload.items() if direction == DOWN)


def holds_the_newest(run):
    """Return the devices whose store has the coordinator's newest broadcast."""
    newest = run.service.run.server_runner.chain.links[-1].base
    return {name for name, agent in run.agents.items() if agent.state.store.has(newest)}


@pytest.mark.parametrize("method", few(STAGES, 6))
def test_deltas_take_fewer_bytes_than_broadcasts(tmp_path, method):
    plain = coded(tmp_path / "plain", method).run()
    run = coded(tmp_path / "run", method, STAGES[method]).run()
    assert not run.service.run.link.meter.rejected
    assert received(run.service.run.link) < 0.6 * received(plain.service.run.link)
    for name, agent in run.agents.items():
        assert received(agent.link) < 0.6 * received(plain.agents[name].link)
    assert holds_the_newest(run) == set(run.agents)


@pytest.mark.parametrize(
    "method", [m if m == "fedavg" else pytest.param(m, marks=pytest.mark.slow) for m in STAGES]
)
def test_restarts_of_all_parties_in_each_round_change_no_bit(tmp_path, method):
    whole = coded(tmp_path / "whole", method, STAGES[method]).run()
    run = coded(tmp_path / "run", method, STAGES[method])
    restart_in_each_round(run)
    assert_same(whole, run.run())


def test_the_first_weights_are_not_sent_because_each_device_computes_them(tmp_path):
    run = coded(tmp_path, "fedavg", STAGES["fedavg"])
    run.run(until=lambda: len(run.service.run.machine.answered) == 3)
    assert all(received(agent.link) == 0 for agent in run.agents.values())


def test_devices_that_skip_some_rounds_still_need_few_bytes(tmp_path):
    """With two of five devices in a round, the newest broadcast of a device is often several rounds old."""
    shards = {f"device-{i}": shard(i) for i in range(5)}
    plain = coded(tmp_path / "plain", "fedavg", shards=shards, policy=SAMPLED).run()
    run = coded(tmp_path / "run", "fedavg", STAGES["fedavg"], shards=shards, policy=SAMPLED).run()
    assert holds_the_newest(run) == set(run.agents)
    for name, agent in run.agents.items():
        assert received(agent.link) < 0.3 * received(plain.agents[name].link)


def test_a_late_device_receives_a_delta_to_the_first_weights(tmp_path):
    policy = RunPolicy(rounds=3, quorum=2, patience_seconds=20.0, grace_seconds=1.0, settle_seconds=0.5)
    run = coded(tmp_path, "fedavg", STAGES["fedavg"], policy=policy)
    run.kill("device-2")
    run.run(until=lambda: run.service.run.machine.round == 2)
    assert run.clock.now < policy.patience_seconds
    run.boot_device("device-2")
    run.run()
    whole = run.service.run.server_runner.chain.links[-1].base
    assert run.agents["device-2"].state.store.has(whole)
    assert 0 < received(run.agents["device-2"].link) < run.agents["device-2"].state.store.size(whole)


@pytest.mark.parametrize("fault", ["other bits", "not a delta"])
def test_a_device_with_a_failed_delta_fetches_the_whole_broadcast(tmp_path, fault, monkeypatch):
    whole = coded(tmp_path / "whole", "fedavg", STAGES["fedavg"]).run()
    name = "protofleet.edge_client.received_delta.apply_delta"
    if fault == "other bits":
        monkeypatch.setattr(name, lambda steps, stages, held, size: bytes_of(held))
    else:
        from protofleet.protocol.coding.delta import apply_delta

        monkeypatch.setattr(
            name, lambda steps, stages, held, size: apply_delta(body_of(bytes_of({})), stages, held, size)
        )
    run = coded(tmp_path / "run", "fedavg", STAGES["fedavg"]).run()
    assert_same(whole, run)
    rounds = run.plan.rounds
    size = run.service.run.spool.broadcasts.size(run.service.run.server_runner.chain.links[-1].base)
    assert all(received(agent.link) > 0.9 * rounds * size for agent in run.agents.values())


def test_updates_are_added_to_the_exact_arrays_of_the_server_half(tmp_path):
    """If updates were added to the rounded arrays, the rounding losses of the broadcast would be lost."""
    run = coded(tmp_path, "fedavg", STAGES["fedavg"]).run()
    runner, spool, plan = run.service.run.server_runner, run.service.run.spool, run.plan
    link = runner.chain.links[-2]
    shown, exact = spool.chain_store.open(link.base), spool.chain_store.open(link.exact)
    name = max(exact, key=lambda name: exact[name].size)
    assert not np.array_equal(shown[name], exact[name])
    unchanged = encode_arrays(dict(shown), plan.codec.up, shown, {}, lambda kind: None).arrays
    read = UpdateReader(spool, plan, runner.chain).payload(body_of(bytes_of(unchanged)), link.base, 1 << 20)
    assert np.array_equal(read[name].numpy(), exact[name])
