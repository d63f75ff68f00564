"""`python -m tests.count_words` prints the number of words of each page in docs/, generated text separately.

The total has the pages that existed when the limit was set. The pages in OTHERS and the sections in OTHER_SECTIONS,
which were requested in addition, are not in the total. A word is what `wc -w` counts. Generated text is: the text
between <!-- generated ... --> and <!-- end of generated -->, the tables of MEASURED pages, and the bytes of ```hex
blocks, which a test compares with their vectors.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Final

DOCS: Final = Path(__file__).parent.parent / "docs"
LIMIT: Final = 45_000
OTHERS: Final = {
    "README.md", "adding-a-method.md", "architecture.md", "bounds.md", "brokers.md", "budget.md",
    "buffered-rounds.md", "clusters.md", "codecs.md", "day-0.md",
    "day-2.md", "dp.md", "energy.md", "fine-tuning.md", "glossary.md", "gpu.md", "hostile.md", "installing.md",
    "kubernetes.md",
    "leakage.md", "live-page.md", "methods.md", "move-a-coordinator.md",
    "one-coordinator.md", "one-message.md", "plug-ins.md", "privacy.md", "python.md",
    "restore-a-coordinator.md", "robust.md", "rounds.md", "run-queue.md", "scale.md",
    "serving.md",
    "several-runs.md", "sweeps.md", "trackers.md",
    "tutorial-engineer.md", "tutorial-researcher.md", "virtual-time.md", "write-a-client.md",
    "your-data.md", "your-model.md",
}  # fmt: skip
OTHER_SECTIONS: Final = {"protocol.md": "## 14. Masked sums"}  # Page -> heading of its last section.
GENERATED: Final = re.compile(
    r"^<!-- generated.*?^<!-- end of generated -->$|^```hex\n.*?^```$", re.MULTILINE | re.DOTALL
)
MEASURED: Final = {"metrics.md", "benchmarks.md"}  # Programs write the tables of these pages.


def counts(page: Path) -> tuple[int, int]:
    """Return the number of words to read and the number of generated words of a page."""
    text = page.read_text(encoding="utf-8")
    if page.name in OTHER_SECTIONS:
        text = text.partition(OTHER_SECTIONS[page.name])[0]
    own = GENERATED.sub("", text)
    if page.name in MEASURED:
        own = "\n".join(line for line in own.splitlines() if not line.startswith("|"))
    total, read = (sum(word != "|" for word in part.split()) for part in (text, own))
    return read, total - read


def main() -> int:
    total = 0
    for page in sorted(DOCS.glob("*.md")):
        own, generated = counts(page)
        total += 0 if page.name in OTHERS else own
        sys.stdout.write(
            f"{own:7,} {generated:7,}  {page.name}{' (not counted)' if page.name in OTHERS else ''}\n"
        )
    sys.stdout.write(f"{total:7,} words of {LIMIT:,}\n")
    return total > LIMIT


if __name__ == "__main__":
    sys.exit(main())
