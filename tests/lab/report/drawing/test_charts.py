"""Tests of axes and line charts: positions in pixels, marks, and the table of numbers."""

import re

import pytest

from protofleet.lab.report.drawing import charts
from protofleet.lab.report.drawing.axes import Axes, round_axis_end
from protofleet.lab.report.drawing.canvas import NARROW, WIDE


def test_the_ends_of_both_ranges_are_at_the_ends_of_the_axes():
    axes = Axes(1, 11, 0, 50)
    assert [axes.x(1), axes.x(11)] == [WIDE.left, WIDE.width - WIDE.right]
    assert [axes.y(0), axes.y(50)] == [WIDE.bottom, WIDE.bottom - WIDE.plot_height]
    assert axes.x(6) == (axes.x(1) + axes.x(11)) / 2


def test_equal_ratios_are_equal_distances_on_a_logarithmic_axis():
    axes = Axes(0.01, 1, 0, 1, log_x=True)
    assert axes.x(0.1) - axes.x(0.01) == pytest.approx(axes.x(1) - axes.x(0.1))
    assert set(axes.x_ticks(12)) >= {0.01, 0.1, 1.0}


@pytest.mark.parametrize(("low", "high"), [(1, 5), (1, 12), (0, 100), (3, 1234)])
@pytest.mark.parametrize("canvas", [WIDE, NARROW], ids=lambda canvas: canvas.name)
def test_marks_are_evenly_spaced_inside_the_range_and_no_more_than_fit(low, high, canvas):
    marks = Axes(low, high, 0, 1, canvas=canvas).x_ticks(canvas.ticks)
    assert 2 <= len(marks) <= canvas.ticks + 1
    assert all(low <= mark <= high for mark in marks)
    assert len({b - a for a, b in zip(marks, marks[1:], strict=False)}) == 1


@pytest.mark.parametrize(("value", "end"), [(0, 1.0), (0.83, 1.0), (1.1, 1.2), (87, 100), (640, 800)])
def test_an_axis_ends_at_a_round_number_that_is_not_below_the_value(value, end):
    assert round_axis_end(value) == end


@pytest.mark.parametrize("points, dots", [([(1, 0.3)], 1), ([(1, 0.1), (2, 0.7)], 0)])
def test_a_line_of_one_point_is_drawn_as_a_dot(points, dots):
    axes = Axes(1, 2, 0, 1)
    drawn = charts.polyline(axes, charts.ChartLine("a", points, "#123456"))
    assert drawn.count("<circle") == dots


def test_a_chart_draws_each_line_in_both_widths_and_lists_its_numbers():
    lines = [
        charts.ChartLine("fedavg", [(1, 0.1), (2, 0.7)], "#123456"),
        charts.ChartLine("b & c", [(1, 0.3)], "#abcdef"),
    ]
    html = charts.line_chart(lines, lambda y: f"{y:.0%}", "round", "accuracy")
    assert html.count("<svg") == 2
    assert html.count("#123456") >= 2
    assert "b &amp; c" in html
    assert "b & c" not in html
    table = re.search(r"<table.*</table>", html, re.DOTALL)[0]
    assert re.findall(r"\d+%", table) == ["10%", "30%", "70%"]
