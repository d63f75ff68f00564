"""axe-core and measurements check the pages in Chromium, in phone and desktop width, in light and in dark.

The tests need a Chromium, and `npm install axe-core` in the root, or PROTOFLEET_AXE with the path of an axe.min.js.
"""

import html
import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from protofleet.lab.report.comparison import accuracy_target, read_groups
from protofleet.lab.report.comparison_page import comparison_page
from protofleet.lab.report.comparison_tables import tables
from protofleet.lab.report.run_page import write_report
from tests.lab.report.finished import whole_run
from tests.lab.report.test_compare import finished
from tests.rooms import ROOT

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
AXE = Path(os.environ.get("PROTOFLEET_AXE", ROOT / "node_modules" / "axe-core" / "axe.min.js"))
WIDTHS = (400, 1400)
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium on the path"),
    pytest.mark.skipif(
        not AXE.exists(), reason=f"there is no {AXE}: npm install axe-core, or set PROTOFLEET_AXE"
    ),
]

# This script runs in each page and tells the page around it.
JUDGE = """
<script src="axe.min.js"></script><script>
addEventListener("load", async () => {
  document.querySelectorAll("details").forEach(d => d.open = true);
  const rules = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"];
  const found = await axe.run(document, {runOnly: rules});
  const shown = [...document.querySelectorAll("svg")].filter(s => s.getBoundingClientRect().width > 0);
  parent.postMessage(JSON.stringify({
    name: location.hash, width: innerWidth, content: document.documentElement.scrollWidth,
    dark: matchMedia("(prefers-color-scheme: dark)").matches, paper: getComputedStyle(document.body).backgroundColor,
    passes: found.passes.length,
    violations: found.violations.map(v => v.id + ": " + v.nodes[0].html.slice(0, 200)),
    letters: shown.map(s => 12 * s.getBoundingClientRect().width / s.viewBox.baseVal.width),
    pictures: document.querySelectorAll("figure").length,
  }), "*");
});
</script>"""
AROUND = """<!doctype html><pre></pre><script>
addEventListener("message", m => document.querySelector("pre").append(m.data + "\\n"));
</script>"""


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
    shutil.copy(AXE, folder / "axe.min.js")
    frames = ""
    for name, text in texts.items():
        (folder / f"{name}.html").write_text(text.replace("</body>", f"{JUDGE}</body>"))
        frames += "".join(
            f'<iframe src="{name}.html#{name}" width="{w}" height="900" style="border:0"></iframe>'
            for w in WIDTHS
        )
    (folder / "all.html").write_text(AROUND + frames)
    return folder / "all.html"


def judged(page, dark):
    command = [
        CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--window-size=1600,1000", "--timeout=60000",
        "--virtual-time-budget=60000", f"--user-data-dir={page.parent / f'profile-{dark}'}",
        f"--blink-settings=preferredColorScheme={0 if dark else 1}", "--dump-dom", page.as_uri(),
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    (found,) = re.findall(r"<pre>(.*?)</pre>", done.stdout, re.DOTALL)
    return [json.loads(html.unescape(line)) for line in found.splitlines()]


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_axe_finds_nothing_and_letters_are_of_their_full_size_at_both_widths(pages, dark):
    found = judged(pages, dark)
    assert sorted((one["name"], one["width"]) for one in found) == sorted(
        (f"#{name}", width) for name in ("report", "comparison") for width in WIDTHS
    )
    for one in found:
        assert one["violations"] == [] and one["passes"] > 20
        assert one["content"] <= one["width"], "the page itself does not scroll sideways"
        assert len(one["letters"]) == one["pictures"] and min(one["letters"]) >= 11.5
        assert one["dark"] == dark and (one["paper"] == "rgb(255, 255, 255)") != dark
