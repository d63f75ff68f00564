"""Answer a step that has arrived as arrays, with arrays."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from protofleet.edge_client.secagg.instance import Instance
from protofleet.protocol.secagg.control_arrays import (
    ByteArrays,
    Part,
    array_name,
    as_array,
    bytes_in,
)
from protofleet.protocol.secagg.directory import Directory
from protofleet.protocol.secagg.field import Words


def answer_keys(instance: Instance) -> dict[str, NDArray[np.uint8]]:
    return _named(instance, {"keys": instance.keys()})


def answer_shares(
    instance: Instance, arrays: ByteArrays, directory: Directory
) -> dict[str, NDArray[np.uint8]]:
    return _named(instance, {"shares": instance.shares(_part(instance, arrays, "roster"), directory)})


def answer_masked(
    instance: Instance, arrays: ByteArrays, words: Words, vector: str
) -> dict[str, NDArray[np.uint8]]:
    """Return the arrays of the step `masked`; `vector` is the name of the array with the masked vector."""
    first, sealed = _part(instance, arrays, "first"), _part(instance, arrays, "shares")
    answer = instance.masked(first, sealed, words)
    named = _named(instance, {"signature": answer.signature, "opened": answer.opened})
    return {vector: as_array(answer.vector), **named}


def answer_agree(instance: Instance, arrays: ByteArrays) -> dict[str, NDArray[np.uint8]]:
    return _named(instance, {"signature": instance.agree(_part(instance, arrays, "survivors"))})


def answer_unmask(instance: Instance, arrays: ByteArrays) -> dict[str, NDArray[np.uint8]]:
    return _named(instance, {"released": instance.unmask(_part(instance, arrays, "signatures"))})


def _part(instance: Instance, arrays: ByteArrays, part: Part) -> bytes:
    return bytes_in(arrays, array_name(instance.book.terms.stage, part))


def _named(instance: Instance, parts: dict[Part, bytes]) -> dict[str, NDArray[np.uint8]]:
    stage = instance.book.terms.stage
    return {array_name(stage, part): as_array(data) for part, data in parts.items()}
