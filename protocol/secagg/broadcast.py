"""Define the arrays that the broadcast of a summed phase has in addition to the method's own arrays."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Final

import numpy as np

from protofleet.protocol.secagg.control_arrays import ByteArrays, SumStep, as_array, bytes_in
from protofleet.protocol.secagg.faults import SecaggError, SecaggFault
from protofleet.protocol.secagg.masks import digest
from protofleet.protocol.secagg.terms import Stage, Terms, read_terms
from protofleet.protocol.wire.arrays import encode
from protofleet.protocol.wire.messages import Array, Arrays

CONTROL: Final = "control."  # the first letters of the names of these arrays
MOST: Final = "control.most"  # largest number of examples with which a device counts
ATTEMPT: Final = (
    "control.attempt"  # nonce of the attempt; without it, two attempts could have equal broadcasts
)
PRESENCE_VECTOR: Final = "control.presence.masked"
MASKED: Final = "masked"  # last part of the name of a masked vector; the first part is a kind of the method


def terms_name(stage: Stage) -> str:
    return f"control.{stage}.terms"


def step_name(step: SumStep, stage: Stage) -> str:
    """Return the name of a step in the name of its phase, such as `masked` or `presence.masked`."""
    together = step in (SumStep.KEYS, SumStep.SHARES)  # Both stages have these steps in one task.
    return step.value if stage == "values" or together else f"{stage}.{step.value}"


def base_of(arrays: Arrays, most: int) -> bytes:
    """Return the hash of all that devices must have in common before they add up vectors: the arrays, and `most`."""
    return digest("base", hash_of(arrays), most.to_bytes(8, "little"))


def hash_of(arrays: Arrays) -> bytes:
    """Return the SHA-256 of the method's arrays in a broadcast."""
    found = hashlib.sha256()
    for piece in encode(method_arrays(arrays)):
        found.update(piece)
    return found.digest()


def method_arrays(arrays: Arrays) -> dict[str, Array]:
    """Return the arrays that belong to the method."""
    return {name: arrays[name] for name in arrays if not name.startswith(CONTROL)}


def announced(*terms: Terms, most: int) -> dict[str, Array]:
    """Return the arrays that announce an attempt, for the broadcast of its first task."""
    return {
        MOST: np.array([most], np.int64),
        **{terms_name(one.stage): as_array(one.encode()) for one in terms},
    }


def of_attempt(terms: Terms) -> dict[str, Array]:
    """Return the array that names the attempt, for the broadcast of each later step."""
    return {ATTEMPT: as_array(terms.attempt)}


def is_of_attempt(arrays: ByteArrays, terms: Terms) -> bool:
    """Return whether a broadcast belongs to this attempt; raise SecaggError if it names no attempt."""
    return bytes_in(arrays, ATTEMPT) == terms.attempt


def read_most(arrays: Arrays) -> int:
    """Return the largest number of examples with which a device counts, or raise SecaggError."""
    found = arrays.get(MOST)
    if found is None or found.dtype != np.int64 or found.shape != (1,) or found[0] < 1:
        raise SecaggError(SecaggFault.MALFORMED, f"{MOST} must be a vector of one int64 of at least 1")
    return int(found[0])


def read_announced(arrays: ByteArrays, stage: Stage) -> Terms:
    """Return the terms of an attempt in a broadcast, or raise SecaggError."""
    return read_terms(bytes_in(arrays, terms_name(stage)))


def vector_name(kinds: Sequence[str]) -> str:
    """Return the name of the array with the masked vector, under the first kind of the phase's arrays."""
    return f"{kinds[0]}.{MASKED}"
