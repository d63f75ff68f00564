"""An answer within every bound leads to a broadcast with which half of the other devices diverge."""

from dataclasses import replace

import pytest

from protofleet.coordinator.observe.observers import keep_journal
from protofleet.coordinator.observe.rounds_file import RoundsFile
from protofleet.coordinator.round.events import Stage
from tests.support.run_policy import RunPolicy
from tests.support.small_federation import assert_same, replace_coordinator, shard, simulation

POLICY = RunPolicy(
    rounds=3, quorum=3, gather=4, patience_seconds=20.0, grace_seconds=3.0, settle_seconds=1.0, straggler_factor=0.0
)  # fmt: skip
LIAR, FAR = "device-3", "device-2"
TENDER = ("device-0", "device-1")  # Their training exceeds every bound if the weights are too large.
TOO_LARGE = 1.6  # The factor over the norms of the first weights.


def federation(
    folder, change=8.0, strikes=(1, 2, 3), tender=TENDER, policy=POLICY, far=(), never_again=False
):
    """Return a run whose honest devices answer with the received weights.

    In the rounds of `far` one of them is farther than the liar.
    """

    def build(device, plan, data):
        half = plan.client_half(data.train, device)
        first = plan.model().state_dict()
        norms = {f"weights.{name}": float(v.norm()) for name, v in first.items() if v.is_floating_point()}

        def run(ask):
            floats = {n: v for n, v in ask.payload.items() if v.is_floating_point()}
            weights = {n: v for n, v in floats.items() if norms[n] and not n.endswith("bias")}
            large = any(float(v.norm()) > TOO_LARGE * norms[n] for n, v in weights.items())
            large |= never_again and half.number > 1
            factor = 1.0
            if large and device in tender:
                factor = 1e9
            elif device == LIAR and half.number in strikes:
                factor = change
            bias = 50.0 if device == FAR and half.number in far else factor
            factors = {n: bias if n.endswith("bias") else factor for n in floats}
            return {n: v * factors[n] if n in floats else v for n, v in ask.payload.items()}

        half.run = run
        return half

    run = simulation(folder, "fedavg", policy=policy, shards={LIAR: shard(3)}, build=build)
    file = RoundsFile(folder / "rounds.jsonl")
    keep_journal(run.service.run, [file])
    return run, file


def test_the_earlier_step_is_repeated_without_one_answer_and_the_run_ends(tmp_path, caplog):
    """Earlier, the run repeated the round for ever: updates of the same two devices were refused each time."""
    run, file = federation(tmp_path)
    run.run(limit=600.0)
    assert run.service.finished and not run.service.run.diverged
    assert [line["round"] for line in file.records] == [1, 2, 3, 4]
    assert (
        f"which is repeated without the answer of {LIAR}: 2 of 4 devices have diverged in round 2 train"
        in (caplog.text)
    )
    assert {device for line in file.records for device in line["aside"]} == {LIAR}
    assert run.clock.now < 3 * POLICY.patience_seconds


def test_an_honest_answer_that_was_left_out_without_effect_is_used_again(tmp_path, caplog):
    """The honest answer is farther from the others than the liar's, so it is left out first."""
    run, file = federation(tmp_path, strikes=(1,), far=(1,))
    run.run(limit=600.0)
    assert run.service.finished and not run.service.run.diverged
    out = caplog.text
    assert out.index(f"repeated without the answer of {FAR}") < out.index(
        f"the answer of {FAR} to round 1 is used again"
    )
    assert {device for line in file.records for device in line["aside"]} == {LIAR}


@pytest.mark.parametrize(("attempts", "trials"), [("auto", 4), (2, 0)])
def test_a_run_ends_as_diverged_if_no_answer_is_at_fault(tmp_path, caplog, attempts, trials):
    """Two devices diverge with every broadcast after the first, also if any answer is left out."""
    policy = replace(POLICY, attempts=attempts)
    run, _ = federation(tmp_path, strikes=(), policy=policy, never_again=True)
    run.run(limit=900.0)
    assert run.service.finished and "policy.quorum is 3" in run.service.run.diverged
    assert caplog.text.count("which is repeated without the answer of") == trials


DEATHS = (Stage.BLAMING, Stage.COMPUTING, Stage.COLLECTING)


@pytest.mark.slow
@pytest.mark.parametrize("stage", DEATHS)
def test_a_coordinator_that_crashes_during_the_search_ends_with_the_same_bits(tmp_path, stage):
    quiet, _ = federation(tmp_path / "quiet", far=(1,))
    quiet.run(limit=600.0)
    broken, file = federation(tmp_path / "broken", far=(1,))
    machine = broken.service.run.machine
    broken.run(until=lambda: bool(machine.trials.tried) or machine.stage is Stage.BLAMING, limit=600.0)
    for _ in range(3):
        machine = broken.service.run.machine
        broken.run(until=lambda m=machine: m.stage is stage or broken.service.finished, limit=600.0)
        if not broken.service.finished:
            replace_coordinator(broken, file)
    broken.run(limit=900.0)
    assert quiet.service.finished and broken.service.finished and broken.boots == 4
    assert_same(quiet, broken)
