"""Tests that arrays cross the wire unchanged, and that a body with a false size costs no memory."""

import struct

import msgpack
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from protofleet.protocol.wire.arrays import (
    DTYPES,
    KINDS,
    MAX_ARRAYS,
    MAX_DIMS,
    MAX_NAME,
    MAX_NUMBERS,
    Body,
    encode,
    kind_of,
    parts,
)
from protofleet.protocol.wire.reasons import Reason, Rejected
from tests.protocol.draws import ARRAYS, VALUES, damaged

MIXED = {
    "weights.w": np.arange(6, dtype=np.float32).reshape(2, 3),
    "counts": np.array([1, 2, 3], np.int64),
    "weights.b": np.array(0.5, np.float16),
    "seen": np.array([True, False]),
}


def whole(arrays):
    return b"".join(encode(arrays))


def opened(body):
    return Body(lambda start, stop: body[start:stop], len(body))


def with_table(table, raw=b""):
    packed = table if isinstance(table, bytes) else msgpack.packb(table)
    return struct.pack("<I", len(packed)) + packed + raw


def refused(body):
    """Return why a body is refused, or None if all of it can be read; any error except Rejected is a bug of ours."""
    try:
        found = opened(body)
        for name in found:
            assert found[name].nbytes <= len(body)
    except Rejected as fault:
        assert len(str(fault)) < 600
        return fault.reason
    return None


def assert_bits_equal(one, other):
    assert set(one) == set(other)
    for name in one:
        assert one[name].shape == other[name].shape and one[name].dtype.name == other[name].dtype.name
        little = other[name].astype(DTYPES[other[name].dtype.name])
        assert one[name].tobytes() == little.tobytes(), name


@given(ARRAYS)
def test_arrays_are_decoded_to_the_same_bits(arrays):
    assert_bits_equal(opened(whole(arrays)), arrays)


@pytest.mark.parametrize("dtype", sorted(DTYPES))
@pytest.mark.parametrize("shape", [(), (0,), (3, 0, 2), (1,), (2, 3), (1,) * MAX_DIMS])
def test_each_type_and_shape_is_decoded_unchanged(dtype, shape):
    arrays = {"weights.w": np.ones(shape, dtype)}
    assert_bits_equal(opened(whole(arrays)), arrays)


def test_the_bytes_are_little_endian_and_in_rows_for_any_memory_layout():
    plain = np.arange(12, dtype="<f4").reshape(3, 4)
    for same in (plain.astype(">f4"), np.asfortranarray(plain), np.repeat(plain, 2, axis=1)[:, ::2]):
        assert whole({"w": same}) == whole({"w": plain})
    assert whole({"w": plain}).endswith(struct.pack("<12f", *range(12)))


def test_arrays_of_one_kind_are_adjacent_and_each_byte_has_a_kind():
    body, sizes = whole(MIXED), parts(MIXED)
    table = len(body) - sum(a.nbytes for a in MIXED.values())
    assert sizes == (("control", table), ("control", 2), ("counts", 24), ("weights", 26))
    assert opened(body).parts == (("control", table), ("control", 2), ("counts", 24), ("weights", 26))
    assert list(opened(body)) == ["seen", "counts", "weights.b", "weights.w"]


@given(ARRAYS)
def test_kinds_add_up_to_the_size_of_the_body(arrays):
    body, naive = whole(arrays), {}
    for name, value in arrays.items():
        naive[kind_of(name)] = naive.get(kind_of(name), 0) + value.nbytes
    assert opened(body).kinds == naive
    assert opened(body).parts == parts(arrays)
    assert sum(n for _, n in parts(arrays)) == len(body)


@pytest.mark.parametrize("name", sorted(KINDS))
def test_the_kind_is_the_first_part_of_the_name(name):
    assert kind_of(name) == kind_of(f"{name}.x.y") == name
    assert kind_of(f"{name}s_") == kind_of(f"x.{name}") == kind_of("") == "control"


def test_one_array_is_read_without_the_bytes_of_other_arrays():
    body, spans = whole(MIXED), []
    lazy = Body(lambda start, stop: spans.append((start, stop)) or body[start:stop], len(body))
    assert lazy.kinds and lazy.parts and len(lazy) == 4 and "counts" in lazy and "other" not in lazy
    table = (0, 4), (4, len(body) - 52)
    assert tuple(spans) == table
    np.testing.assert_array_equal(lazy["counts"], [1, 2, 3])
    np.testing.assert_array_equal(lazy.flat("weights.w", 2, 5), [2, 3, 4])
    at = len(body) - 50
    assert tuple(spans[2:]) == ((at, at + 24), (at + 26 + 8, at + 26 + 20))


def test_each_byte_of_a_bool_array_other_than_zero_is_read_as_one():
    body = whole({"seen": np.array([True, True, False])})[:-3] + b"\x02\xff\x00"
    assert opened(body)["seen"].tobytes() == opened(body).flat("seen", 0, 3).tobytes() == b"\x01\x01\x00"


HUGE = [
    [["w", "float32", [1 << 39]]],
    [["w", "float64", [1 << 40] * 8]],
    [["w", "float32", [0, 1 << 39, 1 << 39]]],
    [["w", "int8", [0, 1 << 40, 2]]],
    [["w", "int8", [MAX_NUMBERS + 1]]],
    [["w", "int8", [1]]] * 3,
    [[f"w{i}", "int8", [0]] for i in range(MAX_ARRAYS + 1)],
]


@pytest.mark.parametrize("raw", [b"", b"x"])
@pytest.mark.parametrize("table", HUGE, ids=range(len(HUGE)))
def test_the_sizes_in_a_table_are_checked_before_memory_is_reserved(table, raw, little_memory):
    assert refused(with_table(table, raw)) is Reason.BAD_BODY


def test_the_largest_empty_shape_is_accepted():
    assert opened(with_table([["w", "float64", [0, MAX_NUMBERS]]]))["w"].shape == (0, MAX_NUMBERS)


def test_a_body_that_is_cut_or_extended_anywhere_is_refused():
    body = whole(MIXED)
    assert refused(body) is None
    for n in range(len(body)):
        assert refused(body[:n]) is Reason.BAD_BODY, n
    for more in (b"\0", body):
        assert refused(body + more) is Reason.BAD_BODY


GOOD = ["w", "int8", [1]]
HOSTILE = [
    [], {}, "w", 7, None, [[]], [GOOD, GOOD], [GOOD + [1]], [GOOD[:2]], [["w", "int8", 1]], [["w", "int8", "1"]],
    [["w", "int8", [True]]], [["w", "int8", [-1]]], [["w", "int8", [1.0]]], [["w", "int8", [None]]],
    [["w", "int8", [1] * (MAX_DIMS + 1)]], [["w", "object", [1]]], [["w", "O", [1]]], [["w", ">f4", [1]]],
    [["w", "complex64", [1]]], [["w", "str", [1]]], [["w", "uint64", [1]]], [["", "int8", [1]]],
    [[b"w", "int8", [1]]], [[1, "int8", [1]]], [["w", b"int8", [1]]], [["w" * (MAX_NAME + 1), "int8", [1]]],
    [{"w": 1}], [["w", "int8", [[1]]]],
    b"", b"\xc1", b"\x90\x90", b"\xdd\xff\xff\xff\xff", b"\x91" * 100, b"\x91" * 1000 + b"\x90", b"\x91" * 5000,
    b"\x91\xc4\x01x", b"\x91\xd6\xff\0\0\0\0", b"\x91\x93\xa1\xff\xa4int8\x91\x01",
]  # fmt: skip


@pytest.mark.parametrize("table", HOSTILE, ids=range(len(HOSTILE)))
def test_a_malformed_table_is_refused(table, little_memory):
    assert refused(with_table(table, b"x")) is Reason.BAD_BODY


@pytest.mark.parametrize("length", [0, 1 << 20, 0xFFFFFFFF])
def test_a_false_length_of_the_table_is_refused(length):
    assert refused(struct.pack("<I", length) + b"\x90" * 3) is Reason.BAD_BODY


def test_the_longest_name_and_the_largest_number_of_arrays_are_accepted():
    arrays = {"w" * MAX_NAME: np.ones(1), **{f"a{i}": np.ones(0) for i in range(MAX_ARRAYS - 1)}}
    assert len(opened(whole(arrays))) == MAX_ARRAYS


@pytest.mark.parametrize(
    ("arrays", "words"),
    [
        ({"w": np.ones(1, np.complex64)}, "w is complex64; the type must be one of float16"),
        ({"w": np.array([object()])}, "w is object; the type must be one of float16"),
        ({"": np.ones(1)}, "array '' .* 1 to 200 bytes"),
        ({"é" * 101: np.ones(1)}, "1 to 200 bytes"),
        ({"w": np.ones((1,) * 9)}, "at most 8 dimensions"),
        ({f"a{i}": np.ones(0) for i in range(MAX_ARRAYS + 1)}, "16385 arrays; a body may have at most 16384"),
        ({f"{i:0200}": np.ones(0) for i in range(6000)}, "its table at most 1048576 bytes"),
    ],
)
def test_arrays_that_no_reader_accepts_are_not_written(arrays, words):
    with pytest.raises((TypeError, ValueError), match=words):
        whole(arrays)


BODIES = ARRAYS.map(whole)


@given(st.binary(max_size=300) | BODIES.flatmap(lambda body: damaged(st.just(body))))
def test_random_bytes_cause_no_error_other_than_a_refusal(body):
    refused(body)


@given(st.lists(st.lists(VALUES, max_size=4), max_size=3), st.binary(max_size=20))
def test_random_tables_cause_no_error_other_than_a_refusal(table, raw):
    refused(with_table(table, raw))
