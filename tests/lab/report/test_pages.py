"""The report and the comparison work on a small screen, a printer, a keyboard and a screen reader."""

import json
import re
import xml.etree.ElementTree as ET
from html.parser import HTMLParser
from pathlib import Path

import pytest

from protofleet.lab.report import html_page
from protofleet.lab.report.comparison import accuracy_target, read_groups
from protofleet.lab.report.comparison_page import comparison_page
from protofleet.lab.report.comparison_tables import best_cells, tables
from protofleet.lab.report.drawing.canvas import MOST_ROWS, NARROW, WIDE, PictureTable
from protofleet.lab.report.drawing.charts import Bar, ChartLine, bar_chart, line_chart
from protofleet.lab.report.drawing.palette import COLOURS
from protofleet.lab.report.grid_charts import luminance
from protofleet.lab.report.run_page import write_report
from protofleet.lab.report.sections.participation import attendances, listed, participation_section
from tests.lab.report.finished import whole_run
from tests.lab.report.pictures import pictures_of
from tests.lab.report.test_compare import finished

CSS = (Path(html_page.__file__).parent / "report.css").read_text()


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    return write_report(whole_run(tmp_path_factory.mktemp("run"))).read_text()


@pytest.fixture(scope="module")
def comparison(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    runs = [
        finished(folder / f"avg-s{s}", f"avg-s{s}", [0.1, 0.4, 0.7 + s / 100], seed=s, settings="size = 8")
        for s in (1, 2)
    ]
    runs.append(finished(folder / "proto", "proto", [0.5, 0.73, 0.65], method="fedproto", up=10))
    groups = read_groups(runs)
    return comparison_page(groups, tables(groups, accuracy_target(groups, "", 0.9), 0.9))


@pytest.fixture(params=["report", "comparison"])
def html(request):
    return request.getfixturevalue(request.param)


class Elements(HTMLParser):
    """A parser that keeps all start tags of a page with their attributes."""

    def __init__(self, html):
        super().__init__()
        self.found = []
        self.feed(html)

    def handle_starttag(self, tag, attributes):
        self.found.append((tag, dict(attributes)))

    def of(self, tag):
        return [attributes for found, attributes in self.found if found == tag]


# Colours


def palettes():
    """Return the colours of the light and of the dark page by name."""
    light, dark = re.findall(r":root \{(.*?)\}", CSS, re.DOTALL)
    read = [dict(re.findall(r"(--[\w-]+): (#[0-9a-f]{6})", block)) for block in (light, dark)]
    return read[0], read[0] | read[1]


def contrast(a, b):
    low, high = sorted(luminance(*bytes.fromhex(colour[1:])) for colour in (a, b))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("palette", palettes(), ids=["light", "dark"])
def test_text_has_a_contrast_of_at_least_4_5_and_lines_of_at_least_3(palette):
    for paper in (palette["--paper"], palette["--card"]):
        for ink in ("--ink", "--soft", "--link"):
            assert contrast(palette[ink], paper) >= 4.5, ink
        for i in range(len(COLOURS)):
            assert contrast(palette[f"--series-{i}"], paper) >= 3.0, i
    assert contrast("#ffffff", palette["--danger"]) >= 4.5


def test_the_dark_palette_is_only_for_screens():
    assert (
        CSS.count("prefers-color-scheme") == CSS.count("@media screen and (prefers-color-scheme: dark)") == 1
    )


def test_text_in_pictures_never_has_the_colour_of_a_line(html):
    for width in ("wide", "narrow"):
        for picture in pictures_of(html, width):
            for text in picture.iter("{http://www.w3.org/2000/svg}text"):
                assert not {"fill", "stroke", "style"} & set(text.keys())


# Structure


def test_every_header_cell_has_a_scope_and_every_table_has_a_caption(html):
    elements = Elements(html)
    heads = elements.of("th")
    assert heads and all(head["scope"] in ("col", "row") for head in heads)
    assert len(elements.of("caption")) == len(elements.of("table")) >= 7


def test_each_scrollable_table_can_be_focused_and_has_its_own_label(html):
    regions = [a for tag, a in Elements(html).found if a.get("role") == "region"]
    assert len(regions) == html.count("<table") and all(region["tabindex"] == "0" for region in regions)
    labels = [region["aria-label"] for region in regions]
    assert len(set(labels)) == len(labels), "no two regions of a page have one label"
    assert re.search(r"\.scroll \{[^}]*overflow-x: auto;[^}]*local[^}]*scroll;", CSS, re.DOTALL), "shades"


def test_a_page_links_to_its_sections_and_all_ids_are_different(html):
    elements = Elements(html)
    ids = [attributes["id"] for _, attributes in elements.found if "id" in attributes]
    assert len(set(ids)) == len(ids)
    links = [link["href"].removeprefix("#") for link in elements.of("a")]
    assert links == [heading["id"] for heading in elements.of("h2")] and len(links) >= 5


def test_every_picture_has_two_widths_a_title_and_a_description(html):
    wide, narrow = pictures_of(html), pictures_of(html, "narrow")
    assert len(wide) == len(narrow) >= 2
    for canvas, pictures in ((WIDE, wide), (NARROW, narrow)):
        for picture in pictures:
            title, text = picture.find("{*}title"), picture.find("{*}desc")
            assert picture.get("aria-labelledby") == title.get("id") and title.text
            assert picture.get("aria-describedby") == text.get("id") and len(text.text) > 20
            assert float(picture.get("viewBox").split()[2]) == canvas.width
    assert NARROW.width <= 400 - 2 * 16, "so text of 12 pixels has 12 pixels on a phone too"
    assert re.search(r"@media screen and \(max-width: \d+px\).*?svg\.wide \{ display: none", CSS, re.DOTALL)


def test_the_numbers_of_every_curve_are_in_a_table(report, comparison):
    names = (
        *(f"{measure} by domain over rounds" for measure in ("accuracy", "loss", "macro_f1")),
        "bytes up by kind and round",
    )
    for html, titles in (
        (report, names),
        (comparison, ("mean accuracy over rounds", "mean accuracy over bytes")),
    ):
        for title in titles:
            assert f"<summary>Numbers: {title}</summary>" in html
    (rows,) = re.findall(
        r"<caption>Numbers: mean accuracy over rounds</caption>.*?<tbody>(.*?)</tbody>", comparison
    )
    assert '<th scope="row">2</th><td>71.5% ± 0.7%</td><td>65.0%</td>' in rows


def test_a_line_without_a_point_has_a_dash_in_the_table():
    lines = [ChartLine("a", [(1, 0.5), (2, 0.6)], "#000"), ChartLine("b", [(2, 0.7), (3, 0.8)], "#000")]
    html = line_chart(lines, "{:.1f}".format, "round; of training", "x")
    rows = re.findall(r'<th scope="row">(\d)</th><td>(.*?)</td><td>(.*?)</td>', html)
    assert rows == [("1", "0.5", "-"), ("2", "0.6", "0.7"), ("3", "-", "0.8")]
    bars = [Bar(1.1, [("a", 3)], 0.3), Bar(1.4, [("b", 4)], 0.3), Bar(2.0, [("a", 5)], 0.3)]
    html = bar_chart(bars, {"a": "#000", "b": "#000"}, str, "round", "y")
    rows = re.findall(r'<th scope="row">(\d)</th><td>(.*?)</td><td>(.*?)</td>', html)
    assert rows == [("1", "3", "4"), ("2", "5", "-")]


def test_a_table_of_thousands_of_rounds_has_some_hundred_rows_with_the_first_and_last():
    html = PictureTable(["round", "a"], [[str(n), "1"] for n in range(5000)]).html("x")
    shown = [int(n) for n in re.findall(r'<th scope="row">(\d+)</th>', html)]
    assert shown[0] == 0 and shown[-1] == 4999 and MOST_ROWS / 2 < len(shown) <= MOST_ROWS + 1
    assert "every 13th row of 5000" in html


@pytest.mark.parametrize("width", ["wide", "narrow"])
def test_many_long_names_are_all_inside_the_picture(width):
    lines = [
        ChartLine(f"a rather long name of a device, number {i}" * 2, [(1, i), (2, i)], COLOURS[0])
        for i in range(40)
    ]
    for series in (lines[:3], lines):
        (picture,) = pictures_of(line_chart(series, str, "round " * 40, "x"), width)
        *_, right, bottom = map(float, picture.get("viewBox").split())
        texts = [node for node in picture.findall("{*}text") if "name" in node.text]
        assert len(texts) == len(series)
        for node in texts:
            assert float(node.get("x")) + 6 * len(node.text) <= right and 0 < float(node.get("y")) < bottom


# Participation


def test_each_round_of_a_device_has_a_state():
    line = {
        "round": 3, "phases": [{"asked": list("abcde"), "phase": "train", "seconds": 1.0}],
        "participants": ["a", "e"], "late": ["b"], "dropped": {"c": "odd"}, "aside": {"e": "too large"},
    }  # fmt: skip
    states = {one.device: one.states for one in attendances([line])}
    expected = dict(zip("abcde", ["answered", "late", "refused", "no answer", "put aside"], strict=True))
    assert states == {device: {3: state} for device, state in expected.items()}
    assert listed([1, 2, 3, 5, 8, 9]) == "1-3, 5, 8-9" and listed([]) == "-"


def test_the_picture_of_participation_shows_the_60_devices_that_missed_most(tmp_path):
    devices = [f"d{i:03}" for i in range(100)]
    lines = [
        {"round": r, "phases": [{"asked": devices, "phase": "train", "seconds": 1.0}],
         "participants": devices[: max(0, 100 - r)], "late": [], "dropped": {}}
        for r in range(1, 2001)
    ]  # fmt: skip
    run = type("Run", (), {"rounds": lines})
    html = participation_section(run)
    (picture,) = pictures_of(html)
    assert "60 of 100 devices that missed most" in html and len(picture.findall("{*}rect")) < 60 * 3
    words = [node.text for node in picture.iter() if node.tag.endswith("title")]
    assert "d098, round 1: answered" in words and "d098, rounds 2 to 2000: no answer" in words


# Comparisons


def test_the_best_value_of_a_column_is_bold_unless_all_values_are_equal():
    values = [[[1.0, 3.0], [5.0], []], [[2.04], [5.0], [7.0]], [[1.0], [5.0], []]]
    assert best_cells(values, 2, "{:.1f}".format) == {(0, 2), (1, 2)}, "2.0 and 2.0"
    assert best_cells(values, 0, "{:.1f}".format, highest=False) == {(2, 0)}
    assert best_cells([], 0, str) == best_cells([[[1.0]]], 0, str) == frozenset()


def test_the_best_value_is_chosen_among_runs_with_the_same_view():
    values, views = [[[90.0]], [[80.0]], [[70.0]]], ["personal", "global", "global"]
    assert best_cells(values, 0, "{:.1f}".format, among=views) == {(1, 0)}, "there is no other personal run"


def test_a_run_that_sends_no_bytes_is_not_the_best_in_bytes():
    values = [[[0.0]], [[300.0]], [[200.0]]]
    assert best_cells(values, 0, "{:.0f}".format, highest=False) == {(2, 0)}, (
        "a run without bytes is not a federation"
    )


def test_a_comparison_lists_different_settings_and_marks_the_best_value(comparison):
    assert '<th scope="row">size</th><td>8</td><td>(not set)</td>' in comparison
    assert '<th scope="row">method.name</th><td>fedavg</td><td>fedproto</td>' in comparison
    assert '<th scope="row">seed</th>' not in comparison
    assert "<strong>71.5 ± 0.7</strong>" in comparison and "± 0 B" not in comparison


def test_runs_with_equal_settings_have_no_section_of_differences(tmp_path):
    groups = read_groups([finished(tmp_path / "a", "a", [0.1, 0.4])])
    assert "What differs" not in comparison_page(groups, tables(groups, None, 0.9))


# Versions and machines


def test_a_report_names_the_version_and_machine_of_the_coordinator_and_each_device(report):
    rows = re.findall(r'<th scope="row">([^<]*)</th><td>([^<]*)</td><td>([^<]*)</td></tr>', report)
    assert ("coordinator", "protofleet 0.1.0, Python 3.11.2, torch 2.13.0", "Linux x86_64, 2 cores") in rows
    assert ("a, b", "protofleet 0.1.0", "-") in rows and ("c", "protofleet 0.0.9", "Jetson Nano") in rows


def test_the_report_of_a_run_without_versions_has_no_section_of_versions(tmp_path):
    folder = whole_run(tmp_path)
    summary = json.loads((folder / "summary.json").read_text())
    devices = {device: {} for device in summary["devices"]}
    (folder / "summary.json").write_text(json.dumps({**summary, "versions": {}, "devices": devices}))
    assert "Versions and machines" not in write_report(folder).read_text()


def test_figures_are_well_formed_xml(html):
    figures = re.findall(r"<figure>.*?</figure>", html, re.DOTALL)
    assert {ET.fromstring(figure).tag for figure in figures} == {"figure"}
