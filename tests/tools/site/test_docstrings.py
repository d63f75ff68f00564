"""Docstrings are plain text, and reach the reader of the site as they stand in the code."""

from tools.site.docstrings import to_restructured_text


def test_code_in_backticks_becomes_a_literal_and_marks_stay_what_they_are():
    lines = ["Return `x_*|` for *all and rest_.", "", "- a | b"]
    assert to_restructured_text(lines) == [r"Return ``x_*|`` for \*all and rest\_.", "", r"- a \| b"]


def test_code_may_go_on_in_the_next_line():
    assert to_restructured_text(["See `a", "b`."]) == ["See ``a", "b``."]
