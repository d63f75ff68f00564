"""The page docs/one-message.md shows the figures of measured_one_message.json, which come from runs and searches."""

import json
import re
from dataclasses import replace
from pathlib import Path
from statistics import fmean, stdev

import pytest

from protofleet.lab.local.experiment import read_with_bases
from protofleet.lab.report.measured_one_message import MeasuredRow, TriedValue, read_measured
from protofleet.protocol.settings.reader import SettingsError
from tests.lab.report.test_compare import finished
from tools.pages import one_message as tool

PAGE = tool.PAGE.read_text(encoding="utf-8")
SMALL = """
name = "small"
rounds = 1
method = { name = "fed3r" }
data = { source = "digits", samples = 40, test_samples = 30, validation = 0.25, size = 16 }
devices = { clients = { mnist = 1, optdigits = 1 } }
"""
SWEEP = """
experiment = "../set/small.toml"
seeds = [0]
[grid]
"data.seed" = [0, 1, 2]
"method.lam" = [0.01, 0.1, 1.0]
"""
# Value -> validation and test accuracy of each draw. The first value is the default, and the second is chosen.
FOUND = {
    "0.01": ([0.6, 0.9, 0.3], [0.99, 0.99, 0.99]),
    "0.1": ([0.7, 0.7, 0.7], [0.8, 0.7, 0.9]),
    "1.0": ([0.5] * 3, [0.5] * 3),
}


@pytest.fixture
def row(tmp_path, monkeypatch):
    monkeypatch.setattr(tool, "EXPERIMENTS", tmp_path)
    monkeypatch.setattr(tool, "DOCS", tmp_path / "docs")
    for name, text in (("set/small.toml", SMALL), ("sweeps/x-small.toml", SWEEP)):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    return tool.Row("digits", "Small", "small", "set", "x")


def search(folder, found, name="searched.json", **more):
    trials = [
        {
            "runs": [f"small-seed-{draw}-lam-{value}-s0"],
            "validation": [validation[draw]],
            "test": [test[draw]],
            **more,
        }
        for value, (validation, test) in found.items()
        for draw in range(3)
    ]
    (folder / "sweeps" / "x-small").mkdir(parents=True)
    versions = {"commit": "c0ffee", "sources": "5eed"}
    (folder / "sweeps" / "x-small" / name).write_text(json.dumps({"trials": trials, "versions": versions}))


def runs_of(folder, value="-lam-0.1", test=(0.8, 0.7, 0.9)):
    for draw, accuracy in enumerate(test):
        name = f"small-seed-{draw}{value}-s0"
        finished(folder / name, name, [0.1, accuracy], method="fed3r", up=100 + draw, domains=("a", "b"))


def figures(row, folder):
    tool.write_figures(folder, folder, folder / "f.json", [row])
    return read_measured(folder / "f.json")


def test_validation_chooses_the_value_and_the_runs_give_accuracy_and_bytes(row, tmp_path):
    search(tmp_path, FOUND)
    runs_of(tmp_path)
    (found,) = figures(row, tmp_path)
    assert (found.setting, found.default, found.chosen, found.is_end) == ("method.lam", "0.01", "0.1", False)
    assert found.test == (80, 70, 90) == found.every_domain and found.test_at_default == (99, 99, 99)
    assert found.arrays_up == 101 and found.search_up == 303 and found.draws == (0, 1, 2)
    assert [one.value for one in found.tried] == list(FOUND) and found.experiment == "set/small.toml"


def test_a_run_that_differs_from_its_trial_is_refused(row, tmp_path):
    search(tmp_path, FOUND)
    runs_of(tmp_path, test=(0.8, 0.7, 0.89))
    with pytest.raises(
        SystemExit, match=r"seed-2-lam-0.1-s0 has 89.0000 % test accuracy, but its trial has 90.0000 %"
    ):
        figures(row, tmp_path)


def test_a_row_without_runs_keeps_its_figures(row, tmp_path, capsys):
    search(tmp_path, FOUND)
    runs_of(tmp_path)
    before = figures(row, tmp_path)
    tool.write_figures(tmp_path / "none", tmp_path, tmp_path / "f.json", [row])
    assert read_measured(tmp_path / "f.json") == before
    assert "Small:" in capsys.readouterr().out


def test_a_chosen_default_uses_the_run_of_the_experiment_file(row, tmp_path):
    better = {**FOUND, "0.01": ([0.9] * 3, [0.8, 0.7, 0.9])}
    search(tmp_path, better)
    runs_of(tmp_path, value="")
    (found,) = figures(row, tmp_path)
    assert found.chosen == found.default == "0.01" and found.is_end and found.test == (80, 70, 90)


def test_a_row_without_a_sweep_shows_nothing_to_search(row, tmp_path):
    row.sweep.unlink()
    runs_of(tmp_path, value="")
    (found,) = figures(row, tmp_path)
    assert (found.setting, found.tried, found.search_up) == ("", (), found.arrays_up)
    assert tool.chosen_value(found) == "nothing to search" and found.test_at_default == found.test


def test_a_row_of_single_devices_has_no_runs_and_no_bytes(row, tmp_path):
    search(tmp_path, FOUND, "alone.json", all_domains=[0.25])
    (found,) = figures(replace(row, alone=True), tmp_path)
    assert found.test == (80, 70, 90) and found.every_domain == (25, 25, 25) and found.reports == "personal"
    assert (found.messages, found.commit, found.sources, found.digests) == (0, "c0ffee", "5eed", ())


# The page


def test_the_page_has_the_tables_of_the_figures():
    assert tool.generate(PAGE) == PAGE


def test_each_row_of_the_page_has_its_figures_and_their_origin():
    rows = read_measured()
    assert [(row.table, row.label) for row in rows] == [(row.table, row.label) for row in tool.ROWS]
    reference = next(row for row in rows if row.label == tool.REFERENCE)
    for row in rows:
        mean, deviation = fmean(row.test), stdev(row.test)
        assert f"{mean:.1f} ± {deviation:.1f}" in PAGE and f"| {row.label} |" in PAGE
        apart = [mine - theirs for mine, theirs in zip(row.test, reference.test, strict=True)]
        if row.reports == "global" and row is not reference:
            assert f"{fmean(apart):+.1f} ± {stdev(apart):.1f}" in PAGE
        for origin in (row.commit, row.sources, *row.digests):
            assert len(origin) == 12 and int(origin, 16) and origin in PAGE


def test_the_figures_of_fedavg_equal_the_figures_of_the_results_page():
    results = (tool.DOCS / "results.md").read_text(encoding="utf-8")
    (accuracy, wire) = re.search(r"has (\S+ ± \S+) % with (\S+ MB) on the wire", PAGE).groups()
    assert re.search(rf"^\| digits-fedavg \| fedavg \| global .* {accuracy} \|$", results, re.M)
    assert re.search(rf"^\| digits-fedavg \|.*\| {wire} \|", results, re.M)


def test_each_row_has_at_least_eight_values_and_more_if_the_last_is_chosen():
    for row in read_measured():
        assert not row.is_end or len(row.tried) > 8, row.label
        assert not row.setting or len(row.tried) >= 8 or row.setting == "method.metric", row.label
        assert all(len(one.validation) == len(one.test) == len(row.draws) for one in row.tried)


def test_the_experiment_of_a_row_has_the_chosen_value_unless_the_server_chooses():
    root = Path(tool.__file__).parents[2]
    runs = [row for row in read_measured() if row.setting and row.messages]
    assert len(runs) > 8
    for row in runs:
        method = read_with_bases(root / row.experiment)["method"]
        in_file = str(method.get(row.setting.removeprefix("method."), row.default))
        assert in_file == (row.chosen if row.default else ""), row.label


def test_a_row_with_more_bytes_and_less_accuracy_is_not_on_the_front():
    def made(label, size, accuracy):
        return replace(ONE, label=label, arrays_up=size, test=(accuracy,))

    rows = [made("dear", 9, 90.0), made("beaten", 8, 70.0), made("cheap", 7, 80.0)]
    assert [row.label for row in tool.front_of(rows)] == ["cheap", "dear"]


ONE = MeasuredRow(
    "t", "l", "e.toml", "global", 1, "", "", "", (TriedValue("1", (1.0,), (1.0,)),), (0,), (1.0,), (1.0,), (1.0,),
    1, 1, 1, "2026-11-29", "c", "s", ("d",),
)  # fmt: skip


def test_damaged_figures_are_refused_with_their_place(tmp_path):
    (tmp_path / "f.json").write_text(json.dumps({"rows": [{"table": 1}]}))
    with pytest.raises(SettingsError, match=r"rows\[0\]"):
        read_measured(tmp_path / "f.json")
