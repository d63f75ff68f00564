"""Answers that are far too large are found, and normal answers are not."""

import math
import statistics

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from protofleet.coordinator.devices.limits import CoordinatorLimits
from protofleet.coordinator.server.outliers import outliers, sizes_of, worst
from protofleet.methods.contract.bridge import LazyPayload
from protofleet.methods.contract.wants import SLICE

SIZES = st.dictionaries(st.sampled_from("abcdefg"), st.floats(0, 1e6), max_size=7)


def sizes(**arrays):
    named = {name.replace("_", "."): np.asarray(v, np.float32) for name, v in arrays.items()}
    return sizes_of(LazyPayload(named))


def cohort(*values):
    return {name: {"weights": value} for name, value in zip("abcdefg", values)}


def test_the_size_of_an_array_is_its_norm_and_the_size_of_rows_is_the_longest_norm():
    g = np.random.default_rng(0)
    weights, rows = g.normal(size=(7, 3, 5)), g.normal(size=(9, 4))
    found = sizes(weights_w=weights, prototypes=rows, features=rows[:1])
    assert found["weights.w"] == pytest.approx(math.sqrt(sum(v * v for v in weights.astype(np.float32).flat)))
    assert found["prototypes"] == pytest.approx(max(math.hypot(*row) for row in rows.astype(np.float32)))
    assert found["features"] == pytest.approx(math.hypot(*rows[0]))


def test_labels_counts_integers_and_empty_arrays_have_no_size():
    more = {
        "weights.n": np.ones(1, np.int64),
        "counts": np.ones(3),
        "labels": np.ones(3),
        "other": np.ones(3),
    }
    assert not sizes_of(LazyPayload({**more, "prototypes": np.zeros((0, 4), np.float32)}))


def test_an_array_longer_than_a_slice_has_the_same_size():
    array = torch.randn(SLICE + 7, generator=torch.Generator().manual_seed(1)).numpy()
    rows = array[: SLICE // 3 * 3].reshape(-1, 3)
    assert sizes(weights=array)["weights"] == pytest.approx(np.linalg.norm(array.astype(np.float64)))
    assert sizes(features=rows)["features"] == pytest.approx(
        np.linalg.norm(rows.astype(np.float64), axis=1).max()
    )


def test_only_a_size_above_a_hundred_times_the_median_is_an_outlier():
    assert set(outliers(cohort(1.0, 1.0, 100.0), 100.0)) == set()
    assert set(outliers(cohort(1.0, 1.0, 101.0), 100.0)) == {"c"}


def test_two_devices_or_a_median_of_zero_give_no_outlier():
    assert not outliers(cohort(1.0, 1e6), 100.0)
    assert not outliers(cohort(0.0, 0.0, 1e6), 100.0)
    assert not outliers({**cohort(1.0, 1.0), "c": {"other": 1e6}}, 100.0)


@given(st.lists(SIZES, min_size=1, max_size=7))
def test_all_sizes_above_the_limit_are_outliers_as_long_as_a_majority_remains(answers):
    known = {f"d{i}": answer for i, answer in enumerate(answers)}
    found = outliers(known, 100.0)
    assert len(known) - len(found) > len(known) / 2
    beyond = set()
    for name in "abcdefg":
        values = {d: a[name] for d, a in known.items() if name in a}
        if len(values) >= 3 and (median := statistics.median(values.values())) > 0:
            beyond |= {d for d, v in values.items() if v > 100 * median}
    assert found.keys() == beyond or (found.keys() < beyond and len(found) == (len(known) - 1) // 2)


def test_the_worst_answer_is_the_farthest_also_if_all_answers_are_close():
    found = worst({"a": {"x": 1.0, "y": 1.0}, "b": {"x": 1.1, "y": 1.0}, "c": {"x": 1.0, "y": 1.3}})
    assert found and (found.device, found.array) == ("c", "y")
    assert worst(cohort(1.0, 5.0)) is None and worst({}) is None


@pytest.mark.parametrize("value", [1.5, -1.0, float("nan")])
def test_a_limit_that_would_put_honest_answers_aside_is_refused(value):
    with pytest.raises(ValueError, match="outlier is .*, it must be 0 .off., or at least 2 and"):
        CoordinatorLimits(outlier=value)
