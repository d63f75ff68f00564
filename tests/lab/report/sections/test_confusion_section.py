"""The report has a section on confused classes."""

import re
from pathlib import Path

import pytest

from protofleet.lab.report.finished_run import FinishedRun
from protofleet.lab.report.sections.confusion import confusion_section

STREET, MNIST = [[3, 1], [4, 0]], [[9, 1], [0, 10]]


def shown(found, **summary):
    rounds = [{"confusion": {}}, {"confusion": found}]
    return confusion_section(FinishedRun(Path(), rounds, {"reports": "global", **summary}))


def rows(html, caption):
    (body,) = re.findall(rf"<caption>{caption}</caption>.*?<tbody>(.*?)</tbody>", html)
    return [re.findall(r"<t[hd][^>]*>([^<]*)</t[hd]>", row) for row in body.split("</tr>") if row]


def test_the_most_frequent_mistakes_are_first():
    found = rows(shown({"mnist": MNIST, "street": STREET}), "Most confused")
    assert found == [
        ["street", "1", "0", "4 of 4", "100.0%"],
        ["street", "0", "1", "1 of 4", "25.0%"],
        ["mnist", "0", "1", "1 of 10", "10.0%"],
    ]


def test_each_domain_has_a_confusion_matrix_and_several_domains_have_a_common_one():
    html = shown({"mnist": MNIST, "street": STREET}, class_names=["<cat>", "dog"])
    assert rows(html, "What was taken for what, all domains") == [
        ["&lt;cat&gt;", "12", "2"],
        ["dog", "4", "10"],
    ]
    assert rows(html, "What was taken for what, street") == [["&lt;cat&gt;", "3", "1"], ["dog", "4", "0"]]
    assert html.count("<details>") == 2 and '<td style="--share:100%">4</td>' in html
    alone = shown({"street": STREET})
    assert "all domains" not in alone and "<details>" not in alone


@pytest.mark.parametrize(("classes", "tables"), [(30, 2), (31, 1)])
def test_only_the_pairs_are_shown_if_there_are_more_than_30_classes(classes, tables):
    html = shown({"a": [[1] * classes] * classes})
    assert html.count("<table") == tables and ("All 31 classes" in html) == (tables == 1)


def test_the_section_shows_20_domains_and_names_the_file_with_the_others():
    html = shown({f"d{i:02}": STREET for i in range(25)})
    assert html.count("<details>") == 20 and "5 more domains are in the last line of rounds.jsonl" in html


def test_a_run_without_mistakes_has_an_empty_list_and_a_run_without_counts_has_no_section():
    assert rows(shown({"a": [[2, 0], [0, 2]]}), "Most confused") == [["-"] * 5]
    assert shown({}) == ""
    assert confusion_section(FinishedRun(Path(), [{"round": 1}], {"reports": "global"})) == ""
