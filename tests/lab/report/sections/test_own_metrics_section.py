"""A run's report shows a user's own metrics: a curve by domain over rounds, its numbers, and a table of means."""

import json
import re

from protofleet.coordinator.observe.rounds_file import sealed_line
from protofleet.lab.report.run_page import write_report
from tests.lab.report.finished import whole_run


def section(folder):
    text = write_report(folder).read_text()
    _, found, rest = text.partition(">Metrics of your own</h2>")
    return rest.split("</section>")[0] if found else ""


def rows(html, caption):
    (body,) = re.findall(rf"<caption>{caption}</caption>.*?<tbody>(.*?)</tbody>", html, re.DOTALL)
    return [re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row) for row in body.split("</tr>") if row]


def test_the_report_has_a_curve_of_each_metric_by_domain_and_a_table_of_its_means(tmp_path):
    """Round r of a global model is the point r - 1, as with accuracy: 0.1 at the start, 0.9 after four rounds."""
    found = section(whole_run(tmp_path, rounds=4))
    values = [0.1 + 0.2 * r for r in range(5)]
    wanted = [
        [str(r), *(f"{v:.3f}" for v in (value, value / 2, 0.75 * value))] for r, value in enumerate(values)
    ]
    assert rows(found, "Numbers: macro_f1 by domain over rounds") == wanted
    ends = ["0.075", "0.675", "0.075", "0.675"]
    assert rows(found, "Means over domains") == [
        ["macro_f1", "global (reported)", *ends], ["macro_f1", "personal", *["0.900"] * 4]
    ]  # fmt: skip
    assert "margin" not in found, "it is a figure of the method, and not a user's metric"


def test_a_run_without_its_own_metrics_has_no_section(tmp_path):
    path = whole_run(tmp_path) / "rounds.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    kept = [{**line, "figures": {"margin.0": 1.2, "margin.mean": 1.25}} for line in lines]
    path.write_text("".join(map(sealed_line, kept)))
    assert section(tmp_path) == ""
