"""If some answers make the server half fail at any step, the round is repeated without these answers."""

from dataclasses import replace

import pytest

import protofleet.methods.fedavg
import protofleet.methods.fedpall
from protofleet.coordinator.devices.limits import CoordinatorLimits
from protofleet.coordinator.observe.observers import keep_journal
from protofleet.coordinator.observe.rounds_file import RoundsFile
from protofleet.coordinator.round.events import Left
from protofleet.lab.simulation.federation import Simulation
from tests.support.run_policy import RunPolicy
from tests.support.small_federation import (
    plan,
    replace_coordinator,
    replace_coordinator_in_the_repeated_round,
    shard,
)

POLICY = RunPolicy(
    rounds=3, quorum=5, gather=5, patience_seconds=60.0, grace_seconds=3.0, settle_seconds=1.0,
    straggler_factor=0.0,
)  # fmt: skip
FAR, LIAR, SECOND = "device-0", "device-2", "device-3"
STRIKE = 0.4375


def federation(folder, method, strikes, **rules):
    """Return a run; `strikes` maps a device to the round and phase in which its answer holds the number.

    FAR's answers are always the largest.
    """

    def build(device, plan, data):
        half = plan.client_half(data.train, device)
        honest = half.run

        def run(ask):
            found = {name: v.clone() for name, v in honest(ask).items()}
            floats = [v for name, v in found.items() if v.is_floating_point() and v.numel()]
            if device == FAR and half.number == 2:
                for value in floats:
                    value *= 4
            if (half.number, ask.phase) in strikes.get(device, ()):
                for value in floats:
                    value.view(-1)[0] = STRIKE
            return found

        half.run = run
        return half

    shards = {f"device-{i}": shard(i) for i in range(5)}
    made = plan(method, POLICY.rounds, epochs=1, server_epochs=1)
    policy = replace(POLICY, **rules)
    run = Simulation(made, shards, policy, folder, build=build, limits=CoordinatorLimits(outlier=0.0))
    file = RoundsFile(folder / "rounds.jsonl")
    keep_journal(run.service.run, [file])
    return run, file


def holds_strike(replies):
    """Return whether one of the answers holds the number in every float array."""
    arrays = ([v for v in r.payload.values() if v.is_floating_point() and v.numel()] for r in replies)
    return any(all(float(v.reshape(-1)[0]) == STRIKE for v in floats) for floats in arrays)


def fails_at_strikes(monkeypatch, place, name, argument=0):
    honest = getattr(place, name)

    def fails(*given):
        if holds_strike(given[argument]):
            raise ZeroDivisionError("planted")
        return honest(*given)

    monkeypatch.setattr(place, name, fails)


def assert_repeated_without(run, file, *devices):
    assert run.service.finished and not run.service.run.diverged
    assert [line["round"] for line in file.records] == [1, 2, 3, 4]
    aside = {device for line in file.records for device in line["aside"]}
    assert aside == set(devices)


def test_several_answers_that_make_a_round_fail_are_put_aside_together(tmp_path, monkeypatch, caplog):
    fails_at_strikes(monkeypatch, protofleet.methods.fedavg, "weighted_mean")
    strikes = {LIAR: [(2, "train")], SECOND: [(2, "train")]}
    run, file = federation(tmp_path, "fedavg", strikes)
    run.run()
    assert_repeated_without(run, file, LIAR, SECOND)
    assert caplog.text.count("back to round 2") == 1
    assert sum(run.service.run.link.meter.rejected.values()) == 2


def test_a_run_diverges_if_a_majority_of_answers_makes_the_round_fail(tmp_path, monkeypatch):
    fails_at_strikes(monkeypatch, protofleet.methods.fedavg, "weighted_mean")
    run, _ = federation(tmp_path, "fedavg", {f"device-{i}": [(2, "train")] for i in (1, 2, 3)})
    run.run()
    assert "without any minority of the answers to round 2" in run.service.run.diverged


def fails_at_the_start_of_round_three(monkeypatch):
    """Let the server half fail at a weight that a strike caused; the state itself is finite."""
    payload, mean = protofleet.methods.fedavg.Server.payload, protofleet.methods.fedavg.weighted_mean

    def fails(server):
        if server.number == 3 and any(float(v.reshape(-1)[0]) == 0.5 for v in server.state().values()):
            raise ZeroDivisionError("planted")
        return payload(server)

    def marked(replies, wants):
        found = dict(mean(replies, wants))
        if holds_strike(replies):
            next(iter(found.values())).view(-1)[0] = 0.5
        return found

    monkeypatch.setattr(protofleet.methods.fedavg.Server, "payload", fails)
    monkeypatch.setattr(protofleet.methods.fedavg, "weighted_mean", marked)


def test_an_answer_that_makes_the_next_round_fail_is_put_aside(tmp_path, monkeypatch):
    fails_at_the_start_of_round_three(monkeypatch)
    run, file = federation(tmp_path, "fedavg", {LIAR: [(2, "train")]})
    run.run()
    assert_repeated_without(run, file, LIAR)


def test_a_repeated_round_uses_answers_of_devices_that_have_left(tmp_path, monkeypatch):
    """No later round includes these devices, and their answers are used."""
    fails_at_the_start_of_round_three(monkeypatch)
    run, file = federation(tmp_path, "fedavg", {LIAR: [(2, "train")]}, quorum=3)
    machine = run.service.run.machine
    run.run(until=lambda: machine.round == 2 and "device-4" in machine.answered)
    run.kill("device-4")
    run.service.run.happen(Left("device-4"))
    run.run(until=lambda: machine.round == 3)
    replace_coordinator(run, file)
    run.run()
    assert run.service.finished and not run.service.run.diverged
    assert [line["aside"].keys() for line in file.records if line["round"] == 3] == [{LIAR}]


def fails_after_mix(monkeypatch, when):
    fit = protofleet.methods.fedpall.ServerModels.fit

    def fails(pupils, replies, *given):
        if when(replies):
            raise ZeroDivisionError("planted")
        return fit(pupils, replies, *given)

    monkeypatch.setattr(protofleet.methods.fedpall.ServerModels, "fit", fails)


@pytest.mark.slow
@pytest.mark.parametrize("phase", ["train", "mix"])
def test_a_guilty_answer_is_found_in_either_phase_of_a_round(tmp_path, monkeypatch, phase):
    if phase == "train":
        fails_at_strikes(monkeypatch, protofleet.methods.fedpall.Server, "merge", argument=1)
    else:
        fails_after_mix(monkeypatch, holds_strike)
    run, file = federation(tmp_path, "fedpall", {LIAR: [(2, phase)]})
    run.run()
    assert_repeated_without(run, file, LIAR)


def struck_prototypes(monkeypatch):
    """Let an answer of one device in the first phase break the result of the second."""
    struck = []
    merge = protofleet.methods.fedpall.Server.merge

    def marked(server, replies):
        struck[:] = [holds_strike(replies)]
        return merge(server, replies)

    monkeypatch.setattr(protofleet.methods.fedpall.Server, "merge", marked)
    fails_after_mix(monkeypatch, lambda replies: struck[0])


@pytest.mark.slow
@pytest.mark.parametrize("crash", [False, True])
def test_an_answer_that_breaks_the_second_phase_is_left_out_of_both_phases(tmp_path, monkeypatch, crash):
    """The other devices get the task of the second phase again, because its broadcast has changed."""
    struck_prototypes(monkeypatch)
    run, file = federation(tmp_path, "fedpall", {LIAR: [(2, "train")]})
    if crash:
        replace_coordinator_in_the_repeated_round(run, file)
    run.run()
    assert run.service.finished and not run.service.run.diverged
    second = next(line for line in file.records if line["round"] == 2)
    assert sorted(second["phases"][-1]["answered"]) == ["device-0", "device-1", "device-3", "device-4"]


@pytest.mark.slow
def test_a_second_liar_in_a_later_phase_of_a_repeated_round_is_put_aside_too(tmp_path, monkeypatch):
    fails_at_strikes(monkeypatch, protofleet.methods.fedpall.Server, "merge", argument=1)
    fails_after_mix(monkeypatch, holds_strike)
    run, file = federation(tmp_path, "fedpall", {LIAR: [(2, "train")], SECOND: [(2, "mix")]})
    run.run()
    assert_repeated_without(run, file, LIAR, SECOND)
