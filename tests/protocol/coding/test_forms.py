"""Tests of each form of an array: golden bytes, errors of numbers, sizes, and input that a reader refuses."""

import json
import math
import struct
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from protofleet.protocol.coding import bits, floats, forms, leb, rows, ternary
from protofleet.protocol.coding.forms import Form
from protofleet.protocol.wire.reasons import Reason, Rejected

GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "coding_1.json").read_text())
X, R = (np.array(GOLDEN[name], np.float32) for name in "xr")
FINITE = st.floats(-(2.0**100), 2.0**100, width=32)
SHAPES = hnp.array_shapes(min_dims=1, max_dims=3, min_side=0, max_side=9)
ARRAYS = hnp.arrays(np.float32, SHAPES, elements=FINITE)
ROW_FORMS = (Form.INT8, Form.INT4, Form.UINT8, Form.UINT4, Form.RICE)


def vector(name):
    return bytes.fromhex(GOLDEN[name]["bytes"]), np.array(GOLDEN[name]["decoded"], np.float32)


# -- golden bytes


@pytest.mark.parametrize(("form", "name"), [(Form.INT8, "int8"), (Form.INT4, "int4")])
def test_rows_have_the_golden_bytes_and_numbers(form, name):
    data, decoded = vector(f"{name} rows of 10, nearest")
    assert forms.encode(form, X.reshape(4, 10)) == data
    assert np.array_equal(forms.decode(form, data, (4, 10), "float32").reshape(-1), decoded)


@pytest.mark.parametrize("kept", [1, 4, 10])
def test_a_ternary_array_has_the_golden_bytes_and_numbers(kept):
    data, decoded = vector(f"ternary of x - r, k {kept}")
    (positions,) = ternary.largest([X - R], kept)
    assert ternary.encode_ternary(X - R, positions) == data
    assert np.array_equal(R + ternary.decode_ternary(data, 40, kept), decoded)


def test_whole_numbers_and_bfloat16_have_the_golden_bytes():
    ints = np.array([0, 1, -1, 63, 64, 300, -(1 << 40)])
    assert leb.pack_ints(ints).hex() == GOLDEN["ints 0 1 -1 63 64 300 -2^40"]
    some = np.array([1, 1.00390625, 3.14159274, 65535.0, 1e-40, -0.0], np.float32)
    nearest = GOLDEN["bfloat16 nearest even of 1 1.00390625 3.14159274 65535 1e-40 -0"]
    assert [f"{v:04x}" for v in floats.bfloat16_of(some)] == nearest
    above = floats.bfloat16_not_below(np.array([1, 1.0001, 3.14159274, 1e-40], np.float32))
    assert [f"{v:04x}" for v in above] == GOLDEN["bfloat16 not below, of 1 1.0001 3.14159274 1e-40"]


# -- errors of numbers and sizes


@settings(max_examples=300)
@given(ARRAYS, st.sampled_from(ROW_FORMS), st.sampled_from([None, 1]))
@example(np.zeros((3, 0), np.float32), Form.INT4, None)
@example(np.array([[1e-45, 0, -1e-45]], np.float32), Form.INT8, None)
@example(np.array([[1e30, 1, 1e-30]], np.float32), Form.RICE, None)
@example(np.array([1.78e-43], np.float32), Form.UINT8, None)
def test_the_error_of_a_number_is_bounded_by_the_scale_of_its_row(values, form, seed):
    values = np.abs(values) if form in (Form.UINT8, Form.UINT4) else values
    chance = None if seed is None else np.random.default_rng(seed)
    data = forms.encode(form, values, chance)
    decoded = forms.decode(form, data, values.shape, "float32")
    count, _ = rows.rows_of(values.shape)
    scales = floats.from_bfloat16(np.frombuffer(data, "<u2", count)).astype(np.float64)[:, None]
    off = np.abs(decoded.astype(np.float64) - values).reshape(rows.rows_of(values.shape))
    # A row whose numbers are all below 1.8e-43 may have the scale 0, because the quotient by 255 is no float32.
    assert (off <= np.maximum(scales * ((0.5 if chance is None else 1) + 1e-6), 1.8e-43)).all()
    assert decoded.dtype == np.float32 and decoded.shape == values.shape


@settings(max_examples=200)
@given(ARRAYS)
def test_sizes_of_rows_follow_from_the_shape(values):
    for form, grid in forms.GRIDS.items():
        assert len(forms.encode(form, np.abs(values))) == rows.size_of_rows(values.shape, grid)
    assert len(forms.encode(Form.RICE, values)) <= rows.most_rice_bytes(values.shape)


@pytest.mark.parametrize("form", ROW_FORMS)
def test_stochastic_rounding_keeps_the_mean(form):
    """The mean of 4,000 draws is within four standard errors of the number."""
    values = np.full((4000, 3), (1.0, 0.2137, 0.6), np.float32)
    data = forms.encode(form, values, np.random.default_rng(3))
    found = forms.decode(form, data, values.shape, "float32").astype(np.float64)
    step = float(floats.from_bfloat16(np.frombuffer(data, "<u2", 1))[0])
    assert (np.abs(found.mean(0) - values[0]) <= 4 * step / 2 / math.sqrt(4000)).all()


@given(hnp.arrays(np.float32, SHAPES, elements=st.floats(-60000, 60000, width=32)))
def test_the_error_of_16_bit_forms_is_at_most_their_last_bit(values):
    for form, share, least in ((Form.FLOAT16, 2**-11, 2**-25), (Form.BFLOAT16, 2**-8, 1e-38)):
        data = forms.encode(form, values)
        found = forms.decode(form, data, values.shape, "float32")
        off = np.abs(found.astype(np.float64) - values)
        assert len(data) == 2 * values.size and (off <= np.maximum(share * np.abs(values), least)).all()


@given(st.sampled_from(["int8", "int16", "int32", "int64", "uint8", "bool"]), st.data())
def test_whole_numbers_are_decoded_unchanged(dtype, data):
    values = data.draw(hnp.arrays(np.dtype(dtype), SHAPES))
    coded = forms.encode(Form.INTS, values)
    assert np.array_equal(forms.decode(Form.INTS, coded, values.shape, dtype), values)


@given(st.sampled_from(["float16", "float32", "float64", "int64", "uint8", "bool"]), st.data())
def test_exact_forms_return_the_same_bytes(dtype, data):
    values = data.draw(hnp.arrays(np.dtype(dtype), SHAPES))
    for form in (Form.EXACT, Form.PLANES):
        found = forms.decode(form, forms.encode(form, values), values.shape, dtype)
        assert found.tobytes() == values.tobytes() and found.dtype == values.dtype


# -- ternary


def most_ternary_bytes(count, numbers):
    """Return the largest number of bytes for `count` kept numbers, if the sender chooses the width by `width_for`."""
    if not count:
        return ternary.HEAD.size
    width = ternary.width_for(count, numbers)
    unary = count + (numbers - count >> width)
    return ternary.HEAD.size + bits.bytes_of(unary) + bits.bytes_of(count * width) + bits.bytes_of(count)


def slow_ternary(data, numbers):
    """Read a ternary array bit by bit, as a reader without NumPy would."""
    count, size, width = struct.unpack("<IfB", data[:9])
    stream = [byte >> place & 1 for byte in data[9:] for place in range(8)]
    gaps, at = [], 0
    for _ in range(count):
        start = at
        while not stream[at]:
            at += 1
        gaps.append(at - start)
        at += 1
    at = -(-at // 8) * 8
    for place in range(count):
        gaps[place] = (gaps[place] << width) + sum(stream[at + bit] << bit for bit in range(width))
        at += width
    at = -(-at // 8) * 8
    found, position = [0.0] * numbers, -1
    for place, gap in enumerate(gaps):
        position += gap + 1
        found[position] = size if stream[at + place] else -size
    return np.array(found, np.float32)


@settings(max_examples=300)
@given(hnp.arrays(np.float32, st.integers(1, 300), elements=FINITE), st.integers(1, 300))
@example(np.ones(17, np.float32), 17)
@example(np.zeros(5, np.float32), 2)
def test_a_ternary_array_keeps_the_largest_numbers_and_a_simple_reader_agrees(values, count):
    (positions,) = ternary.largest([values], count)
    order = sorted((i for i in range(len(values)) if values[i]), key=lambda i: (-abs(values[i]), i))
    assert sorted(order[:count]) == positions.tolist()
    data = ternary.encode_ternary(values, positions)
    assert len(data) <= most_ternary_bytes(len(positions), len(values))
    found = ternary.decode_ternary(data, len(values), len(values))
    assert np.array_equal(found, slow_ternary(data, len(values)))
    assert np.array_equal(np.sign(found[positions]), np.sign(values[positions]))
    assert np.count_nonzero(found) == len(positions)


def test_the_largest_numbers_are_chosen_over_all_arrays_together():
    loud, quiet = np.array([5, -4, 3], np.float32), np.array([1, 3, 0], np.float32)
    assert [found.tolist() for found in ternary.largest([loud, quiet], 3)] == [[0, 1, 2], []]
    assert [found.tolist() for found in ternary.largest([quiet, loud], 3)] == [[1], [0, 1]], (
        "the first of equals"
    )
    assert [found.tolist() for found in ternary.largest([loud, quiet], 99)] == [[0, 1, 2], [0, 1]], "no zeros"
    assert ternary.largest([], 3) == []


# -- input that a reader refuses


def refused(reason, form, data, shape, dtype="float32", most=1 << 20):
    with pytest.raises(Rejected) as fault:
        forms.decode(form, data, shape, dtype, most)
    assert fault.value.reason is reason, str(fault.value)


def test_rows_with_a_wrong_size_scale_or_code_are_refused():
    good = {form: bytearray(forms.encode(form, np.abs(X).reshape(4, 10))) for form in ROW_FORMS}
    for form, data in good.items():
        for wrong in (data[:-1], data + b"\0", b""):
            refused(Reason.BAD_BODY, form, bytes(wrong), (4, 10))
        for scale, reason in (
            ("807f", Reason.NOT_FINITE),
            ("c07f", Reason.NOT_FINITE),
            ("01bc", Reason.BAD_BODY),
        ):
            refused(reason, form, bytes.fromhex(scale) + bytes(data[2:]), (4, 10))
    refused(Reason.BAD_BODY, Form.INT8, bytes(good[Form.INT8][:-1]) + b"\x80", (4, 10))
    refused(Reason.BAD_BODY, Form.INT4, bytes(good[Form.INT4][:-1]) + b"\xf0", (4, 10))
    odd = forms.encode(Form.UINT4, np.ones((1, 3), np.float32))
    refused(Reason.BAD_BODY, Form.UINT4, odd[:-1] + bytes([odd[-1] | 0x10]), (1, 3))


def test_rice_codes_above_the_limit_and_streams_of_a_wrong_length_are_refused():
    scale = floats.bfloat16_of(np.ones(1, np.float32)).tobytes()

    def coded(width, *codes):
        return scale + bytes([width]) + bits.pack_rice(np.array(codes), width)

    assert forms.decode(Form.RICE, coded(2, 14, 13), (2,), "float32").tolist() == [7, -7]
    refused(Reason.BAD_BODY, Form.RICE, coded(2, 15, 0), (2,))
    refused(Reason.BAD_BODY, Form.RICE, coded(2, 1, 2, 3), (2,))
    refused(Reason.BAD_BODY, Form.RICE, coded(2, 1), (2,))
    refused(Reason.BAD_BODY, Form.RICE, scale + bytes([25]) + b"\0" * 7, (2,))
    late = bytearray(coded(1, 1, 1))
    late[3] |= 0x80  # a third number in the unary stream
    refused(Reason.BAD_BODY, Form.RICE, bytes(late), (2,))


def ternary_bytes(count, size, width, gaps, signs):
    values = np.array(gaps, np.int64)
    return (
        struct.pack("<IfB", count, size, width)
        + bits.pack_rice(values, width)
        + bits.pack_bits(np.array(signs))
    )


ONE = np.array([1], np.uint8)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", Reason.BAD_BODY),
        (ternary_bytes(1, 1, 1, [40], ONE), Reason.BAD_BODY),
        (ternary_bytes(2, 1, 1, [1], ONE), Reason.BAD_BODY),
        (ternary_bytes(1, 1, 1, [1, 2], ONE), Reason.BAD_BODY),
        (ternary_bytes(1, 0, 1, [1], ONE), Reason.BAD_BODY),
        (ternary_bytes(1, -0.0, 1, [1], ONE), Reason.BAD_BODY),
        (ternary_bytes(1, -1, 1, [1], ONE), Reason.BAD_BODY),
        (ternary_bytes(1, math.inf, 1, [1], ONE), Reason.NOT_FINITE),
        (ternary_bytes(1, math.nan, 1, [1], ONE), Reason.NOT_FINITE),
        (ternary_bytes(1, 1, 25, [1], ONE), Reason.BAD_BODY),
        (ternary_bytes(1, 1, 1, [1], np.array([3], np.uint8)) + b"\0", Reason.BAD_BODY),
        (struct.pack("<IfB", 0, 0, 0) + b"\0", Reason.BAD_BODY),
        (struct.pack("<IfB", 0, 1, 0), Reason.BAD_BODY),
        (struct.pack("<IfB", 41, 1, 0) + bytes(12), Reason.BAD_BODY),
        (struct.pack("<IfB", 2**32 - 1, 1, 0), Reason.BAD_BODY),
        (ternary_bytes(1, 1, 1, [1], ONE)[:-1] + b"\x02", Reason.BAD_BODY),
    ],
)
def test_a_malformed_ternary_array_is_refused(data, reason):
    refused(reason, Form.TERNARY, data, (40,))


def test_more_kept_numbers_than_the_plan_allows_are_refused():
    data, _ = vector("ternary of x - r, k 10")
    refused(Reason.BAD_BODY, Form.TERNARY, data, (40,), most=9)


@pytest.mark.parametrize(
    ("data", "count", "dtype"),
    [
        (b"", 1, "int64"),
        (b"\x01\x01", 1, "int64"),
        (b"\x80", 1, "int64"),
        (b"\x80\x00", 1, "int64"),
        (b"\xff" * 10 + b"\x01", 1, "int64"),
        (b"\xff" * 9 + b"\x02", 1, "int64"),
        (leb.pack_ints(np.array([128])), 1, "int8"),
        (leb.pack_ints(np.array([-1])), 1, "uint8"),
        (leb.pack_ints(np.array([2])), 1, "bool"),
        (b"\x80" * (2 * leb.CHUNK) + b"\x01", 1, "int64"),
    ],
)
def test_malformed_whole_numbers_are_refused(data, count, dtype):
    refused(Reason.BAD_BODY, Form.INTS, data, (count,), dtype)


def test_exact_bytes_of_a_wrong_length_and_bools_above_one_are_refused():
    refused(Reason.BAD_BODY, Form.EXACT, bytes(7), (2,))
    refused(Reason.BAD_BODY, Form.PLANES, bytes(7), (2,))
    refused(Reason.BAD_BODY, Form.FLOAT16, bytes(5), (2,))
    refused(Reason.BAD_BODY, Form.EXACT, b"\2", (1,), "bool")


@pytest.mark.parametrize(
    "shape", [(3,), (0, 4), (1 << 21,), (3, 1 << 20), (2, (1 << 20) + 1), (1 << 12, 1 << 10, 1)]
)
def test_records_cover_an_array_in_order_and_end_at_rows(shape):
    found = list(forms.pieces(shape))
    assert [p.start for p in found[1:]] == [p.stop for p in found[:-1]]
    assert found[0].start == 0 and found[-1].stop == math.prod(shape)
    assert all(math.prod(p.shape) == p.stop - p.start <= forms.MOST_IN_RECORD for p in found)
    _, length = rows.rows_of(shape)
    for piece in found:
        inside = piece.start // length == (piece.stop - 1) // length if length else True
        assert inside or (piece.start % length == 0 and piece.stop % length == 0)


# -- long arrays, which are read in pieces

LONG = (512, 512)


def long_record(form):
    """Return the values of a long array, its dtype and its content."""
    values = np.random.default_rng(0).standard_normal(LONG).astype(np.float32)
    if form is Form.TERNARY:
        return values, "float32", forms.encode_ternary(values, np.arange(values.size))
    if form is Form.INTS:
        whole = (values * 40).astype(np.int8)
        return whole, "int8", forms.encode(form, whole)
    values = np.abs(values) if form in (Form.UINT8, Form.UINT4) else values
    return values, "float32", forms.encode(form, values)


@pytest.mark.parametrize("form", [form for form in Form if form is not Form.SAME])
def test_a_reader_needs_at_most_four_times_the_memory_of_a_record_and_its_numbers(form):
    values, dtype, data = long_record(form)
    tracemalloc.start()
    found = forms.decode(form, data, LONG, dtype, values.size)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 4 * (len(data) + found.nbytes), f"{peak / (len(data) + found.nbytes):.1f} times"


def test_a_long_array_decodes_to_the_same_numbers_from_rice_and_from_int4():
    values, _, data = long_record(Form.RICE)
    fixed = forms.decode(Form.INT4, forms.encode(Form.INT4, values), LONG, "float32")
    assert np.array_equal(forms.decode(Form.RICE, data, LONG, "float32"), fixed)


def test_a_long_ternary_array_keeps_the_sign_of_each_number():
    values, _, data = long_record(Form.TERNARY)
    found = forms.decode(Form.TERNARY, data, LONG, "float32", values.size)
    assert np.array_equal(np.sign(found), np.sign(values)) and len(np.unique(np.abs(found))) == 1


@pytest.mark.parametrize("dtype", ["int64", "int32", "int16"])
def test_a_long_array_of_whole_numbers_is_decoded_from_pieces_that_split_a_number(dtype):
    info = np.iinfo(dtype)
    values = np.random.default_rng(0).integers(info.min, info.max, LONG, dtype, endpoint=True)
    data = forms.encode(Form.INTS, values)
    assert len(data) > 10 * leb.CHUNK
    found = forms.decode(Form.INTS, data, LONG, dtype)
    assert found.dtype == values.dtype and np.array_equal(found, values)
