"""Look at pages in Chromium: axe-core and measurements, in phone and desktop width, in light and in dark.

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

from tests.rooms import ROOT

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
AXE = Path(os.environ.get("PROTOFLEET_AXE", ROOT / "node_modules" / "axe-core" / "axe.min.js"))
WIDTHS = (400, 1400)
NEEDS_CHROMIUM = pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium on the path")
NEEDS_AXE = pytest.mark.skipif(
    not AXE.exists(), reason=f"there is no {AXE}: npm install axe-core, or set PROTOFLEET_AXE"
)

# This script runs in each page and sends its results to the page around it.
JUDGE = """
<script src="axe.min.js"></script><script>
addEventListener("load", async () => {
  document.querySelectorAll("details").forEach(d => d.open = true);
  const rules = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"];
  const found = await axe.run(document, {runOnly: rules});
  parent.postMessage(JSON.stringify({
    name: location.hash, width: innerWidth, content: document.documentElement.scrollWidth,
    dark: matchMedia("(prefers-color-scheme: dark)").matches, paper: getComputedStyle(document.body).backgroundColor,
    passes: found.passes.length,
    violations: found.violations.map(v => v.id + ": " + v.nodes[0].html.slice(0, 200)),
    MORE
  }), "*");
});
</script>"""
AROUND = """<!doctype html><pre></pre><script>
addEventListener("message", m => document.querySelector("pre").append(m.data + "\\n"));
</script>"""


def framed(folder: Path, names: list[str], more: str = "") -> Path:
    """Add the checking script to these pages of the folder, and return a page that frames them in both widths.

    `more` adds measurements to the results of the script: keys and values of an object in JavaScript.
    """
    shutil.copy(AXE, folder / "axe.min.js")
    frames = ""
    for name in names:
        page = folder / f"{name}.html"
        page.write_text(page.read_text().replace("</body>", f"{JUDGE.replace('MORE', more)}</body>"))
        frames += "".join(
            f'<iframe src="{name}.html#{name}" width="{w}" height="900" style="border:0"></iframe>'
            for w in WIDTHS
        )
    (folder / "all.html").write_text(AROUND + frames)
    return folder / "all.html"


def judged(page: Path, dark: bool, seconds: int = 60) -> list[dict]:
    """Return the results of the script for each page and width; wait at most this many seconds."""
    document = dumped(page.as_uri(), page.parent, dark, seconds)
    (found,) = re.findall(r"<pre>(.*?)</pre>", document, re.DOTALL)
    return [json.loads(html.unescape(line)) for line in found.splitlines()]


def dumped(url: str, folder: Path, dark: bool = False, seconds: int = 60) -> str:
    """Return the document as Chromium has it after all scripts; its profile is in the folder."""
    command = [
        CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--window-size=1600,1000",
        f"--timeout={seconds * 1000}", "--virtual-time-budget=60000", f"--user-data-dir={folder / f'profile-{dark}'}",
        f"--blink-settings=preferredColorScheme={0 if dark else 1}", "--dump-dom", url,
    ]  # fmt: skip
    return subprocess.run(command, capture_output=True, text=True, timeout=seconds + 60, check=True).stdout
