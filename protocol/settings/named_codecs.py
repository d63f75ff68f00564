"""The named codecs: `codec = "small"` stands for a stage of each kind of arrays that the run's method has.

docs/codecs.md describes the codecs and what they cost.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, Literal, TypeAlias

from protofleet.protocol.settings.codec import (
    BROADCAST,
    ROUNDED_KINDS,
    TERNARY,
    CodecSettings,
    CodecStage,
)
from protofleet.protocol.settings.reader import SettingsError, decode, encode

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


def stages_of(name: CodecName | None, kinds: Collection[str]) -> CodecSettings | None:
    """Return the stages of a named codec for these kinds of arrays; None for "off", or if there are no kinds.

    If no name is given, the stages lose nothing and need little computation: equal arrays are not sent again, and
    whole numbers take fewer bytes.
    """
    if name == OFF or not kinds:
        return None
    if name is None:
        return CodecSettings(dict.fromkeys(sorted(kinds), EXACT), dict.fromkeys(sorted(kinds), EXACT))
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


# The codecs that a message names instead of describing their stages.
ON_THE_WIRE: Final[Mapping[str, CodecName | None]] = {"exact": None, "lossless": "lossless"}


def written_codec(codec: CodecSettings, kinds: Collection[str]) -> bytes:
    """Return a codec as JSON for a message: its name, or its stages without settings that have default values.

    `kinds` are the kinds of arrays of the run's method.
    """
    for name, known in ON_THE_WIRE.items():
        if codec == stages_of(known, kinds):
            return json.dumps(name).encode()
    return json.dumps(short_table(codec), sort_keys=True).encode()


def short_table(codec: CodecSettings) -> dict[str, Any]:
    """Return the stages of a codec as a table, without settings that have their default values."""
    usual = encode(CodecStage())
    return {
        way: {
            kind: {key: value for key, value in encode(stage).items() if value != usual[key]}
            for kind, stage in stages.items()
        }
        for way, stages in (("up", codec.up), ("down", codec.down))
    }


def read_codec(text: bytes, kinds: Collection[str]) -> CodecSettings | None:
    """Read the codec of a message, or raise SettingsError; None if there are no kinds of arrays."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise SettingsError(f"the codec is not JSON: {error}") from None
    if not isinstance(value, str):
        return decode(CodecSettings, value, "codec")
    if value not in ON_THE_WIRE:
        raise SettingsError(f"the codec {value[:40]!r} is not known; update the software of this device")
    return stages_of(ON_THE_WIRE[value], kinds)
