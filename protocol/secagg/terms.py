"""Define the terms of an attempt, which every signature and every mask depends on."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias, get_args

from protofleet.protocol.secagg.faults import SecaggError, SecaggFault
from protofleet.protocol.secagg.field import MOST_DEVICES, Field
from protofleet.protocol.secagg.masks import KEY, digest
from protofleet.protocol.security.statements import Reader, StatementError, Writer
from protofleet.protocol.wire.names import valid_name

Stage: TypeAlias = Literal["presence", "values"]

STAGES: Final[tuple[Stage, ...]] = get_args(Stage)
NONCE: Final = 16
LEAST_DEVICES: Final = 3  # a sum of two devices is no secret for either of them
MOST_LENGTH: Final = 1 << 28  # numbers of a vector


@dataclass(frozen=True, slots=True)
class Terms:
    """The values that all devices of an attempt and the coordinator must agree on."""

    federation: str
    run: str
    round: int
    attempt: bytes  # nonce of 16 bytes that the coordinator draws for each attempt
    stage: Stage
    base: bytes  # SHA-256 of the broadcast from which the devices have trained
    length: int  # numbers of the vector
    field: Field
    least: int = LEAST_DEVICES  # fewest devices whose sum may be unmasked
    apart: int = 0  # see `cohorts.may_follow`; 0 allows every cohort

    def __post_init__(self) -> None:
        valid_name(self.federation)
        valid_name(self.run)
        if self.stage not in STAGES:
            raise ValueError(f"stage is {self.stage!r}, it must be one of {', '.join(STAGES)}")
        if len(self.attempt) != NONCE or len(self.base) != KEY:
            raise ValueError(
                f"attempt and base have {len(self.attempt)} and {len(self.base)} bytes, but must have {NONCE} and "
                f"{KEY}"
            )
        for name, least, most in (
            ("round", 0, (1 << 63) - 1),
            ("length", 1, MOST_LENGTH),
            ("least", LEAST_DEVICES, self.field.devices),
            ("apart", 0, MOST_DEVICES),
        ):
            value = getattr(self, name)
            if not least <= value <= most:
                raise ValueError(f"{name} is {value}, it must be between {least} and {most}")

    @property
    def hash(self) -> bytes:
        return digest("terms", self.encode())

    def encode(self) -> bytes:
        fields = Writer().text(self.federation).text(self.run).number(self.round).blob(self.attempt)
        fields.text(self.stage).blob(self.base).number(self.length).number(self.field.devices)
        fields.blob(struct.pack("<d", self.field.limit)).number(self.field.fraction).number(self.field.bits)
        return fields.number(self.least).number(self.apart).done()


def read_terms(data: bytes) -> Terms:
    """Return the terms in these bytes, or raise SecaggError."""
    fields = Reader("set of terms", data)
    try:
        federation, run, number, attempt = fields.text(), fields.text(), fields.number(), fields.blob(NONCE)
        stage, base, length, devices = _stage(fields), fields.blob(KEY), fields.number(), fields.number()
        (limit,) = struct.unpack("<d", fields.blob(8, 8))
        field = Field(devices, limit, fields.number(), fields.number())
        least, apart = fields.number(), fields.number()
        fields.end()
        return Terms(federation, run, number, attempt, stage, base, length, field, least, apart)
    except (StatementError, ValueError) as error:
        raise SecaggError(SecaggFault.MALFORMED, f"no terms: {error}") from None


def _stage(fields: Reader) -> Stage:
    found = fields.text()
    for stage in STAGES:
        if stage == found:
            return stage
    raise fields.wrong(f"the stage {found!r}")


def threshold(devices: int) -> int:
    """Return the fewest devices of a roster that can unmask a sum.

    It is more than two thirds. So a coordinator that lies cannot have two sets of survivors signed.
    """
    return 2 * devices // 3 + 1


def enough_of(devices: int, least: int) -> int:
    """Return the fewest devices of a roster whose sum may be unmasked."""
    return max(threshold(devices), least)
