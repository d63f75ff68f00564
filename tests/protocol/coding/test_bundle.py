"""Tests of bundles: the decoded arrays, the forms that a stage chooses, and the input that a reader refuses."""

import math
import struct
import zlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from protofleet.protocol.coding import forms, ternary
from protofleet.protocol.coding.bundle import Bundle, Coded, Rules, write_bundle
from protofleet.protocol.coding.coder import encode_kind, rules_of
from protofleet.protocol.coding.forms import Form
from protofleet.protocol.coding.leb import pack_one
from protofleet.protocol.coding.stages import LOSSLESS, allowed_forms
from protofleet.protocol.settings.codec import CodecStage, check_stage
from protofleet.protocol.settings.reader import SettingsError
from protofleet.protocol.wire import arrays as wire_arrays
from protofleet.protocol.wire.arrays import Body
from protofleet.protocol.wire.reasons import Reason, Rejected

ANY = Rules(frozenset(Form), 1 << 30, 1 << 30)
TERNARY = CodecStage("ternary", "broadcast", keep=4, feedback=True)
RICE = CodecStage("rice", "broadcast", feedback=True)


def body_of(arrays):
    data = b"".join(wire_arrays.encode(arrays))
    return Body(lambda start, stop: data[start:stop], len(data))


def model(seed=0, scale=1.0):
    dice = np.random.default_rng(seed)
    return {
        "weights.conv": (dice.standard_normal((64, 32)) * scale).astype(np.float32),
        "weights.fc": (dice.standard_normal((10, 200)) * scale).astype(np.float32),
        "weights.bias": (dice.standard_normal(10) * scale).astype(np.float32),
        "weights.bn.running_var": np.abs(dice.standard_normal(64)).astype(np.float32),
        "weights.bn.num_batches_tracked": np.array(seed, np.int64),
    }


def moved(arrays, seed, step=0.01):
    other = model(seed)
    return {
        name: (value + step * other[name]).astype(value.dtype) if value.dtype.kind == "f" else value + 5
        for name, value in arrays.items()
    }


def there_and_back(arrays, stage, reference=None, residual=None):
    coded = encode_kind(arrays, stage, reference or {}, residual or {}, np.random.default_rng(0))
    shown = body_of(reference or {})
    return coded, Bundle(coded.data, list(shown), rules_of(stage, shown, shown, 1 << 30), shown)


@settings(max_examples=60)
@given(
    st.dictionaries(
        st.text("abc.", min_size=1, max_size=5),
        st.sampled_from(list(wire_arrays.DTYPES)).flatmap(
            lambda dtype: hnp.arrays(np.dtype(dtype), hnp.array_shapes(min_dims=0, max_dims=3, min_side=0))
        ),
    ),
    st.booleans(),
    st.booleans(),
)
def test_a_lossless_stage_returns_every_bit(arrays, pack, referred):
    stage = CodecStage(against="broadcast", pack=pack)
    reference = {name: np.roll(value, 1) for name, value in arrays.items()} if referred else {}
    _, found = there_and_back(arrays, stage, reference)
    assert list(found) == sorted(arrays)
    for name, value in arrays.items():
        assert found[name].tobytes() == value.tobytes()
        assert found.dtype_and_shape(name) == (value.dtype.name, value.shape)


def test_unchanged_arrays_have_no_content_and_known_names_are_left_out():
    arrays = model()
    coded, found = there_and_back(arrays, LOSSLESS, arrays)
    assert len(coded.data) == 2 + 2 * len(arrays)
    assert {found.form(name) for name in found} == {Form.SAME}
    named, _ = there_and_back({"weights.conv": arrays["weights.conv"]}, LOSSLESS, arrays)
    assert b"weights.conv" in named.data, "other names than the reader expects"


def test_a_stage_that_rounds_chooses_a_form_for_each_array():
    before, after = model(), moved(model(), 1)
    _, found = there_and_back(after, TERNARY, before)
    assert {name.removeprefix("weights."): found.form(name) for name in found} == {
        "conv": Form.TERNARY,
        "fc": Form.TERNARY,
        "bias": Form.INT8,
        "bn.running_var": Form.FLOAT16,
        "bn.num_batches_tracked": Form.INTS,
    }
    _, first = there_and_back(after, TERNARY)
    assert first.form("weights.conv") == Form.FLOAT16, "a new array has no reference"
    assert (first["weights.bn.running_var"] >= 0).all()


def test_numbers_that_a_form_cannot_hold_get_another_form():
    huge = {"weights.a": np.full((2, 3), 1e38, np.float32)}
    _, found = there_and_back(huge, CodecStage("float16"))
    assert found.form("weights.a") == Form.BFLOAT16
    top = {"weights.a": np.full((2, 3), np.finfo(np.float32).max, np.float32)}
    _, found = there_and_back(top, CodecStage("float16"))
    assert found.form("weights.a") == Form.EXACT
    below = {"weights.a": -top["weights.a"]}
    _, found = there_and_back(top, CodecStage("int8", "broadcast"), below)
    assert found.form("weights.a") == Form.EXACT, "the difference is no float32"
    assert np.array_equal(found["weights.a"], top["weights.a"])


@pytest.mark.parametrize(("sign", "form"), [(1, Form.UINT4), (-1, Form.INT4)])
def test_an_unsigned_form_is_used_only_for_arrays_without_negative_numbers(sign, form):
    means = {"prototypes.a": np.abs(model()["weights.conv"]) * sign}
    _, found = there_and_back(means, CodecStage("uint4"))
    assert found.form("prototypes.a") == form


@pytest.mark.parametrize("stage", [TERNARY, RICE, CodecStage("int8", "broadcast", feedback=True)])
def test_decoded_updates_and_the_last_residual_add_up_to_all_differences(stage):
    """With feedback, a rounding error is kept as a residual and sent with a later update."""
    reference, residual = model(scale=0.1), {}
    wanted = {name: np.zeros(value.shape) for name, value in reference.items() if value.dtype == np.float32}
    decoded = {name: np.zeros(value.shape) for name, value in wanted.items()}
    for number in range(1, 21):
        after = moved(reference, number)
        coded, found = there_and_back(after, stage, reference, residual)
        residual = coded.residual
        for name in wanted:
            wanted[name] += after[name].astype(np.float64) - reference[name]
            decoded[name] += found[name].astype(np.float64) - reference[name]
    for name in set(wanted) - {"weights.bn.running_var"}:
        lost = wanted[name] - decoded[name]
        assert np.abs(residual[name] - lost).max() <= 1e-4 * np.abs(wanted[name]).max()
    assert "weights.bn.running_var" not in residual


def test_a_residual_is_sent_for_unchanged_arrays_and_dropped_if_its_shape_differs():
    arrays = model()
    other = {"weights.conv": np.ones((2, 2), np.float32)}
    assert there_and_back(arrays, RICE, arrays, other)[1].form("weights.conv") == Form.SAME
    still = {"weights.conv": np.full((64, 32), 0.5, np.float32)}
    _, found = there_and_back(arrays, RICE, arrays, still)
    assert np.allclose(found["weights.conv"], arrays["weights.conv"] + 0.5, atol=0.005)


def test_a_reader_adds_a_difference_to_its_own_reference():
    """A coordinator adds a difference to the exact arrays of its method, and not to those that devices have."""
    shown, exact, after = model(), moved(model(), 7), moved(model(), 1)
    coded = encode_kind(after, RICE, shown, {})
    rules = rules_of(RICE, [], None, 1 << 30)
    by_shown, by_exact = (Bundle(coded.data, list(shown), rules, body_of(one)) for one in (shown, exact))
    name = "weights.conv"
    assert np.allclose(by_exact[name] - exact[name], by_shown[name] - shown[name], atol=1e-6)


@pytest.mark.filterwarnings("error")
def test_a_difference_that_is_not_finite_is_decoded_to_nan():
    reference = {"weights.w": np.full((40, 30), np.inf, np.float32)}
    huge = Coded(Form.FLOAT16, (np.full(1200, -np.inf, "<f2").tobytes(),))
    data = write_bundle({"weights.w": huge}, list(reference))
    found = Bundle(data, list(reference), ANY, body_of(reference))["weights.w"]
    assert np.isnan(found).all()


def test_a_slice_is_decoded_without_the_other_records(monkeypatch):
    monkeypatch.setattr(forms, "MOST_IN_RECORD", 1000)
    shown = {"weights.conv": model()["weights.conv"]}
    after = {"weights.conv": moved(model(), 1)["weights.conv"]}
    for stage in (LOSSLESS, RICE, CodecStage("ternary", "broadcast", keep=4), CodecStage("int4")):
        coded, found = there_and_back(after, stage, shown)
        whole, decoded = found["weights.conv"].reshape(-1), []
        decode = forms.decode
        monkeypatch.setattr(forms, "decode", lambda *a, d=decode, n=decoded: n.append(1) or d(*a))
        assert np.array_equal(found.flat("weights.conv", 990, 1100), whole[990:1100])
        monkeypatch.setattr(forms, "decode", decode)
        assert len(decoded) == 2, "records of 31 rows of 32 numbers"


@pytest.mark.parametrize(
    ("kind", "stage", "words"),
    [
        ("labels", CodecStage("int8"), "labels must arrive unchanged"),
        ("weights", CodecStage("ternary", keep=4), 'needs against = "broadcast"'),
        ("weights", CodecStage("ternary", "broadcast"), "keep is 0"),
        ("weights", CodecStage("int8", keep=4), "leave keep out"),
        ("weights", CodecStage("int8", feedback=True), "feedback needs against"),
        ("weights", CodecStage("float16", "broadcast", feedback=True), "feedback needs against"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(kind, stage, words):
    with pytest.raises(SettingsError, match=words.replace("(", r"\(")):
        check_stage("codec.up.weights", kind, stage)
    check_stage("codec.up.weights", "weights", TERNARY)
    check_stage("codec.up.labels", "labels", LOSSLESS)


# -- input that a reader refuses


def refused(reason, data, known=("a",), rules=ANY, reference=None):
    with pytest.raises(Rejected) as fault:
        found = Bundle(data, known, rules, reference)
        for name in found:
            found[name]
    assert fault.value.reason is reason, str(fault.value)


ARRAY = np.arange(6, dtype=np.float32).reshape(2, 3)
SHOWN = body_of({"a": ARRAY, "whole": np.array([3, 4]), "truth": np.array([True])})


def coded(form, values=ARRAY, against=False):
    content = forms.encode(form, values)
    return Coded(form, (content,)) if against else Coded(form, (content,), values.dtype.name, values.shape)


GOOD = write_bundle({"a": coded(Form.EXACT)}, ["a"])


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\1",
        b"\2" + GOOD[1:],
        b"\1\4" + GOOD[2:],
        GOOD[:-1],
        GOOD + b"\0",
        b"\1\2" + GOOD[2:],
        b"\1\0\x0c" + GOOD[3:],
        b"\1\0\x01\x09" + GOOD[4:],
        b"\1\0\x01\x01\x09" + GOOD[5:],
        b"\1\0\x00" + GOOD[3:],
        b"\1\0\x80\0",
        b"\1\0\x01\x01\x02\x82\x00\x03\x18" + bytes(24),
        b"\1\0\x01\x01\x01" + b"\xff" * 5,
        b"\1\0\x01\x01\x02" + b"\xff\xff\xff\xff\x0f" * 2,
    ],
)
def test_a_malformed_bundle_is_refused(data):
    refused(Reason.BAD_BODY, data)


@pytest.mark.parametrize("names", [[b"b", b"a"], [b"a", b"a"], [b""], [b"\xff"], [b"a" * 201]])
def test_names_that_are_unsorted_repeated_or_not_text_are_refused(names):
    data = pack_one(len(names)) + b"".join(pack_one(len(name)) + name for name in names)
    refused(Reason.BAD_BODY, b"\1\1" + data + GOOD[2:] * len(names))


def test_a_form_that_the_plan_does_not_allow_is_refused():
    rules = Rules(allowed_forms(LOSSLESS), 1 << 20)
    refused(Reason.BAD_BODY, write_bundle({"a": coded(Form.INT8)}, ["a"]), rules=rules)
    refused(Reason.BAD_BODY, write_bundle({"a": coded(Form.PLANES)}, ["a"]), rules=rules)


def test_a_reference_that_is_missing_or_not_allowed_is_refused():
    for form in (Form.SAME, Form.INT8):
        against = write_bundle({"a": coded(form, against=True)}, ["a"])
        refused(Reason.BAD_BODY, against)
        refused(Reason.BAD_BODY, against, reference=body_of({"b": ARRAY}))
    refused(Reason.BAD_BODY, write_bundle({"a": coded(Form.EXACT, against=True)}, ["a"]), reference=SHOWN)
    kept = Coded(Form.TERNARY, (ternary.encode_ternary(ARRAY.reshape(-1), np.array([2])),), "float32", (2, 3))
    refused(Reason.BAD_BODY, write_bundle({"a": kept}, ["a"]), reference=SHOWN)
    content = write_bundle({"a": Coded(Form.SAME, (b"x",))}, ["a"])
    refused(Reason.BAD_BODY, content, reference=SHOWN)


def test_a_form_that_does_not_fit_the_dtype_is_refused():
    wrong = Coded(Form.INT8, (forms.encode(Form.INT8, ARRAY),), "float64", (2, 3))
    refused(Reason.WRONG_DTYPE, write_bundle({"a": wrong}, ["a"]))
    whole = Coded(Form.INTS, (forms.encode(Form.INTS, np.arange(6)),), "float32", (2, 3))
    refused(Reason.WRONG_DTYPE, write_bundle({"a": whole}, ["a"]))
    truth = Coded(Form.INTS, (b"\0",))
    refused(Reason.WRONG_DTYPE, write_bundle({"truth": truth}, ["truth"]), ["truth"], reference=SHOWN)
    refused(
        Reason.WRONG_DTYPE,
        write_bundle({"whole": Coded(Form.INT8, (bytes(4),))}, ["whole"]),
        ["whole"],
        reference=SHOWN,
    )


def test_kept_numbers_of_all_arrays_together_are_limited():
    values = np.ones(8, np.float32)
    kept = Coded(Form.TERNARY, (ternary.encode_ternary(values, np.arange(3)),))
    data = write_bundle({"a": kept, "b": kept}, ["a", "b"])
    shown = body_of({"a": values, "b": values})
    assert Bundle(data, ["a", "b"], Rules(frozenset(Form), 1 << 20, 6), shown)["b"].sum() == 11
    refused(Reason.BAD_BODY, data, ["a", "b"], Rules(frozenset(Form), 1 << 20, 5), shown)


def packed(raw, length=None, tail=b""):
    return b"\1\2" + struct.pack("<I", len(raw) if length is None else length) + zlib.compress(raw) + tail


def test_the_size_of_a_zlib_stream_is_checked_before_it_is_unpacked():
    rest = write_bundle({"a": Coded(Form.EXACT, (bytes(4000),), "float32", (1000,))}, ["a"])[2:]
    assert len(Bundle(packed(rest), ["a"], ANY)["a"]) == 1000
    small = Rules(frozenset(Form), len(rest) - 1)
    refused(Reason.TOO_LARGE, packed(rest), rules=small)
    refused(Reason.TOO_LARGE, b"\1\0" + rest, rules=small)
    refused(Reason.TOO_LARGE, packed(rest, 2**32 - 1), rules=small)
    for wrong in (
        packed(rest, len(rest) - 1),
        packed(rest, len(rest) + 1),
        packed(rest, tail=b"x"),
        packed(rest)[:-5],
    ):
        refused(Reason.BAD_BODY, wrong)
    refused(Reason.BAD_BODY, b"\1\2" + struct.pack("<I", 5) + b"no zlib")
    refused(Reason.BAD_BODY, packed(rest), rules=Rules(frozenset(Form), 1 << 20, packed=False))


def test_a_huge_claimed_shape_is_refused_before_memory_is_reserved():
    shape = b"".join(b"\x80\x80\x40" for _ in range(2))  # 2**20 rows of 2**20 numbers
    for form in (Form.EXACT, Form.INT8, Form.RICE, Form.INTS, Form.FLOAT16, Form.PLANES):
        data = b"\1\0" + bytes([form, 1 if form != Form.INTS else 6, 2]) + shape + b"\0"
        refused(Reason.BAD_BODY, data)


def test_packing_is_used_only_if_its_result_is_smaller():
    noise = {"a": Coded(Form.EXACT, (np.random.default_rng(0).bytes(400),), "float32", (100,))}
    zeros = {"a": Coded(Form.EXACT, (bytes(400),), "float32", (100,))}
    assert write_bundle(noise, ["a"], pack=True) == write_bundle(noise, ["a"])
    assert len(write_bundle(zeros, ["a"], pack=True)) < 40 < 400 < len(write_bundle(zeros, ["a"]))
    assert math.isclose(0, Bundle(write_bundle(zeros, ["a"], pack=True), ["a"], ANY)["a"].sum())
