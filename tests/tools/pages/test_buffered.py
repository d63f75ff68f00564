"""The table of buffered rounds: the tool computes it from the curves of the benchmark."""

import json

from tools.pages import buffered as tool

CURVE = {
    "seconds": [1.0, 2.0, 3.0, 9.0],
    "bytes": [10, 20, 30, 90],
    "accuracy": [0.5, 0.7, 0.6, 0.9],
    "slow_share": 0.25,
}


def test_a_run_reaches_the_goal_at_its_first_round_with_the_accuracy():
    found = tool.figures_of(CURVE, 0.55, 4.0)
    assert (found["seconds"], found["bytes"], found["reached"]) == (2.0, 20, 1.0)
    assert (found["accuracy"], found["all_bytes"], found["rounds"]) == (60.0, 30, 3)


def test_a_run_that_never_reaches_the_goal_is_counted_completely():
    found = tool.figures_of(CURVE, 0.8, 4.0)
    assert (found["seconds"], found["bytes"], found["reached"]) == (3.0, 30, 0.0)


def test_only_seeds_that_all_settings_have_are_in_the_table(tmp_path):
    curves = {setting: {"1": CURVE, "2": CURVE} for setting in tool.LABELS}
    del curves["spares"]["2"]
    (tmp_path / "curves.json").write_text(json.dumps(curves))
    tool.write_figures([tmp_path / "curves.json"], tmp_path / "figures.json")
    figures = json.loads((tmp_path / "figures.json").read_text())
    assert {tuple(by_seed) for by_seed in figures["rows"].values()} == {("1",)}
    assert "deviations over 1 seeds" in tool.table_of(figures)


def test_the_page_has_the_table_of_the_figures():
    page = tool.PAGE.read_text(encoding="utf-8")
    table = tool.table_of(json.loads(tool.PATH.read_text(encoding="utf-8")))
    assert tool.replace_table(page, tool.MODULE, table) == page
