"""One answer within every bound, among honest answers, would end the run for all devices."""

from dataclasses import replace

import pytest
import torch

from protofleet.coordinator.devices.limits import CoordinatorLimits
from protofleet.coordinator.observe.observers import keep_journal
from protofleet.coordinator.observe.rounds_file import RoundsFile
from protofleet.methods.contract.catalog import names
from protofleet.protocol.wire.reasons import Reason
from tests.support.few_methods import with_own_arrays
from tests.support.run_policy import RunPolicy
from tests.support.small_federation import (
    assert_same,
    final_state,
    replace_coordinator_in_the_repeated_round,
    simulation,
)

POLICY = RunPolicy(
    rounds=3, quorum=3, cohort=0, gather=4, patience_seconds=60.0, grace_seconds=3.0, settle_seconds=1.0,
    straggler_factor=0.0,
)  # fmt: skip
ATTACKED = ("fedavg", "fedprox", "fedplcc", "fedproto")


@pytest.mark.slow
@pytest.mark.parametrize("method", with_own_arrays(names()))
def test_honest_runs_have_the_same_bits_with_and_without_the_gate(method, tmp_path):
    runs = [
        simulation(tmp_path / name, method, limits=CoordinatorLimits(outlier=limit)).run()
        for name, limit in (("on", 100.0), ("off", 0.0))
    ]
    assert_same(*runs)
    assert not runs[0].service.run.link.meter.rejected


def poisoned(half, norm):
    """Return an answer of the honest shape in which each float array has this norm."""
    found = {}
    for name, value in half.items():
        if value.is_floating_point():
            value = torch.ones_like(value) * (norm / max(1, value.numel()) ** 0.5)
        found[name] = value
    return found


class Poison:
    """A maker of halves: device-2 answers honestly except in the rounds of its strikes."""

    def __init__(self, norm, rounds):
        self.norm, self.rounds = norm, rounds

    def __call__(self, device, plan, data):
        half = plan.client_half(data.train, device)
        if device == "device-2":
            honest = half.run
            half.run = lambda ask: (
                poisoned(honest(ask), self.norm)
                if ask.phase == "train" and half.number in self.rounds
                else honest(ask)
            )
        return half


def attacked(folder, method, norm, rounds=(1, 2, 3), outlier=100.0, **more):
    policy = replace(POLICY, gather=3, rounds=4, **more)
    limits = CoordinatorLimits(outlier=outlier)
    run = simulation(
        folder, method, policy=policy, limits=limits, build=Poison(norm, rounds), hyper={"epochs": 1}
    )
    file = RoundsFile(folder / "rounds.jsonl")
    keep_journal(run.service.run, [file])
    return run, file


@pytest.mark.parametrize("method", ATTACKED)
def test_an_answer_just_below_every_bound_is_put_aside(method, tmp_path):
    run, file = attacked(tmp_path, method, 9e5)
    run.run()
    assert run.service.finished and not run.service.run.diverged
    assert all(
        v.isfinite().all() and v.abs().max() < 1e3 for v in final_state(run).values() if v.is_floating_point()
    )
    assert run.service.run.link.meter.rejected == {Reason.OUT_OF_BOUNDS: 3}
    lines = file.records[:3]
    assert all(
        set(line["aside"]) == {"device-2"} and "norm of" in line["aside"]["device-2"] for line in lines
    )
    assert all(line["participants"] == ["device-0", "device-1", "device-2"] for line in lines)
    assert (
        run.agents["device-2"].view.receipts["accepted"]
        and not run.agents["device-2"].view.receipts["refused"]
    )


@pytest.mark.parametrize("method", ["fedavg", "fedpall"])
def test_a_replay_puts_the_same_answers_aside(method, tmp_path):
    quiet, _ = attacked(tmp_path / "quiet", method, 5e5)
    quiet.run()
    broken, _ = attacked(tmp_path / "broken", method, 5e5)
    for moment in (2.5, 3.1, 4.2, 5.0):
        broken.clock.call_at(moment, lambda: (broken.kill("coordinator"), broken.boot_coordinator()))
    broken.run()
    assert broken.boots == 5
    assert_same(quiet, broken)


@pytest.mark.parametrize("crash", [False, True])
def test_a_round_after_which_all_trainings_diverge_is_repeated_without_its_outlier(tmp_path, crash):
    """The gate is off: the model is finite, and every honest training on it is not."""
    run, file = attacked(tmp_path, "fedavg", 9e5, rounds=(2,), outlier=0.0)
    if crash:
        replace_coordinator_in_the_repeated_round(run, file)
    run.run()
    assert run.service.finished and not run.service.run.diverged
    state = [v for k, v in final_state(run).items() if k.startswith("server") and v.is_floating_point()]
    assert state and all(v.isfinite().all() and v.abs().max() < 1e2 for v in state)
    assert [line["round"] for line in file.records] == [1, 2, 3, 4, 5]
    if not crash:
        assert "round 2 was repeated without it" in file.records[2]["aside"]["device-2"]


def test_a_diverged_run_ends_at_once_after_a_restart_of_the_coordinator(tmp_path):
    """The learning rate of all devices is far too large, so no single device is at fault."""
    policy = replace(POLICY, gather=3, rounds=4)
    run = simulation(tmp_path, "fedavg", policy=policy, hyper={"lr": 1000.0, "momentum": 0.99, "epochs": 40})
    run.run()
    assert run.service.finished and "not finite" in run.service.run.diverged
    run.run(until=lambda: all(agent.finished for agent in run.agents.values()), limit=60.0)
    assert all(agent.finished for agent in run.agents.values())
    run.boot_coordinator()
    before = run.clock.now
    run.run()
    assert run.service.finished and "not finite" in run.service.run.diverged and run.clock.now < before + 5.0


@pytest.mark.parametrize(
    ("method", "place"), [("fedavg", (3, None)), ("fedavg", (2, "train")), ("fedpall", (2, "train"))]
)
def test_an_error_of_the_server_half_reverts_the_round_that_caused_it(
    tmp_path, monkeypatch, caplog, method, place
):
    """The error occurs at the start of the next round, at the end of the round, or between two phases.

    The answer of device-2 is farthest from the others.
    """
    run, _ = attacked(tmp_path, method, 999.0, rounds=(2,), outlier=0.0)
    runner, left, at = run.service.run.server_runner, [1], []
    step, monitor = runner.step, runner.server.monitor

    def stepped(advance, *given):
        at[:] = [(advance.round, advance.phase)]
        return step(advance, *given)

    def raises():
        if left and at == [place]:
            left.clear()
            raise ZeroDivisionError("planted")
        return monitor()

    monkeypatch.setattr(runner, "step", stepped)
    monkeypatch.setattr(runner.server, "monitor", raises)
    run.run()
    assert run.service.finished and not run.service.run.diverged and runner.errors == 1
    assert [r for r in caplog.records if r.exc_info and r.exc_info[0] is ZeroDivisionError]
    assert run.service.run.link.meter.rejected[Reason.OUT_OF_BOUNDS] == 1
    assert "back to round 2" in caplog.text
