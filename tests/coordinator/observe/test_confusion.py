"""Devices count at the end which classes they confuse, and the coordinator checks these counts."""

import pytest
import torch

from protofleet.coordinator.devices.limits import CoordinatorLimits
from protofleet.coordinator.observe import confusion
from protofleet.coordinator.observe.confusion import ALL, confusion_by_domain
from protofleet.coordinator.observe.observers import keep_journal
from protofleet.coordinator.observe.rounds_file import RoundsFile, read_rounds
from protofleet.methods.contract.confusion import CONFUSION, confusion_wants
from protofleet.protocol.wire import forms
from tests.support.small_federation import CLASSES, replace_coordinator, simulation

DOMAINS = [f"domain-{i}" for i in range(3)]


def run_of(folder, method="fedavg", **more):
    run = simulation(folder / "world", method, **more)
    rounds = RoundsFile(folder / "rounds.jsonl")
    keep_journal(run.service.run, [rounds])
    return run, rounds


def counted_naively(agent, data):
    """Count, sample by sample, which class the device's last model predicts for each class."""
    found = [[0] * CLASSES for _ in range(CLASSES)]
    half = agent.run.job.half
    half.model.eval()
    with torch.no_grad():
        for x, y in zip(data.test.x, data.test.y.tolist(), strict=True):
            found[y][int(half.scores(x[None], half.rule()).argmax())] += 1
    return found


@pytest.mark.parametrize("method", ["fedavg", "fedproto"])
def test_the_last_line_has_the_confusion_of_classes_for_each_domain(tmp_path, method):
    run, rounds = run_of(
        tmp_path, method, hyper={"lr": 1e-5}
    )  # The model hardly changes, so it is often wrong.
    run.run()
    *training, last = read_rounds(tmp_path / "rounds.jsonl")
    assert all(line["confusion"] == {} for line in training)
    naive = {
        f"domain-{i}": counted_naively(run.agents[f"device-{i}"], run.shards[f"device-{i}"]) for i in range(3)
    }
    assert last["confusion"] == naive
    transposed = {
        domain: [list(column) for column in zip(*rows, strict=True)] for domain, rows in naive.items()
    }
    assert last["confusion"] != transposed or method != "fedavg"
    assert set(last["payload"]["up"]) == set(), "confusion is control, not payload"
    assert last["wire"]["up"].keys() == {"control"} and last["wire"]["up"]["control"] > 3 * 4 * CLASSES**2


def test_a_coordinator_that_restarts_in_the_last_evaluation_keeps_the_earlier_counts(tmp_path):
    run, rounds = run_of(tmp_path)
    run.run(
        until=lambda: run.service.run.machine.asked == "evaluate" and bool(run.service.run.machine.answered)
    )
    replace_coordinator(run, rounds)
    run.run()
    assert list(read_rounds(tmp_path / "rounds.jsonl")[-1]["confusion"]) == DOMAINS


def test_no_device_sends_confusion_if_the_limit_of_the_coordinator_is_too_small(tmp_path):
    run, rounds = run_of(tmp_path, limits=CoordinatorLimits(confusion=CLASSES - 1))
    run.run()
    last = read_rounds(tmp_path / "rounds.jsonl")[-1]
    assert last["confusion"] == {} and last["participants"] == [f"device-{i}" for i in range(3)]
    assert not any(forms.CONFUSION in agent.link.peer_forms for agent in run.agents.values())
    other, _ = run_of(tmp_path / "on")
    other.run()
    on = read_rounds(tmp_path / "on" / "rounds.jsonl")[-1]
    assert last["wire"]["up"]["control"] + 3 * 4 * CLASSES**2 < on["wire"]["up"]["control"]


def test_a_device_that_does_not_send_confusion_takes_part(tmp_path):
    """A device of an earlier version, or whose owner has turned it off, sends an evaluation without arrays."""
    run, rounds = run_of(tmp_path)
    run.agents["device-1"].tasks.runner.tells_confusion = lambda: False
    run.run()
    last = read_rounds(tmp_path / "rounds.jsonl")[-1]
    assert list(last["confusion"]) == [DOMAINS[0], DOMAINS[2]] and len(last["participants"]) == 3
    assert last["accuracy"]["global"].keys() == set(DOMAINS)


# The checks of the coordinator


def matrix(*rows):
    return {CONFUSION: torch.tensor(rows, dtype=torch.int32)}


def said(samples, accuracy):
    return {"samples.test": float(samples), "accuracy.test.global": accuracy}


def test_the_confusion_of_all_devices_of_one_domain_is_added():
    both = [("a", matrix([3, 1], [0, 4]), said(8, 7 / 8)), ("b", matrix([1, 0], [2, 1]), said(4, 0.5))]
    assert confusion_by_domain(both, {"a": "x", "b": "x"}, "global") == {"x": [[4, 1], [2, 5]]}
    assert confusion_by_domain(both, {"a": "x"}, "global") == {"b": [[1, 0], [2, 1]], "x": [[3, 1], [0, 4]]}


@pytest.mark.parametrize(
    "metrics",
    [
        said(9, 7 / 8),
        said(8, 6 / 8),
        said(8, 1.0),
        {},
        {"samples.test": 8.0, "accuracy.test.personal": 7 / 8},
    ],
)
def test_confusion_that_contradicts_the_metrics_of_its_device_is_left_out(metrics):
    assert confusion_by_domain([("a", matrix([3, 1], [0, 4]), metrics)], {}, "global") == {}
    assert confusion_by_domain([("a", matrix([0, 0], [0, 0]), said(0, 0.0))], {}, "global") == {}


def test_too_many_numbers_of_confusion_are_added_into_one_row_for_all_domains(monkeypatch):
    monkeypatch.setattr(confusion, "MOST_NUMBERS", 7)
    two = [(name, matrix([3, 1], [0, 4]), said(8, 7 / 8)) for name in "ab"]
    assert confusion_by_domain(two, {}, "global") == {ALL: [[6, 2], [0, 8]]}
    assert confusion_by_domain(two[:1], {}, "global") == {"a": [[3, 1], [0, 4]]}


def test_confusion_is_requested_only_for_few_classes_and_is_optional():
    (spec,) = confusion_wants(100, 100).values()
    assert spec.optional and spec.shape == (100, 100) and spec.low == 0 and spec.most_bytes() == 40_000
    assert confusion_wants(101, 100) == confusion_wants(3, 0) == {}


def test_confusion_of_a_device_with_more_samples_than_the_limit_is_scaled_down():
    both = [
        ("a", matrix([3, 1], [0, 4]), said(8, 7 / 8)),
        ("liar", matrix([0, 800], [800, 0]), said(1600, 0.0)),
    ]
    assert confusion_by_domain(both, {"a": "x", "liar": "x"}, "global", 16) == {"x": [[3, 9], [8, 4]]}
