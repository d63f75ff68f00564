"""Code broadcasts as deltas: a delta turns a broadcast that a device holds into a later broadcast.

A delta has one step for each broadcast since then. If its first step needs no reference, the device needs no
broadcast. The bundles of the first step are called `weights.~`, those of the second step `weights.~1`, and so on.
Arrays that no stage codes are taken from the last step. The reference of each step is the broadcast before it.

Both sides decode the same bytes in the same way, so both get the same bits. The receiver checks this: the decoded
arrays must have the hash of the broadcast.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from protofleet.protocol.coding.update import (
    Chance,
    DecodedArrays,
    Stages,
    encode_arrays,
    is_bundle,
    name_of_bundle,
)
from protofleet.protocol.wire.arrays import Body, encode
from protofleet.protocol.wire.kinds import kind_in
from protofleet.protocol.wire.messages import NOTHING, Array, Arrays
from protofleet.protocol.wire.reasons import Reason, Rejected

MAX_STEPS: Final = 16  # largest number of steps of a delta
SLACK: Final = 1 << 16  # bytes that the names and sizes in a bundle may take, in addition to the numbers


@dataclass(frozen=True)
class CodedBroadcast:
    """The two forms of a coded broadcast: a delta of one step, and the arrays that the receivers decode from it."""

    step: dict[str, Array]
    decoded: bytes  # body of the decoded arrays


def body_of(data: bytes) -> Body:
    return Body(lambda start, stop: data[start:stop], len(data))


def bytes_of(arrays: Arrays) -> bytes:
    return b"".join(encode(arrays))


def coded_kinds(arrays: Arrays, stages: Stages) -> set[str]:
    return {kind_in(name) for name in arrays} & stages.keys()


def encode_broadcast(
    arrays: Arrays, stages: Stages, reference: Body | None, chance: Chance
) -> CodedBroadcast:
    """Code the arrays of a broadcast against an earlier broadcast, or without a reference.

    No residual is needed. The next broadcast is coded against these decoded arrays, so its differences contain what
    rounding has lost here.
    """
    step = encode_arrays(arrays, stages, reference or NOTHING, NOTHING, chance).arrays
    if not any(stage.rounds for stage in stages.values()):
        return CodedBroadcast(step, bytes_of(arrays))
    most = 2 * sum(array.nbytes for array in arrays.values()) + SLACK
    return CodedBroadcast(step, _decoded(step, stages, reference, most))


def join_steps(steps: Sequence[Body]) -> dict[str, Array]:
    """Return the arrays of a delta with these steps, the oldest first."""
    *earlier, last = steps
    joined = {name: last[name] for name in last if not is_bundle(name)}
    for place, step in enumerate((*earlier, last)):
        joined |= {_in_step(name, place): step[name] for name in step if is_bundle(name)}
    return joined


def apply_delta(delta: Body, stages: Stages, reference: Body | None, size: int) -> bytes:
    """Return the body of the broadcast that the delta makes from `reference`, or raise Rejected.

    `size` is the size in bytes of this broadcast. No bundle may be larger than twice this size.
    """
    body, data = reference, b""
    for step in _steps_of(delta):
        data = _decoded(step, stages, body, 2 * size + SLACK)
        body = body_of(data)
    return data


def _decoded(step: Arrays, stages: Stages, reference: Body | None, most: int) -> bytes:
    decoded = DecodedArrays(body_of(bytes_of(step)), stages, reference, most)
    return bytes_of({name: decoded[name] for name in decoded})  # decodes each array only once


def _steps_of(delta: Body) -> Iterator[Mapping[str, Array]]:
    """Yield the steps of a delta; the last step also has the arrays that no stage codes."""
    by_step: dict[int, dict[str, Array]] = {}
    others = {}
    for name in delta:
        if is_bundle(name):
            by_step.setdefault(_place_of(name), {})[name_of_bundle(kind_in(name))] = delta[name]
        else:
            others[name] = delta[name]
    if sorted(by_step) != list(range(len(by_step))) or not by_step:
        raise Rejected(Reason.BAD_BODY, f"a delta with the steps {sorted(by_step)}")
    for place in range(len(by_step) - 1):
        yield by_step[place]
    yield by_step[len(by_step) - 1] | others


def _in_step(name: str, place: int) -> str:
    return f"{name}{place}" if place else name


def _place_of(name: str) -> int:
    digits = name.partition(".")[2][1:]
    known = [str(place) if place else "" for place in range(MAX_STEPS)]
    if digits not in known:
        raise Rejected(Reason.BAD_BODY, f"a delta with an array called {name[:64]!r}")
    return known.index(digits)
