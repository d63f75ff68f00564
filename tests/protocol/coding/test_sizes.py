"""Tests of the formula for the largest size of a coded update: an upper bound that is close to the real size."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from protofleet.methods.contract.round_arrays import CrossingArray
from protofleet.protocol.coding.coder import encode_kind
from protofleet.protocol.coding.sizes import expected_bytes_of_kind, most_bytes_of_kind
from protofleet.protocol.settings.codec import CodecStage

STAGES = [
    CodecStage(against="broadcast"),
    CodecStage(pack=True),
    CodecStage("float16"),
    CodecStage("bfloat16", "broadcast"),
    CodecStage("int8", "broadcast", feedback=True),
    CodecStage("int4"),
    CodecStage("uint8"),
    CodecStage("uint4", pack=True),
    CodecStage("rice", "broadcast"),
    CodecStage("ternary", "broadcast", keep=4),
    CodecStage("ternary", "broadcast", keep=40),
]
NUMBERS = st.floats(-1000, 1000, width=32)
ARRAYS = st.dictionaries(
    st.sampled_from(["weights.a", "weights.b.running_var", "weights.c", "weights.steps", "weights.d"]),
    st.one_of(
        hnp.arrays(np.float32, hnp.array_shapes(max_dims=3, min_side=0, max_side=70), elements=NUMBERS),
        hnp.arrays(np.int64, hnp.array_shapes(max_dims=2)),
        hnp.arrays(np.bool_, hnp.array_shapes(max_dims=1)),
    ),
    min_size=1,
)


def expected(arrays, referred):
    return [CrossingArray(n, value.dtype.name, value.shape, referred, "train") for n, value in arrays.items()]


@settings(max_examples=150)
@given(ARRAYS, st.sampled_from(STAGES), st.booleans())
def test_no_bundle_is_larger_than_the_formula_allows(arrays, stage, referred):
    reference = {name: np.zeros_like(value) for name, value in arrays.items()} if referred else {}
    data = encode_kind(arrays, stage, reference, {}).data
    assert len(data) <= most_bytes_of_kind(expected(arrays, referred), stage)


@pytest.mark.parametrize("stage", STAGES, ids=lambda stage: f"{stage.form} {stage.keep}")
def test_the_formula_for_the_largest_size_is_close_to_the_bytes_of_a_model(stage):
    dice = np.random.default_rng(1)
    arrays = {f"weights.{i}": dice.standard_normal((64, 400)).astype(np.float32) for i in range(4)}
    reference = {name: np.zeros_like(value) for name, value in arrays.items()}
    size = len(encode_kind(arrays, stage, reference, {}).data)
    assert size <= most_bytes_of_kind(expected(arrays, True), stage) <= 2 * size + 300


@pytest.mark.parametrize("stage", STAGES, ids=lambda stage: f"{stage.form} {stage.keep}")
@pytest.mark.parametrize("referred", [True, False])
def test_the_expected_size_fits_random_numbers_or_is_none(stage, referred):
    """Rice and zlib have no formula, because their sizes depend on the numbers."""
    dice = np.random.default_rng(2)
    arrays = {f"weights.{i}": dice.standard_normal((64, 400)).astype(np.float32) for i in range(4)}
    arrays["weights.bias"] = dice.standard_normal(64).astype(np.float32)
    reference = {name: np.zeros_like(value) for name, value in arrays.items()} if referred else {}
    found = expected_bytes_of_kind(expected(arrays, referred), stage)
    size = len(encode_kind(arrays, stage, reference, {}).data)
    if stage.pack or (stage.form == "rice" and (referred or stage.against == "nothing")):
        assert found is None
    else:
        assert found == pytest.approx(size, rel=0.01)
        assert found <= most_bytes_of_kind(expected(arrays, referred), stage)
