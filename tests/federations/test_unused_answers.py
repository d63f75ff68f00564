"""The server knows the mean of values that devices keep, also if it does not use some answers."""

from dataclasses import replace

import pytest
import torch
from torch.testing import assert_close

from protofleet.coordinator.devices.limits import CoordinatorLimits
from protofleet.coordinator.observe.observers import keep_journal
from protofleet.coordinator.observe.rounds_file import RoundsFile
from tests.support.run_policy import RunPolicy
from tests.support.small_federation import replace_coordinator_in_the_repeated_round, simulation

POLICY = RunPolicy(
    rounds=5, quorum=2, cohort=0, gather=3, patience_seconds=60.0, grace_seconds=1.0, settle_seconds=1.0,
    straggler_factor=0.0,
)  # fmt: skip
SUMS = {"scaffold": "controls", "feddyn": "moves"}
every_method = pytest.mark.parametrize("method", ["scaffold", pytest.param("feddyn", marks=pytest.mark.slow)])
NAME = "device-2"


def nothing(sent, number):
    return sent


class Watched:
    """A maker of halves, which changes what device-2 sends, and notes the rounds for which it has trained.

    A training that begins with large weights ends with weights that are far above each bound.
    """

    def __init__(self, change=nothing):
        self.change, self.trained = change, []

    def __call__(self, device, plan, data):
        half = plan.client_half(data.train, device)
        honest = half.run

        def run(ask):
            large = any(float(v.norm()) > 1e4 for k, v in ask.payload.items() if k.startswith("weights"))
            sent = honest(ask)
            if device == NAME:
                self.trained.append(half.number)
                sent = self.change(sent, half.number)
            return {k: v * 1e9 if v.is_floating_point() else v for k, v in sent.items()} if large else sent

        half.run = run
        return half


def started(folder, method, change=nothing, **more):
    maker = Watched(change)
    run = simulation(folder, method, build=maker, hyper={"epochs": 1}, **{"policy": POLICY, **more})
    file = RoundsFile(folder / "rounds.jsonl")
    keep_journal(run.service.run, [file])
    return run, file, maker


def check_mean(run, method):
    """Compare the server's mean with the values from which the devices would continue."""
    server = run.service.run.server_runner.server
    sums = getattr(server, SUMS[method])
    halves = {name: agent.run.job.half for name, agent in run.agents.items() if name in sums.counted}
    kept = [half.kept.continue_from(sums.told(), half.model)[1] for half in halves.values()]
    assert len(kept) == 3
    for name, value in sums.mean().items():
        assert_close(value, sum(one[name] for one in kept) / len(kept), rtol=1e-5, atol=1e-6)
        assert value.abs().max() > 1e-4 or name.endswith("bias"), "the values must have changed"


def used(file):
    return [line["round"] for line in file.records if NAME in line["participants"]]


@every_method
@pytest.mark.slow
def test_late_answers_are_not_in_the_mean(method, tmp_path):
    run, file, maker = started(tmp_path, method, policy=replace(POLICY, patience_seconds=3.0))
    for number, seconds in ((2, 5.0), (3, 1.0)):
        run.run(until=lambda n=number: run.service.run.machine.round == n)
        run.workers[NAME].seconds = seconds
    run.run()
    check_mean(run, method)
    assert 2 in maker.trained and 2 not in used(file), "the answer to round 2 must have come too late"
    assert 1 in used(file) and max(used(file)) > 2


@every_method
@pytest.mark.slow
def test_refused_answers_are_not_in_the_mean(method, tmp_path):
    def broken(sent, number):
        return {k: v * float("nan") if number == 2 and v.is_floating_point() else v for k, v in sent.items()}

    run, file, maker = started(tmp_path, method, broken)
    run.run()
    check_mean(run, method)
    assert 2 in maker.trained and 2 not in used(file) and 1 in used(file) and max(used(file)) > 2


@every_method
@pytest.mark.parametrize("crash", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_an_answer_that_a_repeated_round_leaves_out_is_not_in_the_mean(method, tmp_path, crash):
    """Devices diverge in round 3, so round 2 is repeated after they have trained for round 3."""

    def poisoned(sent, number):
        if number != 2:
            return sent
        return {k: torch.full_like(v, 9e5 / v.numel() ** 0.5) if v.ndim > 1 else v for k, v in sent.items()}

    policy, limits = replace(POLICY, quorum=3, grace_seconds=3.0), CoordinatorLimits(outlier=0.0)
    run, file, maker = started(tmp_path, method, poisoned, policy=policy, limits=limits)
    if crash:
        replace_coordinator_in_the_repeated_round(run, file)
    run.run()
    assert run.service.finished and not run.service.run.diverged
    check_mean(run, method)
    assert [number for number in maker.trained if number > 2][:2] == [3, 3], "round 3 must have begun twice"


@every_method
@pytest.mark.slow
def test_the_mean_stays_right_if_parties_are_killed_in_each_round(method, tmp_path):
    run, _, _ = started(tmp_path, method, policy=replace(POLICY, patience_seconds=3.0))
    for number in range(1, POLICY.rounds + 1):
        run.run(until=lambda n=number: run.service.run.machine.round >= n)
        run.workers[NAME].seconds = 5.0 if number % 2 else 1.0
        run.run(until=lambda n=number: run.service.run.machine.answered or run.service.run.machine.round > n)
        run.kill("device-1")
        run.boot_device("device-1")
        run.kill("coordinator")
        run.boot_coordinator()
    run.run()
    check_mean(run, method)
