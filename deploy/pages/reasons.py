"""Write the meanings of reasons in docs/protocol.md: python -m protofleet.deploy.pages.reasons."""

from __future__ import annotations

from typing import Final

from protofleet.deploy.pages.generated_table import DOCS, replace_table
from protofleet.protocol.wire.reasons import MEANINGS, Reason

PAGE: Final = DOCS / "protocol.md"
HEAD: Final = "| reason | |\n|---|---|\n"


def generate(text: str) -> str:
    rows = (f"| `{reason.value}` | {MEANINGS[reason]} |\n" for reason in Reason)
    return replace_table(text, "protofleet.deploy.pages.reasons", HEAD + "".join(rows))


if __name__ == "__main__":
    PAGE.write_text(generate(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
