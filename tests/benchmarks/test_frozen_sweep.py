"""Tests of the program that runs a sweep with frozen features in one process, with the same accuracies as runs."""

import json

import pytest

from benchmarks.programs.frozen_sweep import Trials, features_of
from protofleet.coordinator.observe.observers import keep_journal
from protofleet.coordinator.observe.rounds_file import RoundsFile
from protofleet.lab.local.sweep_file import Wish, planned
from protofleet.lab.simulation.federation import Simulation
from protofleet.protocol.storage.disk import Disk

EXPERIMENT = """
name = "small"
rounds = 1
freeze = "backbone"
{codec}
method = {{ name = "{method}"{more} }}
network = {{ name = "cnn_bn", feature_size = 32 }}
data = {{ source = "digits", samples = 20, test_samples = 20, validation = 0.25, size = 16 }}
devices = {{ clients = {{ mnist = 1, optdigits = 1 }} }}
"""
MORE = ", least_samples = 1"  # Each device has few samples of each class.
GRIDS = {
    "fed3r": ("lam", [0.01, 10.0]),
    "fedncm": ("metric", ["cosine", "euclidean"]),
    "singleset": ("lr", [0.01, 0.1]),
}


@pytest.mark.parametrize(
    ("method", "codec"),
    [
        ("fed3r", ""),
        pytest.param("fedncm", 'codec = "safe"', marks=pytest.mark.slow),
        pytest.param("singleset", "", marks=pytest.mark.slow),
    ],
)
def test_each_trial_has_the_same_accuracies_as_a_federation_with_messages(method, codec, tmp_path):
    key, values = GRIDS[method]
    more = "" if method == "singleset" else MORE
    (tmp_path / "small.toml").write_text(EXPERIMENT.format(method=method, codec=codec, more=more))
    grid = {"data.seed": [0, 1], f"method.{key}": values}
    lines = [f'"{name}" = {json.dumps(each)}' for name, each in grid.items()]
    (tmp_path / "sweep.toml").write_text("\n".join(['experiment = "small.toml"', "[grid]", *lines]))
    plan, _ = planned(tmp_path / "sweep.toml", Wish())
    trials = Trials(tmp_path)
    table = trials.table(plan)
    assert [one["runs"] for one in table["trials"]] == [[point.trials[0].name] for point in plan.points]
    last, found = plan.points[-1].trials[0], table["trials"][-1]
    run = Simulation(last.plan, features_of(last, tmp_path), last.effective_policy, tmp_path / "run")
    file = RoundsFile(tmp_path / "rounds.jsonl", Disk(False))
    keep_journal(run.service.run, [file])
    run.run()
    (accuracy,) = file.records[-1]["accuracy"].values()
    assert found["test"] == [pytest.approx(sum(accuracy.values()) / 2, abs=1e-12)]
    assert ("all_domains" in found) == (method == "singleset") and 0.05 < found["test"][0] < 1


def planned_trials(folder, clients, values):
    text = EXPERIMENT.format(method="fed3r", codec="", more=MORE).replace("mnist = 1, optdigits = 1", clients)
    (folder / "small.toml").write_text(text)
    (folder / "sweep.toml").write_text(f'experiment = "small.toml"\n[grid]\n"method.lam" = {values}\n')
    return planned(folder / "sweep.toml", Wish())[0]


def test_heads_of_single_devices_are_equal_to_heads_of_one_device_federations(tmp_path):
    both = Trials(tmp_path, alone=True).table(planned_trials(tmp_path, "mnist = 1, optdigits = 1", [1.0]))
    each = [
        Trials(tmp_path).table(planned_trials(tmp_path, f"{name} = 1", [1.0]))["trials"][0]["test"][0]
        for name in ("mnist", "optdigits")
    ]
    (found,) = both["trials"]
    assert found["test"] == [pytest.approx(sum(each) / 2)] and found["all_domains"][0] < found["test"][0]


def test_a_known_trial_is_reused_unless_the_code_has_changed(tmp_path):
    known = Trials(tmp_path).table(planned_trials(tmp_path, "mnist = 1", [1.0]))
    known["trials"][0]["test"] = ["known"]
    grid = planned_trials(tmp_path, "mnist = 1", [1.0, 2.0])
    kept, new = Trials(tmp_path).table(grid, known)["trials"]
    assert kept["test"] == ["known"] and new["test"] != ["known"]
    known = {**known, "versions": {"sources": "others"}}
    assert Trials(tmp_path).table(grid, known)["trials"][0]["test"] != ["known"]
