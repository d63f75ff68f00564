"""Write the meanings of reasons in docs/protocol.md: python -m tools.pages.reasons."""

from __future__ import annotations

from typing import Final

from protofleet.protocol.wire.reasons import MEANINGS, Reason
from tools.pages.generated_table import DOCS, replace_table

PAGE: Final = DOCS / "protocol.md"
HEAD: Final = "| reason | |\n|---|---|\n"


def generate(text: str) -> str:
    rows = (f"| `{reason.value}` | {MEANINGS[reason]} |\n" for reason in Reason)
    return replace_table(text, "tools.pages.reasons", HEAD + "".join(rows))


if __name__ == "__main__":
    PAGE.write_text(generate(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
