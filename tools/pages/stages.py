"""Write the table of the keys of a stage in docs/protocol.md: python -m tools.pages.stages."""

from __future__ import annotations

import json
from typing import Final, Literal, get_args, get_origin, get_type_hints

from protofleet.protocol.settings.codec import CodecStage
from protofleet.protocol.settings.described import DescribedSetting, keys
from tools.pages.generated_table import DOCS, replace_table

PAGE: Final = DOCS / "protocol.md"
HEAD: Final = "| key | values | default | content |\n|---|---|---|---|\n"


def table() -> str:
    return HEAD + "".join(_row(key) for key in keys(CodecStage))


def _row(key: DescribedSetting) -> str:
    return f"| `{key.key}` | {values(key)} | `{json.dumps(key.default)}` | {key.sentence} |\n"


def values(key: DescribedSetting) -> str:
    """Return the values that the key may have, or its type."""
    hint = get_type_hints(CodecStage)[key.key]
    if get_origin(hint) is Literal:
        return ", ".join(f"`{value}`" for value in get_args(hint))
    return key.type


def generate(page: str) -> str:
    return replace_table(page, "tools.pages.stages", table())


if __name__ == "__main__":
    PAGE.write_text(generate(PAGE.read_text()))
