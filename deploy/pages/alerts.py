"""python -m protofleet.deploy.pages.alerts: writes the table of alerts in docs/operations.md anew, from the rules."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from protofleet.deploy.pages.generated_table import DOCS, replace_table

PAGE: Final = DOCS / "operations.md"
RULES: Final = Path(__file__).parents[1] / "compose" / "prometheus" / "rules" / "alerts.yml"
HEAD: Final = "| alert | what it means | what to look at | what to do |\n|---|---|---|---|\n"
COLUMNS: Final = ("meaning", "look_at", "what_to_do")


def rows(rules: str) -> Iterator[str]:
    for rule in rules.split("- alert: ")[1:]:
        words = dict(re.findall(r'^ +(\w+): (".*")$', rule, re.MULTILINE))
        page = " (page)" if "severity: page" in rule else ""
        cells = (re.sub(r"docs/([\w-]+\.md)", r"[\1](\1)", json.loads(words.get(c, '""'))) for c in COLUMNS)
        yield f"| `{rule.split()[0]}`{page} | {' | '.join(cells)} |\n"


def generate(text: str) -> str:
    return replace_table(
        text, "protofleet.deploy.pages.alerts", HEAD + "".join(rows(RULES.read_text(encoding="utf-8")))
    )


if __name__ == "__main__":
    PAGE.write_text(generate(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
