"""Hypothesis strategies for all messages, arrays and frames that travel."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from protofleet.protocol.wire import codec
from protofleet.protocol.wire.arrays import DTYPES, KINDS
from protofleet.protocol.wire.messages import (
    BlockRequest,
    Bye,
    CommandOutcome,
    CommandRequest,
    Finished,
    Hello,
    Manifest,
    News,
    Probe,
    Receipt,
    Refusal,
    State,
    StepDown,
    Task,
    Update,
    Welcome,
)

WHOLES = st.integers(0, 2**63 - 1)
NUMBERS = st.floats(allow_nan=False)
WORDS = st.text(st.characters(exclude_categories=["Cs"]), max_size=20) | st.just("é" * (codec.MAX_TEXT // 2))
ROUNDS = st.integers(0, codec.MAX_ROUND)
PHASES = st.text(st.characters(max_codepoint=127), max_size=codec.MAX_PHASE)
NAMES = st.from_regex(r"[a-z][a-z0-9_.-]{0,20}", fullmatch=True)
HASHES = st.binary(min_size=codec.HASH, max_size=codec.HASH)
SHORT = st.binary(min_size=codec.SHORT_HASH, max_size=codec.SHORT_HASH)
KIND_NAMES = st.sampled_from(["control", *sorted(KINDS)])


@st.composite
def manifests(draw) -> Manifest:
    hashes = draw(st.lists(SHORT, min_size=1, max_size=6))
    block = draw(st.integers(1, 1 << 20))
    size = (len(hashes) - 1) * block + draw(st.integers(1, block))
    cuts = sorted(draw(st.lists(st.integers(0, size), max_size=4)))
    sizes = np.diff([0, *cuts, size]).tolist()
    parts = tuple((draw(KIND_NAMES), n) for n in sizes)
    return Manifest(draw(HASHES), size, block, tuple(hashes), parts)


@st.composite
def ranges(draw) -> tuple[tuple[int, int], ...]:
    marks = sorted(draw(st.sets(st.integers(0, codec.MAX_BLOCKS), max_size=2 * codec.MAX_RANGES)))
    left, found = codec.MAX_ASKED, []
    for start, stop in zip(marks[::2], marks[1::2], strict=False):
        stop = min(stop, start + left)
        left -= stop - start
        if stop > start:
            found.append((start, stop))
    return tuple(found)


HELLOS = st.builds(
    Hello, NAMES, WHOLES, WHOLES, WORDS, WORDS, st.tuples(WHOLES, WHOLES), st.just(b"") | HASHES,
    st.lists(WHOLES, max_size=5).map(tuple), st.lists(HASHES, max_size=3).map(tuple),
    capacity=st.integers(0, 256), working=st.just("") | NAMES, answered=ROUNDS,
    last_state=st.binary(max_size=512),
)  # fmt: skip
UPDATES = st.builds(
    Update, NAMES, ROUNDS, PHASES, WHOLES, st.just(b"") | HASHES, st.just({}),
    st.dictionaries(WORDS, NUMBERS, max_size=4),
)  # fmt: skip
MESSAGES = st.one_of(
    HELLOS,
    UPDATES,
    st.builds(Welcome, st.binary(max_size=50), instead=st.just("") | NAMES, keep=st.just("") | NAMES),
    st.builds(Task, ROUNDS, PHASES, st.none() | manifests(), NUMBERS),
    st.builds(Receipt, ROUNDS, PHASES, WORDS, WORDS),
    st.builds(Refusal, WORDS, st.integers(0, 2**63 - 1)),
    st.builds(State, st.booleans(), WORDS, runs=st.none() | st.lists(NAMES, max_size=8).map(tuple)),
    st.builds(Bye, WORDS),
    st.builds(Finished, ROUNDS),
    st.builds(BlockRequest, HASHES, ranges(), st.booleans()),
    st.builds(CommandRequest, SHORT, NAMES, st.binary(max_size=50)),
    st.builds(CommandOutcome, SHORT, NAMES, WORDS, st.binary(max_size=50)),
    st.builds(Probe),
    st.builds(StepDown, WHOLES, NAMES | st.just("é " * 32)),
    st.builds(News, ROUNDS, st.lists(WORDS, max_size=8).map(tuple), NAMES),
)
ATTACHMENTS = st.none() | st.binary(max_size=50) | manifests()

ARRAYS = st.dictionaries(
    st.one_of(
        NAMES,
        st.builds("{}.{}".format, st.sampled_from(sorted(KINDS)), NAMES),
        st.sampled_from(sorted(KINDS)),
    ),
    st.sampled_from(sorted(DTYPES)).flatmap(
        lambda name: hnp.arrays(
            np.dtype(name), hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=4)
        )
    ),
    max_size=5,
)

# Any value that msgpack can encode; a decoder must refuse it.
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats()
    | WORDS
    | st.binary(max_size=40),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(WORDS, inner, max_size=4),
    max_leaves=12,
)


@st.composite
def damaged(draw, frames: st.SearchStrategy[bytes]) -> bytes:
    """Draw a good frame and change, remove or insert a few of its bytes."""
    data = bytearray(draw(frames))
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, len(data)))
        data[at : at + draw(st.integers(0, 3))] = draw(st.binary(max_size=3))
    return bytes(data)
