"""Tests of objects in blocks: each cut gives the same bytes, and each byte has exactly one kind."""

import hashlib
import struct
from collections import Counter
from dataclasses import replace

import pytest
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from hypothesis import given
from hypothesis import strategies as st

from protofleet.protocol.wire.blocks import (
    DEFAULT_BLOCK,
    OVERHEAD,
    block_size,
    chunked,
    decrypted,
    is_block,
    length_of,
    manifest_of,
    pack,
    unpack,
)
from protofleet.protocol.wire.codec import MAX_BLOCKS
from protofleet.protocol.wire.layout import Layout
from protofleet.protocol.wire.messages import Manifest
from protofleet.protocol.wire.reasons import Reason, Rejected
from tests.protocol.draws import damaged, manifests

NAME = bytes(range(32))
PLAIN = Manifest(NAME, 4, 4, (), ())
SEALED = replace(PLAIN, key=bytes(32))
PIECES = st.lists(st.binary(max_size=50), max_size=8)


@given(PIECES, st.integers(1, 40))
def test_pieces_are_cut_into_blocks_of_exact_size_with_the_same_bytes(pieces, block):
    whole = b"".join(pieces)
    cut = [bytes(piece) for piece in chunked(pieces, block)]
    assert cut == [whole[i : i + block] for i in range(0, len(whole), block)]


def test_whole_blocks_are_not_copied():
    data = bytes(100)
    pieces = list(chunked([memoryview(data)], 30))
    assert [isinstance(p, memoryview) and p.obj is data for p in pieces] == [True, True, True, False]


@given(PIECES.filter(any), st.integers(1, 40))
def test_a_manifest_has_the_hash_of_the_object_and_of_each_block(pieces, block):
    whole = b"".join(pieces)
    made = manifest_of(pieces, (("weights", len(whole)),), block)
    assert made.object == hashlib.sha256(whole).digest()
    assert (made.size, made.block, made.parts) == (len(whole), block, (("weights", len(whole)),))
    blocks = [whole[i : i + block] for i in range(0, len(whole), block)]
    assert list(made.hashes) == [hashlib.sha256(b).digest()[:16] for b in blocks]
    assert [length_of(made, i) for i in range(len(blocks))] == [len(b) for b in blocks]


@given(manifests(), st.lists(st.integers(0, 6 << 20), max_size=5))
def test_kinds_of_consecutive_spans_add_up_to_the_kinds_of_the_object(manifest, cuts):
    total = Counter()
    for kind, size in manifest.parts:
        total[kind] += size
    marks = sorted({0, manifest.size, *(c for c in cuts if c < manifest.size)})
    found = Counter()
    layout = Layout(manifest.parts)
    for start, stop in zip(marks, marks[1:]):
        span = layout.within(start, stop)
        assert sum(span.values()) == stop - start and all(span.values())
        found.update(span)
    assert found == +total


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 5)), min_size=1, max_size=5), st.data())
def test_each_byte_has_the_kind_of_its_part(parts, data):
    labels = "".join(kind * size for kind, size in parts)
    if not labels:
        return
    start = data.draw(st.integers(0, len(labels)))
    stop = data.draw(st.integers(start, len(labels)))
    assert Layout(parts).within(start, stop) == dict(Counter(labels[start:stop]))


@given(st.integers(1, 1 << 40), st.sampled_from([1024, DEFAULT_BLOCK]))
def test_the_block_size_is_the_smallest_that_keeps_the_manifest_short(size, default):
    block = block_size(size, default)
    assert -(-size // block) <= MAX_BLOCKS
    assert block == default or -(-size // (block // 2)) > MAX_BLOCKS
    assert block % default == 0


def test_the_block_size_doubles_just_above_the_limit():
    assert block_size(DEFAULT_BLOCK * MAX_BLOCKS) == DEFAULT_BLOCK
    assert block_size(DEFAULT_BLOCK * MAX_BLOCKS + 1) == 2 * DEFAULT_BLOCK


@given(st.integers(0, 2**32 - 1), st.binary(min_size=1, max_size=50))
def test_a_packed_block_frame_is_unpacked_unchanged(index, data):
    frame = pack(PLAIN, index, data)
    assert frame == b"PF\x02" + NAME[:16] + struct.pack("<I", index) + data
    assert is_block(frame) and len(frame) == OVERHEAD + len(data)
    assert unpack(frame) == (NAME[:16], index, data)
    assert decrypted(PLAIN, index, unpack(frame)[2]) == data


@given(st.integers(0, 2**32 - 1), st.binary(min_size=1, max_size=50))
def test_a_sealed_block_hides_its_bytes_and_the_name_of_its_object(index, data):
    frame = pack(SEALED, index, data)
    name = hashlib.sha256(b"protofleet/1 object\0" + SEALED.key + NAME).digest()
    assert SEALED.wire_name == name and PLAIN.wire_name == NAME
    head = b"PF\x02" + name[:16] + struct.pack("<I", index)
    sealed = AESGCM(SEALED.key).encrypt(index.to_bytes(12, "little"), data, head)
    assert frame == head + sealed and len(frame) == OVERHEAD + len(data) + 16
    assert decrypted(SEALED, index, unpack(frame)[2]) == data


def test_a_changed_or_moved_sealed_block_is_refused():
    frame = pack(SEALED, 7, b"data")

    def opens(manifest, index, data):
        try:
            decrypted(manifest, index, data)
        except Rejected as fault:
            assert fault.reason is Reason.BAD_BLOCK
            return False
        return True

    data = unpack(frame)[2]
    assert opens(SEALED, 7, data)
    for bit in range(8 * len(data)):
        changed = bytearray(data)
        changed[bit // 8] ^= 1 << bit % 8
        assert not opens(SEALED, 7, memoryview(changed))
    assert not opens(SEALED, 8, data)
    assert not opens(replace(SEALED, key=bytes(31) + b"1"), 7, data)
    assert not opens(replace(SEALED, object=bytes(32)), 7, data)
    assert not any(opens(SEALED, 7, data[:n]) for n in range(len(data)))


@pytest.mark.parametrize(
    "frame", [b"", b"PF\x02", pack(PLAIN, 1, b""), b"PF\x01" + bytes(30), b"PF\x03" + bytes(30)]
)
def test_a_frame_that_is_no_block_is_malformed(frame):
    with pytest.raises(Rejected) as fault:
        unpack(frame)
    assert fault.value.reason is Reason.MALFORMED


@given(st.binary(max_size=60) | damaged(st.just(pack(PLAIN, 7, b"data"))))
def test_random_bytes_cause_no_error_other_than_malformed(frame):
    try:
        unpack(frame)
    except Rejected as fault:
        assert fault.reason is Reason.MALFORMED
