"""axe-core and measurements check the pages in Chromium, in phone and desktop width, in light and in dark."""

import pytest

from protofleet.lab.report.comparison import accuracy_target, read_groups
from protofleet.lab.report.comparison_page import comparison_page
from protofleet.lab.report.comparison_tables import tables
from protofleet.lab.report.run_page import write_report
from tests.lab.report.finished import whole_run
from tests.lab.report.test_compare import finished
from tests.support.browser import NEEDS_AXE, NEEDS_CHROMIUM, WIDTHS, framed, judged

pytestmark = [pytest.mark.slow, NEEDS_CHROMIUM, NEEDS_AXE]
PICTURES = """
    letters: [...document.querySelectorAll("svg")].filter(s => s.getBoundingClientRect().width > 0)
      .map(s => 12 * s.getBoundingClientRect().width / s.viewBox.baseVal.width),
    pictures: document.querySelectorAll("figure").length,
"""


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    """Write the pages of a run and of a comparison, each with the checking script, and a page that frames them.

    The frames have both widths.
    """
    folder = tmp_path_factory.mktemp("pages")
    runs = [finished(folder / f"avg-s{s}", f"avg-s{s}", [0.1, 0.4, 0.7 + s / 100], seed=s) for s in (1, 2)]
    groups = read_groups(
        [*runs, finished(folder / "proto", "proto", [0.5, 0.7, 0.6], method="fedproto", up=10)]
    )
    (folder / "run").mkdir()
    texts = {
        "report": write_report(whole_run(folder / "run")).read_text(),
        "comparison": comparison_page(groups, tables(groups, accuracy_target(groups, "", 0.9), 0.9)),
    }
    for name, text in texts.items():
        (folder / f"{name}.html").write_text(text)
    return framed(folder, list(texts), PICTURES)


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_axe_finds_no_violation_and_text_has_its_full_size_at_both_widths(pages, dark):
    found = judged(pages, dark)
    assert sorted((one["name"], one["width"]) for one in found) == sorted(
        (f"#{name}", width) for name in ("report", "comparison") for width in WIDTHS
    )
    for one in found:
        assert one["violations"] == [] and one["passes"] > 20
        assert one["content"] <= one["width"], "the page itself does not scroll sideways"
        assert len(one["letters"]) == one["pictures"] and min(one["letters"]) >= 11.5
        assert one["dark"] == dark and (one["paper"] == "rgb(255, 255, 255)") != dark
