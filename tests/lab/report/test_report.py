"""The report, its pictures, the live display and the plain lines show a run to people."""

import io
import json
import xml.etree.ElementTree as ET

import pytest
from rich.console import Console

from protofleet.lab.local.display.progress import ProgressDisplay, RunState
from protofleet.lab.report.drawing.axes import round_axis_end
from protofleet.lab.report.drawing.charts import Bar, ChartLine, bar_chart, line_chart
from protofleet.lab.report.run_page import final_table, write_report
from protofleet.protocol.link.meter import human_bytes
from protofleet.runtime.command.errors import RunError
from tests.lab.report.pictures import pictures_of

DOMAINS = ("mnist", "street")


def line(number, rounds):
    value = 0.1 + 0.8 * (number - 1) / rounds
    return {
        "round": number, "attempt": 0, "kind": "training" if number <= rounds else "evaluation", "seconds": 2.0,
        "phases": [{"phase": "train", "seconds": 1.9, "server_seconds": 0.1, "asked": ["a", "b"], "answered": ["a"]}],
        "participants": ["a"], "late": ["b"], "dropped": {"b": "means is <not> finite"},
        "payload": {"up": {"weights": 1000}, "down": {"weights": 500, "anchors": 20}},
        "wire": {"up": {"weights": 1000, "control": 90}, "down": {"weights": 500, "anchors": 20, "control": 60}},
        "fedavg": {"up": 1000, "down": 1000},
        "accuracy": {"global": dict.fromkeys(DOMAINS, value)},
        "validation": {"global": dict.fromkeys(DOMAINS, value)},
        "loss": {}, "figures": {"margin.0": 1.2, "margin.1": 1.3, "margin.mean": 1.25},
    }  # fmt: skip


@pytest.fixture
def folder(tmp_path):
    lines = [line(r, 4) for r in range(1, 6)]
    (tmp_path / "rounds.jsonl").write_text("".join(json.dumps(x) + "\n" for x in lines))
    by_domain = dict.fromkeys(DOMAINS, 0.9)
    summary = {
        "name": "demo", "method": "fedlsa", "paper": "A <paper>", "network": "cnn23", "reports": "global",
        "rounds": 4, "seed": 1, "devices": {"a": {}, "b": {}}, "seconds": 10.0,
        "payload": {"up": {"weights": 4000}, "down": {"weights": 2000, "anchors": 80}},
        "wire": {"up": {"weights": 4000, "control": 360}, "down": {"weights": 2000, "anchors": 80, "control": 240}},
        "fedavg": {"up": 4000, "down": 4000},
        "accuracy": {"start": {**by_domain, "mean": 0.1}, "final": {**by_domain, "mean": 0.9},
                     "best_by_validation": {"point": 4, **by_domain, "mean": 0.9}},
        "broker": "mosquitto", "security": "sealed", "versions": {},
    }  # fmt: skip
    (tmp_path / "summary.json").write_text(json.dumps(summary))
    (tmp_path / "experiment.toml").write_text('name = "demo"\n')
    return tmp_path


def test_the_report_has_no_external_files_and_names_the_view_the_paper_and_the_security(folder):
    text = write_report(folder).read_text()
    for external in ("http://", "https://", "<script", "<link", "@import"):
        assert external not in text.replace("http://www.w3.org/2000/svg", "")
    assert "the global model, on every domain" in text and "sealed from end to end" in text
    assert "A &lt;paper&gt;" in text and "means is &lt;not&gt; finite" in text
    assert len(pictures_of(text)) == len(pictures_of(text, "narrow")) == 5


@pytest.mark.parametrize("security", ["off", "signed, not encrypted"])
def test_the_report_of_a_run_that_was_not_sealed_has_a_red_warning(folder, security):
    assert '<p class="danger">' not in write_report(folder).read_text()
    summary = json.loads((folder / "summary.json").read_text())
    (folder / "summary.json").write_text(json.dumps({**summary, "security": security}))
    assert (
        '<p class="danger">Messages of this run were signed, but NOT sealed'
        in write_report(folder).read_text()
    )
    assert "NOT sealed" in final_table(folder)


def test_the_report_names_the_robust_rules_that_replaced_a_mean(folder):
    assert "policy.robust" not in write_report(folder).read_text(), "an earlier version wrote no rules"
    summary = json.loads((folder / "summary.json").read_text())
    rules = {"weights": "cap", "prototypes": "clip_median"}
    (folder / "summary.json").write_text(json.dumps({**summary, "robust": rules}))
    words = "Rules of policy.robust replaced the mean of prototypes by clip_median and of weights by cap."
    assert words in write_report(folder).read_text() and words in final_table(folder)


def test_the_report_of_a_diverged_run_has_the_number_of_completed_rounds(folder):
    assert "4 rounds, 2 devices" in write_report(folder).read_text(), (
        "an earlier version wrote no rounds_done"
    )
    summary = json.loads((folder / "summary.json").read_text())
    (folder / "summary.json").write_text(json.dumps({**summary, "rounds_done": 3}))
    assert "3 of 4 rounds, 2 devices" in write_report(folder).read_text()


def test_the_accuracy_curve_begins_at_round_zero_for_a_global_model(folder):
    text = write_report(folder).read_text()
    curves = pictures_of(text)[0].findall("{*}polyline")
    assert len(curves) == len(DOMAINS) + 1
    points = curves[0].get("points").split()
    assert len(points) == 5 and points[0].startswith("64.0,")


def test_the_final_table_names_every_domain_and_the_mean(folder):
    words = final_table(folder)
    for expected in (*DOMAINS, "mean", "90.0%", "FedAvg would have sent 8.0 kB", "sealed from end to end"):
        assert expected in words


def test_a_folder_without_a_finished_run_is_refused(tmp_path):
    with pytest.raises(RunError, match="holds no run: there is no summary.json in it"):
        write_report(tmp_path)


def test_pictures_of_empty_and_constant_data_are_valid_xml():
    for points in ([], [(1, 0.5)], [(1, 0.5), (2, 0.5)]):
        ET.fromstring(line_chart([ChartLine("a", points, "#000")], str, "x", "y"))
        ET.fromstring(line_chart([ChartLine("a", points, "#000")], str, "x", "y", from_zero=False))
    ET.fromstring(bar_chart([], {"a": "#000"}, str, "x", "y"))
    ET.fromstring(bar_chart([Bar(1, [("a", 0)], 0.4)], {"a": "#000"}, str, "x", "y"))
    assert [round_axis_end(v) for v in (0, 0.93, 1.1, 7)] == [1.0, 1.0, 1.2, 8.0]


EVENTS = [
    {"event": "joined", "device": "a", "roster": 1},
    {"event": "asked", "round": 1, "phase": "train", "cohort": ["a", "b"]},
    {
        "event": "answered",
        "device": "a",
        "round": 1,
        "payload_up": 10,
        "payload_down": 5,
        "wire_up": 11,
        "wire_down": 6,
    },
    {"event": "dropped", "device": "b", "verdict": "late", "reason": "round 2 is in hand"},
    {"event": "round", **line(1, 4)},
]


def shown(width=None):
    console = Console(record=True, width=width or 100, force_terminal=False, file=io.StringIO())
    with ProgressDisplay(4, console) as progress:
        for event in EVENTS:
            progress.handle_line(json.dumps(event))
        progress.handle_line("Traceback? no: a plain line")
        progress.handle_line("[1, 2]")
    return console.export_text()


def test_the_output_without_a_terminal_has_a_line_for_each_round_and_each_problem():
    text = shown()
    assert "a has joined" not in text
    assert "round 1 of 4, train: 2 devices asked, 1 present" in text
    assert "b: answer late, round 2 is in hand" in text
    assert "mean accuracy 10.0%" in text and "about 6 s left" in text
    assert "a plain line" in text and "[1, 2]" in text


def test_the_live_display_shows_the_answered_devices_and_the_progress():
    progress = ProgressDisplay(4, Console(file=io.StringIO()))
    for event in EVENTS[:-1]:
        progress.handle_line(json.dumps(event))
    console = Console(record=True, width=100, file=io.StringIO())
    console.print(progress.render())
    text = console.export_text()
    assert "round 1 of 4, train" in text and "✓ a" in text and "· b" in text and "tensors up 10 B" in text


def test_the_display_shows_the_time_left_of_a_long_transfer():
    transfer = {"event": "transfer", "device": "b", "bytes": 400_000, "size": 1_000_000}
    transfer |= {"bytes_per_second": 31_250, "seconds_left": 19.2}
    words = "400.0 kB of 1.0 MB are here, 31.2 kB/s, about 19 s to go"
    console = Console(record=True, width=200, file=io.StringIO())
    progress = ProgressDisplay(4, console)
    asked = next(event for event in EVENTS if event["event"] == "asked")
    for event in (asked, transfer):
        progress.handle_line(json.dumps(event))
    console.print(progress.render())
    progress.handle_line(json.dumps({"event": "answered", "device": "b"}))
    console.print(progress.render())
    text = console.export_text()
    assert f"b: {words}" in text and text.count(f"· b  ({words})") == 1 and "✓ b" in text


def test_sizes_have_units_of_powers_of_ten():
    assert [human_bytes(n) for n in (0, 999, 1500, 2_340_000, 5e9)] == [
        "0 B",
        "999 B",
        "1.5 kB",
        "2.3 MB",
        "5.00 GB",
    ]
    assert RunState(3, 0.0).seconds_left is None
