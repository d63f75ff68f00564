"""The table of other features: it has the figures of other_features.json, and compares a layer draw by draw."""

from dataclasses import asdict, replace
from statistics import fmean, stdev

from protofleet.lab.report.measured_one_message import read_measured
from tools.pages import other_features as tool
from tools.pages.measured_figures import write_figures_file
from tools.pages.one_message import PLACES

ROWS = read_measured(tool.PATH)


def test_the_page_has_the_figures():
    text = tool.PAGE.read_text(encoding="utf-8")
    assert tool.generate(text) == text, "run python -m tools.pages.other_features"


def test_each_table_has_its_rows_and_each_row_has_three_draws_and_an_origin():
    tables = {row.table for row in ROWS}
    assert [(row.table, row.label) for row in ROWS] == [
        (row.table, row.label) for row in tool.ROWS if row.table in tables
    ]
    for row in ROWS:
        assert len(row.test) == len(row.draws) == len(row.digests) == 3 and "+" not in row.commit
        assert all(
            len(origin) == 12 and int(origin, 16) for origin in (row.commit, row.sources, *row.digests)
        )


def test_figures_without_runs_are_kept_in_the_order_of_the_tables(tmp_path):
    path = tmp_path / "figures.json"
    write_figures_file(path, {"rows": [asdict(row) for row in reversed(ROWS)]})
    tool.write_figures(tmp_path, tmp_path, path, tool.ROWS)
    assert read_measured(path) == ROWS


def test_a_layer_is_compared_with_block_10_draw_by_draw():
    row, block = replace(ROWS[0], test=(50.0, 60.0, 70.0)), replace(ROWS[0], test=(55.0, 60.0, 71.0))
    apart = [-5.0, 0.0, -1.0]
    shown = tool.layer_table([row], [replace(block, label="another"), block])
    assert f"| 60.0 ± 10.0 | {fmean(apart):.1f} ± {stdev(apart):.1f} |" in shown
    assert "| not measured |" in tool.layer_table([row], [])


def test_the_value_with_the_best_validation_is_shown():
    for row in ROWS:
        (shown,) = [one for one in row.tried if one.value == row.chosen]
        best = max(fmean(one.validation) for one in row.tried)
        # The figures of the file are rounded, so equal values may differ in the last place.
        assert fmean(shown.validation) >= best - 2 * 10**-PLACES and row.test == shown.test
