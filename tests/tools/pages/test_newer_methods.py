"""The table of the newer methods: the tool chooses by validation, compares equal views, and pairs equal seeds."""

from dataclasses import asdict, replace

import pytest

from tests.lab.report.test_compare import DOWN, finished
from tools.pages import newer_methods as tool
from tools.pages.measured_figures import write_figures_file

# Test accuracies by seed at the best value, which validation chooses at seed 1.
AVG, NOVA, DITTO = {1: 0.80, 2: 0.70, 3: 0.60}, {1: 0.81, 3: 0.63, 4: 0.1}, {1: 0.5}
CALM, BEST, WILD = range(3)  # The places of the values in a grid.


def run_with(folder, method, place, seed, validation, test, **more):
    """Write a run of the digits whose searched setting has the value at this place of its grid."""
    setting, values = tool.grid_of(f"digits-{method}")
    name = f"digits-{method}-{setting}-{values[place]}-s{seed}"
    curves = {"validation": [0.0, validation], "method": method, "seed": seed, **more}
    found = finished(folder / name, name, [0.0, test], **curves)
    with (found / "experiment.toml").open("a") as file:
        file.write(f"{setting} = {values[place]}\n")  # The last table of the file is [method].
    return found


def runs_of(folder, method, tests, **more):
    """Write runs in which the value in the middle has the best validation, and the last value the best test."""
    return [
        run_with(folder, method, CALM, 1, 0.2, 0.3, **more),
        run_with(folder, method, WILD, 1, 0.3, 0.99, **more),
        *(run_with(folder, method, BEST, seed, 0.4, test, **more) for seed, test in tests.items()),
    ]


@pytest.fixture
def figures(tmp_path):
    folders = [
        *runs_of(tmp_path, "fedavg", AVG, views=["personal"]),
        *runs_of(tmp_path, "fednova", NOVA),
        *runs_of(tmp_path, "ditto", DITTO, reports="personal"),
    ]
    tool.write_figures([*folders, tmp_path], tmp_path / "f.json")
    return tmp_path / "f.json"


def test_the_value_with_the_best_validation_accuracy_is_chosen(figures):
    for row in tool.read_measured(figures):
        _, values = tool.grid_of(row.experiment)
        assert [one.value for one in row.tried] == values and row.chosen.value == values[BEST]
        assert [one.validation for one in row.tried] == [20.0, 40.0, 30.0] and 99.0 not in row.test
    shown = tool.search_table(tool.read_measured(figures))
    assert "| digits-ditto | `lam` | 0.3: 20.0 / 30.0, 1: 40.0 / 50.0, 3: 30.0 / 99.0 |" in shown


def test_a_chosen_value_at_the_end_of_its_grid_is_marked(tmp_path):
    folders = [
        run_with(tmp_path, "fedavg", place, 1, 0.1 * place, 0.5, views=["personal"])
        for place in (CALM, BEST, WILD)
    ]
    tool.write_figures(folders, tmp_path / "f.json")
    assert tool.chosen_value(tool.read_measured(tmp_path / "f.json")[0]) == "`lr` 0.15, the grid's end"


def test_a_row_is_compared_with_the_baseline_in_the_same_view_and_with_equal_seeds(figures):
    rows = tool.read_measured(figures)
    assert [(one.view, one.experiment, one.seeds) for one in rows] == [
        ("global", "digits-fedavg", (1, 2, 3)),
        ("global", "digits-fednova", (1, 3, 4)),
        ("personal", "digits-fedavg", (1, 2, 3)),
        ("personal", "digits-ditto", (1,)),
    ]
    assert tool.apart(rows[1], rows[0]) == "+2.0 ± 1.4"  # The seeds 1 and 3: 1 and 3 points.
    assert tool.apart(rows[3], rows[2]) == "+10.0" and tool.apart(rows[0], rows[0]) == ""
    assert "| digits-fedavg | `lr` 0.05 | 1, 2, 3 | 70.0 ± 10.0 |  |" in tool.table_of(rows, "global")
    assert "| digits-fedavg | `lr` 0.05 | 1, 2, 3 | 35.0 ± 5.0 |  |" in tool.table_of(rows, "personal")
    assert rows[0].arrays_down == 2 * DOWN and rows[0].messages == rows[0].arrays_up + 2 * DOWN + 16


def test_new_runs_replace_the_figures_of_their_method_only(figures, tmp_path):
    again = runs_of(tmp_path / "new", "ditto", {1: 0.6, 2: 0.7}, reports="personal")
    before = tool.read_measured(figures)
    tool.write_figures(again, figures)
    *others, ditto = tool.read_measured(figures)
    assert others == before[:-1] and (ditto.seeds, ditto.test) == ((1, 2), (60.0, 70.0))


def test_a_method_without_a_run_of_each_value_keeps_its_figures(figures, tmp_path, capsys):
    calm, *others = runs_of(tmp_path / "new", "ditto", {1: 0.6}, reports="personal")
    before = tool.read_measured(figures)
    tool.write_figures(others, figures)
    assert tool.read_measured(figures) == before
    assert "digits-ditto: there is no run of the value 0.3 with the seed 1" in capsys.readouterr().out


def test_rows_without_a_search_are_compared_with_the_baseline_without_a_search(figures, tmp_path):
    searched = tool.read_measured(figures)
    others = [replace(one, setting="", tried=(), test=(10.0,) * len(one.test)) for one in searched]
    write_figures_file(figures, {"rows": [asdict(one) for one in others]})
    average = runs_of(tmp_path / "new", "fedavg", AVG, views=["personal"])
    tool.write_figures([*average, *runs_of(tmp_path / "new", "fednova", NOVA)], figures)
    names = [(one.experiment, bool(one.setting)) for one in tool.read_measured(figures)]
    old = [("digits-fedavg", False), ("digits-fedavg", False), ("digits-ditto", False)]
    assert names[:3] == [("digits-fedavg", True), ("digits-fednova", True), ("digits-fedavg", True)]
    assert names[3:] == old
    page = f"<!-- generated by python -m {tool.MODULE} -->\n<!-- end of generated -->\n"
    assert "| digits-ditto | not searched | 1 | 10.0 | +0.0 |" in tool.generate(
        page, tool.read_measured(figures)
    )
    tool.write_figures(runs_of(tmp_path / "more", "ditto", DITTO, reports="personal"), figures)
    assert tool.read_measured(figures) == searched


def test_the_page_has_the_figures():
    text = tool.PAGE.read_text()
    assert tool.generate(text) == text, "run python -m tools.pages.newer_methods"
