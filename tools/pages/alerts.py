"""Write the alerts in docs/operations.md from the rules: python -m tools.pages.alerts."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from tools.pages.generated_table import DOCS, replace_table

PAGE: Final = DOCS / "operations.md"
RULES: Final = Path(__file__).parents[2] / "deploy" / "compose" / "prometheus" / "rules" / "alerts.yml"
COLUMNS: Final = {"meaning": "Means: ", "look_at": "Look at: ", "what_to_do": "Do: "}


def entries(rules: str) -> Iterator[str]:
    """Yield a section for each alert rule. The message of the alert contains a link to this section."""
    names = re.findall(r"- alert: (\w+)", rules)
    for name, rule in zip(names, rules.split("- alert: ")[1:], strict=True):
        words = dict(re.findall(r'^ +(\w+): (".*")$', rule, re.MULTILINE))
        page = "**Page.** " if "severity: page" in rule else ""
        lines = (f"{said}{linked(json.loads(words[c]), names)}" for c, said in COLUMNS.items() if c in words)
        yield f"### {name}\n\n{page}" + "  \n".join(lines) + "\n\n"


def linked(text: str, names: list[str]) -> str:
    """Return the text, with links to the pages and the alerts that the text names."""
    text = re.sub(r"docs/([\w-]+\.md)", r"[\1](\1)", text)
    return re.sub(r"`(\w+)`", lambda m: f"[{m[0]}](#{m[1].lower()})" if m[1] in names else m[0], text)


def generate(text: str) -> str:
    return replace_table(text, "tools.pages.alerts", "".join(entries(RULES.read_text(encoding="utf-8"))))


if __name__ == "__main__":
    PAGE.write_text(generate(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
