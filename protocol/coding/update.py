"""The coded arrays of a message. Each kind that has a stage becomes one bundle. All other arrays are not changed.

A bundle is one array of bytes, called `weights.~` for the kind `weights`. So the names in a body show which kinds are
coded, and the bytes of a bundle are counted under its kind.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, TypeAlias

import numpy as np

from protofleet.protocol.coding.bundle import Bundle
from protofleet.protocol.coding.coder import encode_kind, rules_of
from protofleet.protocol.coding.floats import Floats
from protofleet.protocol.settings.codec import CodecStage
from protofleet.protocol.wire.arrays import DTYPES, Body
from protofleet.protocol.wire.kinds import kind_in
from protofleet.protocol.wire.messages import Array, Arrays
from protofleet.protocol.wire.reasons import Reason, Rejected

BUNDLE: Final = "~"
Stages: TypeAlias = Mapping[str, CodecStage]  # stage of each kind
Chance: TypeAlias = Callable[[str], np.random.Generator]  # returns a generator for a kind


@dataclass(frozen=True)
class CodedArrays:
    """The coded arrays of a message, and their rounding errors."""

    arrays: dict[str, Array]
    residual: dict[str, Floats] = field(default_factory=dict)


def name_of_bundle(kind: str) -> str:
    return f"{kind}.{BUNDLE}"


def is_bundle(name: str) -> bool:
    return name.partition(".")[2].startswith(BUNDLE)


def of_kind(arrays: Arrays, kind: str) -> dict[str, Array]:
    return {name: arrays[name] for name in arrays if kind_in(name) == kind}


def chance_of(*parts: object) -> Chance:
    """Return a source of random numbers that depend only on `parts`, so a repeated rounding gives the same bits."""

    def chance(kind: str) -> np.random.Generator:
        seed = hashlib.sha256("/".join(map(str, ("codec", *parts, kind))).encode()).digest()
        return np.random.Generator(np.random.Philox(int.from_bytes(seed[:16], "little")))

    return chance


def encode_arrays(
    arrays: Arrays, stages: Stages, reference: Arrays, residual: Arrays, chance: Chance
) -> CodedArrays:
    """Code the arrays of an update.

    `reference` has the arrays of the task's broadcast. `residual` has the rounding errors of earlier updates.
    """
    if taken := [name for name in arrays if is_bundle(name)]:
        raise ValueError(f"an array is called {taken[0]!r}; names with '.{BUNDLE}' are reserved for bundles")
    coded = {name: arrays[name] for name in arrays if kind_in(name) not in stages}
    lost: dict[str, Floats] = {}
    for kind, stage in stages.items():
        if own := of_kind(arrays, kind):
            found = encode_kind(own, stage, of_kind(reference, kind), of_kind(residual, kind), chance(kind))
            coded[name_of_bundle(kind)] = np.frombuffer(found.data, np.uint8)
            lost |= found.residual
    return CodedArrays(coded, lost)


class DecodedArrays(Mapping[str, Array]):
    """The arrays of a body whose coded kinds are decoded. An array is decoded each time that it is read."""

    def __init__(self, body: Body, stages: Stages, reference: Body | None, most_raw: int) -> None:
        """Check the bundles, or raise Rejected. `most_raw` is the largest size in bytes of a bundle without zlib."""
        self._sources: dict[str, Body | Bundle] = {}
        for kind, stage in stages.items():
            if (name := name_of_bundle(kind)) in body:
                known = [one for one in reference or () if kind_in(one) == kind]
                rules = rules_of(stage, known, reference, most_raw)
                bundle = Bundle(_bytes_of(body, name), known, rules, reference)
                if strange := [one for one in bundle if kind_in(one) != kind]:
                    raise Rejected(
                        Reason.BAD_BODY,
                        f"{strange[0][:64]!r} is in the bundle of {kind}, but is of another kind",
                    )
                self._sources |= dict.fromkeys(bundle, bundle)
        coded = {name_of_bundle(kind) for kind in stages}
        for name in body:
            if name not in coded:
                if name in self._sources:
                    raise Rejected(Reason.BAD_BODY, f"{name[:64]!r} is both in a bundle and outside of it")
                self._sources[name] = body

    def dtype_and_shape(self, name: str) -> tuple[str, tuple[int, ...]]:
        return self._sources[name].dtype_and_shape(name)

    def bytes_of(self, name: str) -> int:
        dtype, shape = self.dtype_and_shape(name)
        size: int = math.prod(shape) * DTYPES[dtype].itemsize
        return size

    def flat(self, name: str, start: int, stop: int) -> Array:
        return self._sources[name].flat(name, start, stop)

    def __getitem__(self, name: str) -> Array:
        return self._sources[name][name]

    def __contains__(self, name: object) -> bool:
        return name in self._sources  # Mapping.__contains__ would decode the array.

    def __iter__(self) -> Iterator[str]:
        return iter(self._sources)

    def __len__(self) -> int:
        return len(self._sources)


def _bytes_of(body: Body, name: str) -> bytes:
    dtype, shape = body.dtype_and_shape(name)
    if dtype != "uint8" or len(shape) != 1:
        raise Rejected(Reason.BAD_BODY, f"{name} is {dtype} {shape}, but a bundle must be one row of uint8")
    return body[name].tobytes()
