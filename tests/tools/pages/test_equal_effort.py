"""Tests of the table "With equal effort": choice by validation, pairing by seed, and the origin of each row."""

import json

import pytest

from tests.lab.report.finished import whole_run
from tools.pages.equal_effort import SETTINGS, Entry, markdown, read_method, tables


def trial(rate, validation, test, runs=("s1", "s2"), **settings):
    return {
        "settings": {"method.lr": str(rate), **settings}, "runs": [f"{rate}-{one}" for one in runs],
        "validation": validation, "test": test,
    }  # fmt: skip


def sweep(runs, name, *trials):
    (folder := runs / "sweeps" / name).mkdir(parents=True)
    (folder / "trials.json").write_text(json.dumps({"trials": trials}))


def test_validation_chooses_the_trial_and_test_accuracies_are_paired_by_seed(tmp_path):
    sweep(tmp_path, "a", trial(0.1, [0.6, 0.6], [0.5, 0.7]), trial(0.2, [0.5, 0.5], [0.9, 0.9]))
    sweep(tmp_path, "b", trial(0.2, [0.1, 0.1], [0.1, 0.1]), trial(0.05, [0.3, 0.3], [0.4, 0.5]))
    first, second = (read_method(Entry(name, name), tmp_path) for name in "ab")
    assert first.row("set", first) == ["set", "a", "0.1, the grid's end", "60.0 ± 14.1", "", "0.2: 90.0"]
    assert second.row("", first) == [
        "",
        "b",
        "0.05, the grid's end",
        "45.0 ± 7.1",
        "-15.0 ± 7.1",
        "0.2: 10.0",
    ]


def test_a_rate_inside_the_grid_has_no_mark_and_a_gain_has_a_plus(tmp_path):
    grid = [trial(r, [v, v], [v, v]) for r, v in ((0.1, 0.2), (0.2, 0.9), (1.0, 0.3))]
    sweep(tmp_path, "a", *grid)
    sweep(tmp_path, "b", trial(0.1, [0.8, 0.8], [0.8, 0.8]))
    first, second = (read_method(Entry(name, name), tmp_path) for name in "ba")
    assert second.row("", first)[2:5] == ["0.2", "90.0", "+10.0"]


def test_a_trial_without_a_result_of_each_seed_is_named_and_never_chosen(tmp_path):
    sweep(tmp_path, "a", trial(0.1, [0.2, 0.2], [0.2, 0.2]), trial(0.2, [0.9], [0.9]), trial(0.5, [], []))
    found = read_method(Entry("a", "a"), tmp_path)
    assert found.row("", found)[2:] == [
        "0.1, the grid's end", "20.0", "", "0.2: 90.0 (diverges in 1 of 2), 0.5: diverges",
    ]  # fmt: skip


@pytest.mark.parametrize(("way", "rate"), [("classifier", "0.1"), ("prototype", "0.2")])
def test_trials_with_another_inference_belong_to_another_row(tmp_path, way, rate):
    ways = {"classifier": 0.1, "prototype": 0.2}
    sweep(
        tmp_path, "a",
        *(trial(lr, [0.5, 0.5], [0.5, 0.5], **{"method.inference": one}) for one, lr in ways.items()),
    )  # fmt: skip
    found = read_method(Entry("a", "a", way), tmp_path)
    assert found.rate.startswith(rate) and len(found.trials) == 1


def test_both_tables_have_a_row_for_each_method_and_the_second_has_the_origin(tmp_path):
    for name in {entry.sweep for entries in SETTINGS.values() for entry in entries}:
        runs = [f"{name}-{seed}" for seed in (1, 2)]
        for number, run in enumerate(runs):
            (tmp_path / run).mkdir()
            summary = json.loads((whole_run(tmp_path / run) / "summary.json").read_text())
            summary |= {"seed": number, "experiment": "experiment-1"}
            summary["versions"] |= {"commit": "commit-1", "sources": "sources-1"}
            (tmp_path / run / "summary.json").write_text(json.dumps(summary))
        ways = ("classifier", "prototype") if "fedproto" in name else ("",)
        trials = [trial(0.1, [0.5, 0.5], [0.5, 0.5], **{"method.inference": way}) for way in ways]
        sweep(tmp_path, name, *({**one, "runs": runs} for one in trials))
    shown = tables(tmp_path)
    rows = sum(len(entries) for entries in SETTINGS.values())
    assert shown.count("\n| ") == 2 * (rows + 2) - 1
    assert shown.count("| commit-1 | sources-1 | experiment-1 |") == rows


def test_a_bar_in_a_cell_is_escaped():
    assert markdown(("a", "b"), [["x|y", "1"]], ("b",)) == "| a | b |\n| --- | ---: |\n| x\\|y | 1 |\n"
