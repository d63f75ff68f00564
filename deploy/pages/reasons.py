"""python -m protofleet.deploy.pages.reasons: writes anew what docs/protocol.md says of each reason, from the code."""

from __future__ import annotations

from typing import Final

from protofleet.deploy.pages.between import DOCS, replaced
from protofleet.protocol.wire.reasons import MEANINGS, Reason

PAGE: Final = DOCS / "protocol.md"
HEAD: Final = "| reason | |\n|---|---|\n"


def written(text: str) -> str:
    rows = (f"| `{reason.value}` | {MEANINGS[reason]} |\n" for reason in Reason)
    return replaced(text, "protofleet.deploy.pages.reasons", HEAD + "".join(rows))


if __name__ == "__main__":
    PAGE.write_text(written(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
