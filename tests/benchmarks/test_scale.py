"""Tests that the page of growth curves shows exactly what the history contains."""

from dataclasses import replace
from xml.etree import ElementTree as ET

from benchmarks.harness.history import entry
from benchmarks.scale import CPU, CURVES, PAGE, SECTION, one_curve, picture, with_figures
from benchmarks.scale import taken as drawn_curves

SVG = "{http://www.w3.org/2000/svg}"


def taken(measure, *values, figure="coordinator's CPU an answer", commit="a" * 40):
    return entry(measure, commit, (1.0, 2.0), {figure: list(values)})


def everything():
    return [
        entry(measure, "b" * 40, (1.0, 2.0), {figure: [x / 7 + 1] for figure in curve.figures})
        for curve in CURVES
        for x, measure in curve.measures.items()
    ]


def test_the_median_of_the_newest_figures_of_each_measure_is_shown():
    table = one_curve(CPU, [taken("answers-10", 9.0), taken("answers-10", 1.0, 3.0, 2.0, commit="c" * 40)])
    (row,) = (line for line in table.splitlines() if line.startswith("| 10 |"))
    assert row.startswith("| 10 | 2.00 |")
    assert "| cccccccc |" in row and "`python -m benchmarks answers-10 --times 3 --keep`" in row


def test_a_point_without_figures_is_left_out():
    entries = [
        taken("answers-10", 3.0),
        taken("answers-1000", 2.0),
        taken("answers-300", 1.0, figure="other"),
    ]
    rows = [
        line.split(" | ")[0] for line in one_curve(CPU, entries).splitlines() if line[:3] in ("| 1", "| 3")
    ]
    assert rows == ["| 10", "| 1,000"]
    drawn = ET.fromstring(picture(CPU, entries))
    assert len(drawn.findall(f"{SVG}circle")) == 2


def test_a_curve_without_a_point_is_not_shown():
    without = [e for e in everything() if not e.measure.startswith("broadcast")]
    assert len(drawn_curves(everything())) == len(CURVES)
    assert [curve.name for curve in CURVES if curve not in drawn_curves(without)] == ["broadcast-bytes"]


def test_every_section_of_the_page_can_be_filled_again_and_nothing_else_changes():
    page = PAGE.read_text()
    empty = SECTION.sub(r"\1\3", page)
    filled = with_figures(empty, everything())
    assert SECTION.sub(r"\1\3", filled) == empty
    assert [len(match.group()) > 200 for match in SECTION.finditer(filled)] == [True] * 3
    assert with_figures(filled, everything()) == filled


def test_the_costs_of_100000_devices_follow_from_the_unit_costs():
    def with_cpu(value):
        return [replace(e, this={**e.this, CPU.figures[0]: [value]}) if CPU.figures[0] in e.this else e
                for e in everything()]  # fmt: skip

    assert "| the coordinator's CPU in a round if all answer | 150 s of one core |" in with_figures(
        PAGE.read_text(), with_cpu(1.5)
    )
