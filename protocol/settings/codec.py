"""The [codec] table: which arrays of a run are rounded before they are sent, and how.

A stage says how the arrays of one kind are coded in one direction. The package `protocol/coding` codes the arrays.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Annotated, Final, Literal, TypeAlias

from protofleet.protocol.settings.bounds import Within
from protofleet.protocol.settings.reader import SettingsError

EXACT: Final = "exact"
TERNARY: Final = "ternary"
NOTHING: Final = "nothing"
BROADCAST: Final = "broadcast"
NEAREST: Final = "nearest"
STOCHASTIC: Final = "stochastic"
FormName: TypeAlias = Literal[
    "exact", "float16", "bfloat16", "int8", "int4", "uint8", "uint4", "rice", "ternary"
]
Reference: TypeAlias = Literal["nothing", "broadcast"]
Rounding: TypeAlias = Literal["nearest", "stochastic"]
Keep = Annotated[int, Within(2, 1_000_000, also=((0, "the default, for forms other than ternary"),))]
# Kinds whose numbers may be rounded. Labels and counts are whole numbers with a meaning of their own.
ROUNDED_KINDS: Final = ("weights", "classifier", "amplifier", "prototypes", "sets", "anchors", "features")


@dataclass(frozen=True, slots=True)
class CodecStage:
    """The stage of one kind of arrays in one direction."""

    form: FormName = EXACT
    """Form of the numbers; `exact` changes nothing, `ternary` keeps a few numbers, and the other forms use 16, 8 or 4
    bits for a number.
    """
    against: Reference = NOTHING
    """Arrays that are subtracted from the update before it is coded, `broadcast` (the arrays of the task) or
    `nothing`.
    """
    keep: Keep = 0
    """Number n if `ternary` keeps one of n numbers, such as 10; other forms do not use this setting."""
    feedback: bool = False
    """If true, a device stores what rounding removes from an update, and adds it to the next update."""
    rounding: Rounding = NEAREST
    """Rounding of numbers of 8 or 4 bits, `nearest` or `stochastic`."""
    pack: bool = False
    """If true, zlib packs the bytes where this saves space."""

    @property
    def rounds(self) -> bool:
        """Return whether the coding may change numbers."""
        return self.form != EXACT


@dataclass(frozen=True)
class CodecSettings:
    """The [codec] table: how devices round arrays; arrays whose kind has no stage are not changed."""

    up: dict[str, CodecStage] = field(default_factory=dict)
    """Stages of what devices send, by kind of arrays, such as `weights` or `prototypes`."""
    down: dict[str, CodecStage] = field(default_factory=dict)
    """Stages of what the coordinator broadcasts, by kind of arrays."""

    def __post_init__(self) -> None:
        if not (self.up or self.down):
            raise SettingsError("codec has no stage; set one, such as [codec.up.weights], or leave codec out")
        for kind, stage in self.up.items():
            check_stage(f"codec.up.{kind}", kind, stage)
        for kind, stage in self.down.items():
            if (
                stage.feedback
            ):  # First, because the advice of check_stage would be to add settings to feedback.
                raise SettingsError(
                    f"codec.down.{kind}.feedback is true; leave it out: each broadcast already contains what "
                    "rounding has lost of earlier broadcasts"
                )
            check_stage(f"codec.down.{kind}", kind, stage)

    @property
    def rounds(self) -> bool:
        """Return whether the coding may change numbers."""
        return any(stage.rounds for stage in (*self.up.values(), *self.down.values()))

    def check_kinds(self, declared: Collection[str]) -> None:
        """Raise SettingsError for a kind of arrays that the run's method does not have."""
        for way, stages in (("up", self.up), ("down", self.down)):
            if unknown := sorted(stages.keys() - set(declared)):
                raise SettingsError(
                    f"codec.{way}.{unknown[0]} is set, but the run's method has only the kinds "
                    f"{', '.join(sorted(declared))}"
                )


def check_stage(where: str, kind: str, stage: CodecStage) -> None:
    """Raise SettingsError if the settings of a stage contradict each other."""
    if stage.rounds and kind not in ROUNDED_KINDS:
        raise SettingsError(
            f"{where}.form is {stage.form!r}, but {kind} must arrive unchanged; use {EXACT!r}. "
            f"These kinds may be rounded: {', '.join(ROUNDED_KINDS)}"
        )
    if stage.form == TERNARY and stage.against != BROADCAST:
        raise SettingsError(f'{where}.form is {TERNARY!r}, which needs against = "{BROADCAST}"')
    if (stage.form == TERNARY) != (stage.keep > 0):
        words = "set keep, such as 10 for one number of ten" if stage.form == TERNARY else "leave keep out"
        raise SettingsError(f"{where}.keep is {stage.keep} with form {stage.form!r}; {words}")
    if stage.feedback and (stage.against != BROADCAST or stage.form in (EXACT, "float16", "bfloat16")):
        raise SettingsError(
            f'{where}.feedback needs against = "{BROADCAST}" and a form of 8 bits or fewer; form is {stage.form!r}, '
            f"against is {stage.against!r}"
        )
