"""Every method on uneven fleets, through the wire: nothing may stop, and nothing may stop being a number."""

import pytest
import torch

from protofleet.coordinator.round.events import Drop
from protofleet.deploy.simulation.federation import Simulation
from protofleet.deploy.simulation.network import NetworkConditions
from protofleet.methods.contract.catalog import names
from tests.support.run_policy import RunPolicy
from tests.support.small_federation import final_state, plan, shard, simulation

METHODS = names()
pytestmark = pytest.mark.slow  # five runs of each of thirty methods
SHORT = RunPolicy(rounds=3, quorum=1, cohort=3, patience_seconds=20.0, grace_seconds=1.0, settle_seconds=0.5)


def world(folder, method, shards, policy=SHORT, **more):
    return Simulation(plan(method, policy.rounds), shards, policy, folder, NetworkConditions(), 0, **more)


def assert_numbers(run):
    assert run.service.finished
    assert all(v.isfinite().all() for v in final_state(run).values())
    for agent in run.agents.values():
        for answer in agent.state.saved.answers:
            measured = {k: v for k, v in answer.metrics.items() if k.startswith("accuracy")}
            assert all(0 <= v <= 1 for v in measured.values())


@pytest.mark.parametrize("method", METHODS)
def test_a_class_that_nobody_holds_and_devices_with_one_class(method, tmp_path):
    shards = {f"device-{i}": shard(i, classes=held) for i, held in enumerate([(0,), (1,), (0, 1)])}
    assert_numbers(world(tmp_path, method, shards).run())


@pytest.mark.parametrize("method", METHODS)
def test_a_fleet_of_one(method, tmp_path):
    assert_numbers(world(tmp_path, method, {"device-0": shard(0)}).run())


@pytest.mark.parametrize("method", METHODS)
def test_two_samples_are_enough(method, tmp_path):
    shards = {"device-0": shard(0), "device-1": shard(0, n=2)}
    assert_numbers(world(tmp_path, method, shards).run())


@pytest.mark.parametrize("method", METHODS)
def test_a_device_that_comes_late_takes_part_from_then_on(method, tmp_path):
    run = world(tmp_path, method, {f"device-{i}": shard(i) for i in range(3)})
    run.kill("device-2")
    run.clock.call_at(2.2, lambda: run.boot_device("device-2"))
    run.run()
    assert_numbers(run)
    assert run.agents["device-2"].state.saved.answers[-1].phase == "evaluate"


@pytest.mark.parametrize("method", METHODS)
def test_devices_that_sit_rounds_out_keep_what_they_know(method, tmp_path):
    policy = RunPolicy(
        **{**{f: getattr(SHORT, f) for f in SHORT.__dataclass_fields__}, "rounds": 5, "cohort": 1}
    )
    run = world(tmp_path, method, {f"device-{i}": shard(i) for i in range(3)}, policy).run()
    assert_numbers(run)


@pytest.mark.parametrize("method", METHODS)
def test_whole_numbers_out_of_range_are_refused_and_the_others_go_on(method, tmp_path):
    """Labels of classes that there are not, counts below zero."""
    wild = {}

    def build(device, plan, data):
        half = plan.client_half(data.train, device)
        if device == "device-1":
            honest = half.run

            def run(ask):
                answer = dict(honest(ask))
                whole = [k for k, v in answer.items() if v.dtype == torch.int64 and "." not in k]
                wild.update(dict.fromkeys(whole, True))
                return {k: v - 10**6 if k in whole else v for k, v in answer.items()}

            half.run = run
        return half

    policy = RunPolicy(rounds=2, quorum=2, cohort=3, patience_seconds=20.0, settle_seconds=0.5)
    watcher = Refusals()
    run = simulation(tmp_path, method, policy=policy, build=build, observers=[watcher]).run()
    assert run.service.finished
    assert all(v.isfinite().all() for v in final_state(run).values())
    assert {device for device, _ in watcher.found} == ({"device-1"} if wild else set())
    assert all("below" in problem.message for _, problem in watcher.found)


class Refusals:
    """Collects who was refused an answer, and why."""

    def __init__(self):
        self.found = set()

    def happened(self, service, event, commands, now):
        self.found |= {
            (c.device, c.problem) for c in commands if isinstance(c, Drop) and c.verdict == "refused"
        }

    def stepped(self, service, step, now):
        pass

    def answered(self, service, update, now):
        pass
