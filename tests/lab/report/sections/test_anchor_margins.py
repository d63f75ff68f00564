"""A run's report shows margins between anchors: a curve for each class, with its name, and their mean."""

import json
import re

import pytest

from protofleet.coordinator.observe.rounds_file import sealed_line
from protofleet.lab.report.finished_run import read_run
from protofleet.lab.report.sections.anchor_margins import anchor_margins_section
from tests.lab.report.finished import whole_line, whole_run


def section(folder, margins, **summary):
    """Return the report's section of a run that has these margins in every round."""
    run = whole_run(folder)
    figures = {f"margin.{label}": gap for label, gap in margins.items()}
    lines = [{**whole_line(number, 4), "figures": figures} for number in range(1, 6)]
    (run / "rounds.jsonl").write_text("".join(map(sealed_line, lines)))
    said = json.loads((run / "summary.json").read_text())
    (run / "summary.json").write_text(json.dumps(said | summary))
    return anchor_margins_section(read_run(run))


def columns(html):
    """Return each curve of the table of numbers with its value in the first round."""
    _, table = html.split("margins between anchors over rounds</caption>")
    names, values = (re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row) for row in table.split("</tr>")[:2])
    return dict(zip(names[1:], map(float, values[1:]), strict=True))


MARGINS = {str(label): 1.0 + label for label in range(11)} | {"mean": 6.0}
UNNAMED = [f"class {label}" for label in range(11)]


@pytest.mark.parametrize(("given", "names"), [
    ({"class_names": [f"kind {chr(97 + label)}" for label in range(11)]}, [f"kind {c}" for c in "abcdefghijk"]),
    ({"class_names": ["cat & <dog>", "70"]}, ["cat &amp; &lt;dog&gt;", "class 70", *UNNAMED[2:]]),
    ({}, UNNAMED),
], ids=["all are named", "some are", "none is"])  # fmt: skip
def test_each_class_has_a_curve_with_its_name_in_the_order_of_the_labels(tmp_path, given, names):
    found = columns(section(tmp_path, MARGINS, **given))
    assert list(found) == [*names, "mean"]
    assert list(found.values()) == [*(1.0 + label for label in range(11)), 6.0]
