"""Docstrings are plain text, and the site shows them as they are in the code."""

from tools.site.docstrings import to_restructured_text


def test_code_in_backticks_becomes_a_literal_and_other_marks_are_escaped():
    lines = ["Return `x_*|` for *all and rest_.", "", "- a | b"]
    assert to_restructured_text(lines) == [r"Return ``x_*|`` for \*all and rest\_.", "", r"- a \| b"]


def test_code_may_continue_on_the_next_line():
    assert to_restructured_text(["See `a", "b`."]) == ["See ``a", "b``."]
