"""All present devices evaluate between rounds that leave some out, and these evaluations can end a run early."""

from dataclasses import replace

import pytest
import torch

from protofleet.coordinator.observe.curves import measured as summarised
from protofleet.coordinator.observe.metrics import Metrics
from protofleet.coordinator.observe.observers import keep_journal
from protofleet.coordinator.observe.record import record_of
from protofleet.coordinator.observe.rounds_file import RoundsFile
from protofleet.coordinator.round.policy import Stop
from protofleet.lab.contract.worlds import RunPolicy, Subject, final_state, part, shard

DEVICES = [f"device-{i}" for i in range(3)]
KEPT = ("round", "kind", "participants", "accuracy", "validation", "loss", "pooled", "measured", "evaluation")


def simulation(folder, method="fedavg", rounds=4, every=2, cohort=1, stop=None, validation=True):
    times = {"gather": 3, "straggler_factor": 0.0}
    policy = RunPolicy(
        rounds=rounds, quorum=cohort or 3, cohort=cohort, evaluate_every=every, stop=stop, **times
    )
    shards = {device: shard(i) for i, device in enumerate(DEVICES)}
    if not validation:
        shards = {device: replace(one, validation=part(0, 0, 0.0)) for device, one in shards.items()}
    run = Subject(method).simulation(folder, policy=policy, shards=shards)
    observe(run)
    return run


def observe(run):
    keep_journal(run.service.run, [RoundsFile(run.folder / "rounds.jsonl")])


def lines_of(run):
    return RoundsFile(run.folder / "rounds.jsonl").records


def what_was_measured(run):
    """Return the lines of a run without what a crash may change: seconds, and bytes of repeated messages."""
    found = [{key: line[key] for key in KEPT} for line in lines_of(run)]
    for line in found:
        if line["evaluation"]:
            line["evaluation"] = {
                k: v for k, v in line["evaluation"].items() if k not in ("seconds", "payload", "wire")
            }
            line["evaluation"]["answered"].sort()
    return found


def same(one, other):
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def test_all_present_devices_evaluate_between_rounds_that_leave_some_devices_out(tmp_path):
    run = simulation(tmp_path).run()
    lines = lines_of(run)
    assert [line["round"] for line in lines] == [1, 2, 3, 4, 5]
    assert [bool(line["evaluation"]) for line in lines] == [False, False, True, False, False]
    evaluated = lines[2]["evaluation"]
    assert evaluated["asked"] == DEVICES and sorted(evaluated["answered"]) == DEVICES
    assert sorted(lines[2]["accuracy"]["global"]) == [f"domain-{i}" for i in range(3)]
    assert lines[2]["accuracy"]["global"] == evaluated["accuracy"]["global"]
    assert [line["measured"]["global"] for line in lines] == [
        {"devices": n, "asked": n, "present": 3} for n in (1, 1, 3, 1, 3)
    ]
    assert [len(line["participants"]) for line in lines] == [1, 1, 1, 1, 3]
    assert [[phase["phase"] for phase in line["phases"]] for line in lines] == [["train"]] * 4 + [
        ["evaluate"]
    ]
    found = summarised(lines, "global")
    assert found["start"] == {} and len(found["final"]) == 4, "one device of three measured the first point"


@pytest.mark.parametrize(("method", "view"), [("fedavg", "global"), ("fedsa", "personal")])
def test_the_accuracy_metric_has_the_accuracies_of_all_present_devices(tmp_path, method, view):
    """A sampled cohort can have other domains in each round."""
    run = simulation(tmp_path, method).run()
    lines, shown, rounds = lines_of(run), [], []
    for count in range(1, len(lines) + 1):
        metrics = Metrics(run.service.run.view)
        metrics.restore(map(record_of, lines[:count]), 0.0)
        found = {
            (one.labels["domain"], one.labels["view"]): one.value
            for family in metrics.registry.collect()
            for one in family.samples
            if one.name == "protofleet_accuracy_ratio" and one.labels["split"] == "test"
        }
        rounds.append(metrics.registry.get_sample_value("protofleet_accuracy_round"))
        shown.append({domain: value for (domain, of), value in found.items() if of == view})
    evaluated, last = lines[2]["evaluation"]["accuracy"][view], lines[4]["accuracy"][view]
    assert len(evaluated) == 3 and shown == [{}, {}, evaluated, evaluated, last]
    assert rounds == [0, 0, 3, 3, 5]


@pytest.mark.parametrize("method", ["fedavg", "fedhp"])
def test_evaluations_change_no_weight(tmp_path, method):
    """FedHP fits once more before it is measured, and a device undoes this fit if more rounds follow."""
    on = simulation(tmp_path / "on", method).run()
    off = simulation(tmp_path / "off", method, every=0).run()
    assert any(line["evaluation"] for line in lines_of(on)) and not any(
        line["evaluation"] for line in lines_of(off)
    )
    assert same(final_state(on), final_state(off))
    assert [line["participants"] for line in lines_of(on)] == [line["participants"] for line in lines_of(off)]


def test_an_evaluation_costs_one_broadcast_and_its_bytes_are_in_its_line(tmp_path):
    run = simulation(tmp_path, "fedproto").run()
    line = lines_of(run)[2]
    down, up = (line["evaluation"]["payload"][way] for way in ("down", "up"))
    assert sum(down.values()) > 0
    assert not up  # only measurements
    assert sum(line["payload"]["down"].values()) >= sum(down.values())
    assert line["evaluation"]["wire"]["up"]["control"] > 0


def test_a_cohort_of_all_devices_evaluates_inside_its_rounds_for_the_same_bytes(tmp_path):
    with_default = simulation(tmp_path / "default", cohort=0, every=1).run()
    without = simulation(tmp_path / "off", cohort=0, every=0).run()
    assert [line["payload"] for line in lines_of(with_default)] == [
        line["payload"] for line in lines_of(without)
    ]
    assert not any(line["evaluation"] for line in lines_of(with_default))
    assert all(
        who["asked"] == who["present"] == 3
        for line in lines_of(with_default)
        for who in line["measured"].values()
    )


@pytest.mark.slow
@pytest.mark.parametrize("victim", ["coordinator", "device-1"])
@pytest.mark.parametrize("moment", ["asked", "half answered", "closed"])
def test_a_kill_around_an_evaluation_changes_no_bit_and_no_measurement(tmp_path, victim, moment):
    unbroken = simulation(tmp_path / "unbroken").run()
    run = simulation(tmp_path / "broken")
    machine = run.service.run.machine
    reached = {
        "asked": lambda: machine.round == 3 and machine.asked == "evaluate" and bool(machine.waited_for),
        "half answered": lambda: (
            machine.round == 3 and machine.asked == "evaluate" and len(machine.answered) >= 1
        ),
        "closed": lambda: machine.round == 3 and machine.asked == "train",
    }
    run.run(reached[moment])
    assert machine.round == 3
    run.kill(victim)
    if victim == "coordinator":
        run.boot_coordinator()
        observe(run)
    else:
        run.boot_device(victim)
    run.run()
    assert same(final_state(run), final_state(unbroken))
    broken, whole = what_was_measured(run), what_was_measured(unbroken)
    assert broken[2]["evaluation"] == whole[2]["evaluation"]
    if victim == "coordinator":  # a device that comes back may not be counted as present yet
        assert broken == whole


@pytest.mark.parametrize("cohort", [0, 1])
def test_a_run_stops_when_its_validation_accuracy_is_high_enough(tmp_path, cohort, caplog):
    caplog.set_level("INFO")
    run = simulation(tmp_path, rounds=50, every=1, cohort=cohort, stop=Stop(accuracy=0.5)).run()
    lines, view = lines_of(run), run.service.run.view
    trained = [line for line in lines if line["kind"] == "training"]
    assert len(trained) < 50 and [line["kind"] for line in lines[-2:]] == ["training", "evaluation"]
    assert [line["round"] for line in lines] == list(range(1, len(lines) + 1))
    values = list(trained[-1]["validation"]["global"].values())
    assert sum(values) / len(values) >= 0.5
    assert "policy.stop.accuracy is 0.5" in view.ended_early and view.ended_early in caplog.text
    assert run.service.finished and not run.service.stopped and not view.diverged
    assert all(agent.run.over for agent in run.agents.values())
    assert lines[-1]["measured"]["global"] == {"devices": 3, "asked": 3, "present": 3}


@pytest.mark.slow
@pytest.mark.parametrize("kills", [0, 1])
def test_patience_counts_evaluations_without_an_improvement_also_across_kills(tmp_path, kills):
    """The history is in the spool: a coordinator that is killed in each round ends the run with the same round."""
    stop = Stop(patience=2)
    run = simulation(tmp_path, rounds=50, every=0, cohort=0, stop=stop)
    for number in range(2, 50 if kills else 0):
        run.run(lambda number=number: run.service.finished or run.service.run.machine.round >= number)
        if run.service.finished:
            break
        run.kill("coordinator")
        run.boot_coordinator()
        observe(run)
    run.run()
    lines = lines_of(run)
    means = [sum(line["validation"]["global"].values()) / 3 for line in lines if line["kind"] == "training"]
    best = means.index(max(means))
    assert len(means) - 1 - best == 2 and lines[-1]["kind"] == "evaluation"
    assert run.service.run.view.ended_early.startswith("2 evaluations in a row were not better")


def test_a_stopped_run_ends_after_a_kill_of_its_coordinator_in_the_last_evaluation(tmp_path):
    run = simulation(tmp_path, rounds=50, cohort=0, stop=Stop(accuracy=0.5))
    run.run(lambda: run.service.run.machine.asked == "evaluate" and bool(run.service.run.machine.waited_for))
    ended_early = run.service.run.view.ended_early
    run.kill("coordinator")
    run.boot_coordinator()
    observe(run)
    run.run()
    assert run.service.run.view.ended_early == ended_early != ""
    assert lines_of(run)[-1]["kind"] == "evaluation" and len(lines_of(run)) < 51
    run.kill("coordinator")
    run.boot_coordinator()  # It finds that the run has finished.
    run.run()
    assert run.service.finished and run.service.run.view.ended_early == ended_early


def test_a_run_with_a_stop_setting_and_without_validation_samples_gets_a_warning(tmp_path, caplog):
    run = simulation(tmp_path, rounds=3, cohort=0, stop=Stop(patience=1), validation=False)
    run.run()
    assert caplog.text.count("no device has measured validation samples") == 1
    assert len(lines_of(run)) == 4
