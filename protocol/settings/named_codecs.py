"""The named codecs: `codec = "small"` stands for a stage of each kind of arrays that the run's method has.

docs/codecs.md describes the codecs and what they cost.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Final, Literal, TypeAlias

from protofleet.protocol.settings.codec import (
    BROADCAST,
    ROUNDED_KINDS,
    TERNARY,
    CodecSettings,
    CodecStage,
)

OFF: Final = "off"
CodecName: TypeAlias = Literal["off", "lossless", "safe", "medium", "small", "smallest"]

EXACT: Final = CodecStage(against=BROADCAST)
PACKED: Final = CodecStage(against=BROADCAST, pack=True)
RICE: Final = CodecStage("rice", BROADCAST)
UINT4: Final = CodecStage("uint4", pack=True)
HEADS: Final = ("classifier", "amplifier")


def ternary(keep: int) -> CodecStage:
    return CodecStage(TERNARY, BROADCAST, keep)


@dataclass(frozen=True, slots=True)
class NamedCodec:
    """The stages of a named codec for each group of kinds."""

    summary: str
    up: CodecStage  # weights, classifier and amplifier from devices, without feedback
    down: CodecStage  # weights in broadcasts
    heads: CodecStage  # classifier and amplifier in broadcasts
    others: CodecStage  # prototypes, anchors and features, in both directions


NAMED: Final[Mapping[str, NamedCodec]] = {
    "lossless": NamedCodec("loses nothing: zlib packs the numbers", PACKED, PACKED, PACKED, PACKED),
    "safe": NamedCodec("4 bits a number", RICE, RICE, RICE, UINT4),
    "medium": NamedCodec("one weight of 6 up, of 3 down", ternary(6), ternary(3), ternary(10), UINT4),
    "small": NamedCodec("one weight of 10 up, of 4 down", ternary(10), ternary(4), ternary(10), UINT4),
    "smallest": NamedCodec("one weight of 16 up, of 4 down", ternary(16), ternary(4), ternary(10), UINT4),
}


def stages_of(name: CodecName, kinds: Collection[str]) -> CodecSettings | None:
    """Return the stages of a named codec for these kinds of arrays; None for "off", or if there are no kinds."""
    if name == OFF or not kinds:
        return None
    up: dict[str, CodecStage] = {}
    down: dict[str, CodecStage] = {}
    codec = NAMED[name]
    for kind in sorted(kinds):
        if kind == "weights" or kind in HEADS:
            up[kind] = replace(codec.up, feedback=codec.up.rounds)
            down[kind] = codec.heads if kind in HEADS else codec.down
        else:
            up[kind] = down[kind] = codec.others if kind in ROUNDED_KINDS else EXACT
    return CodecSettings(up, down)
