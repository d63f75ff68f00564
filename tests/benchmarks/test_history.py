"""Tests of the stored figures of a measure, and of their comparison with the committed figures."""

from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.harness.compare import rows, taken, worse
from benchmarks.harness.history import Entry, append, entry, last, read
from benchmarks.harness.measure import Figure, MeasureError
from benchmarks.harness.trees import Tree

FIGURES = {
    "cpu": Figure("ms"),
    "syncs": Figure("", steady=True),
    "speed": Figure("MB/s", "higher", steady=True),
}
STEADY = {"cpu": [4.0] * 5, "syncs": [12.0] * 5, "speed": [100.0] * 5}
LANDED = entry("answers", "aaa", (1, 2), STEADY)


def beside(this, against="aaa", other=STEADY):
    return entry("answers", "bbb", (1, 2), {**STEADY, **this}, against, other)


def test_appended_entries_are_read_again(tmp_path):
    file = tmp_path / "results" / "history.jsonl"
    kept = [LANDED, beside({}), replace(LANDED, measure="run")]
    for one in kept:
        append(one, file)
    assert read(file) == kept
    assert last(read(file), "answers") == kept[1]
    assert last(read(file), "idle") is None


def test_a_missing_history_file_is_read_as_empty(tmp_path):
    assert read(tmp_path / "history.jsonl") == []


@pytest.mark.parametrize("line", ["{", '{"measure": "run"}', "[]"])
def test_a_line_that_is_not_an_entry_is_refused_with_its_number(tmp_path, line):
    file = tmp_path / "history.jsonl"
    append(LANDED, file)
    file.write_text(file.read_text() + line + "\n")
    with pytest.raises(ValueError, match=r"history.jsonl, line 2 is not an entry"):
        read(file)


def test_values_are_rounded_to_four_digits():
    assert entry("a", "", (0.123456, 1), {"x": [123456.7]}).this == {"x": [123500.0]}


def test_each_figure_worse_than_the_landed_commit_is_reported_in_one_line():
    found = worse(beside({"cpu": [6.0, 6.1, 5.9, 6.2, 6.0], "speed": [50.0] * 5}), LANDED, FIGURES)
    assert list(found) == ["cpu", "speed"]
    assert "ratio 1.5 (1.48 to 1.55" in found["cpu"] and "5 pairs" in found["cpu"]


def test_figures_that_are_better_or_within_the_noise_are_not_reported():
    assert not worse(beside({"cpu": [1.0] * 5, "syncs": [9.0, 13.0, 12.0, 14.0, 11.0]}), LANDED, FIGURES)


def test_figures_without_pairs_are_compared_only_if_they_are_steady():
    alone = entry("answers", "bbb", (20, 20), {"cpu": [9.0] * 5, "syncs": [20.0] * 5, "speed": [100.0] * 5})
    found = worse(alone, LANDED, FIGURES)
    assert list(found) == ["syncs"]
    assert "it was 12" in found["syncs"]


def test_pairs_with_another_commit_are_ignored():
    assert worse(beside({"cpu": [9.0] * 5}, against="ccc"), LANDED, FIGURES) == {}


def test_counts_of_another_machine_are_not_compared():
    elsewhere = replace(LANDED, machine={**LANDED.machine, "cores": 99})
    assert not worse(entry("answers", "bbb", (1, 1), {"syncs": [20.0] * 5}), elsewhere, FIGURES)


class Noted:
    """A measure that records the tree with which each value was taken."""

    name, what, figures = "noted", "nothing", {"number": Figure("")}

    def __init__(self, values):
        self.values, self.order = iter(values), []

    def take(self, tree: Tree, folder: Path):
        assert not list(folder.iterdir()), "each time has an empty folder"
        self.order.append(tree.label)
        return next(self.values)


A, B = (Tree(label, f"commit-{label}", Path("/"), ()) for label in "AB")


def test_both_trees_are_measured_first_equally_often_and_their_values_stay_pairs():
    measure = Noted({"number": n} for n in (1, 10, 20, 2, 3, 30))
    found: Entry = taken(measure, A, B, 3, tell=lambda line: None)
    assert measure.order == ["A", "B", "B", "A", "A", "B"]
    assert (found.this, found.other) == ({"number": [1, 2, 3]}, {"number": [10, 20, 30]})
    assert (found.commit, found.against) == ("commit-A", "commit-B")
    assert rows(found, measure.figures)[0].ratio.median == pytest.approx(0.1)


def test_a_measure_with_unexpected_figures_is_an_error():
    with pytest.raises(MeasureError, match=r"noted gave \['strange'\], but its figures must be \['number'\]"):
        taken(Noted([{"strange": 1.0}]), A, None, 1, tell=lambda line: None)


def test_the_error_of_a_failed_measure_is_raised():
    def broken():
        raise MeasureError("the coordinator ended")
        yield

    with pytest.raises(MeasureError, match="the coordinator ended"):
        taken(Noted(broken()), A, None, 1, tell=lambda line: None)
