"""Tests of averages over devices and over classes, against loops and pooled data."""

from __future__ import annotations

import math
import weakref
from collections.abc import Mapping

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.testing import assert_close

from protofleet.methods.contract.base import Reply
from protofleet.methods.maths.means import average_class_means, class_means, merge_class_means
from protofleet.methods.parts.averaging import weighted_mean
from tests.methods.tiny import normal

few = settings(max_examples=40, deadline=None)
LABELS = st.lists(st.integers(0, 2), min_size=1, max_size=20)


def replies(examples, dtype=torch.float32):
    return [
        Reply(f"device-{i}", n, {"w": normal(3, 5, seed=i, dtype=dtype), "steps": torch.tensor(10 + 5 * i)})
        for i, n in enumerate(examples)
    ]


def test_a_weighted_mean_weighs_each_reply_by_its_share_of_the_examples():
    examples = [5, 0, 3, 12]
    expected = sum(
        n / 20 * r.payload["w"] for n, r in zip(examples, replies(examples, torch.float64), strict=True)
    )
    assert_close(weighted_mean(replies(examples, torch.float64), ["w"])["w"], expected)


def test_a_method_may_give_its_own_weights_with_any_sum():
    sent = replies([5, 0, 3], torch.float64)
    found = weighted_mean(sent[::-1], ["w"], {"device-0": 0.5, "device-1": 1.0, "device-2": 2.5})["w"]
    assert_close(found, sum(a / 4 * r.payload["w"] for a, r in zip((0.5, 1.0, 2.5), sent, strict=True)))


@few
@given(st.lists(st.integers(0, 1000), min_size=1, max_size=6), st.randoms(use_true_random=False))
def test_the_order_of_replies_changes_no_bit_of_a_mean(examples, random):
    ordered = replies(examples)
    shuffled = random.sample(ordered, len(ordered))
    assert torch.equal(weighted_mean(shuffled, ["w"])["w"], weighted_mean(ordered, ["w"])["w"])


@few
@given(st.lists(st.integers(1, 10**6), min_size=1, max_size=9))
def test_the_mean_of_equal_models_has_the_same_bits_as_each_model(examples):
    w = normal(100, dtype=torch.float32)
    same = [Reply(f"device-{i}", n, {"w": w}) for i, n in enumerate(examples)]
    assert torch.equal(weighted_mean(same, ["w"])["w"], w)


def test_all_devices_have_the_same_weight_if_no_device_has_examples():
    found = weighted_mean(replies([0, 0]), ["w"])["w"]
    assert_close(found, (normal(3, 5, seed=0) + normal(3, 5, seed=1)).div(2).float())


def test_the_mean_takes_integer_counters_from_the_first_device():
    found = weighted_mean(list(reversed(replies([1, 9]))), ["steps", "w"])
    assert found["steps"].dtype == torch.int64 and int(found["steps"]) == 10
    assert found["w"].dtype == torch.float32


class Watched(Mapping):
    """A mapping that makes its arrays when they are read and counts how many arrays of all instances are alive."""

    alive: weakref.WeakSet
    most = 0

    def __getitem__(self, name):
        value = torch.ones(4)
        Watched.alive.add(value)
        Watched.most = max(Watched.most, len(Watched.alive))
        return value

    def __iter__(self):
        return iter(["a", "b", "c"])

    def __len__(self):
        return 3


@pytest.mark.parametrize("cohort", [2, 20])
def test_a_mean_holds_at_most_two_arrays_for_any_size_of_cohort(cohort):
    Watched.alive, Watched.most = weakref.WeakSet(), 0
    means = weighted_mean([Reply(f"device-{i}", 1, Watched()) for i in range(cohort)], list("abc"))
    assert all(means[name] is not None for name in means)
    assert 1 <= Watched.most <= 2


# Class means


@few
@given(LABELS, st.integers(1, 4))
def test_merged_class_means_of_shards_equal_those_of_the_pooled_samples(labels, parts):
    y = torch.tensor(labels)
    z = normal(len(y), 5)
    pooled, counts = class_means(z, y, 3)
    pieces = [class_means(z[i::parts], y[i::parts], 3) for i in range(parts)]
    merged, total = merge_class_means(pieces)
    assert_close(merged, pooled)
    assert torch.equal(total, counts)


@few
@given(LABELS)
def test_class_means_are_the_means_of_the_samples_of_each_class(labels):
    y = torch.tensor(labels)
    z = normal(len(y), 5)
    means, counts = class_means(z, y, 3)
    for c in set(labels):
        assert_close(means[c], z[y == c].mean(dim=0))
    assert counts.tolist() == [labels.count(c) for c in range(3)]


def test_class_means_count_a_row_as_often_as_its_count_states():
    z, y, counts = normal(3, 4), torch.tensor([1, 1, 0]), torch.tensor([3, 1, 2])
    repeated = class_means(z.repeat_interleave(counts, 0), y.repeat_interleave(counts), 3)
    means, total = class_means(z, y, 3, counts)
    assert_close(means, repeated[0])
    assert total.tolist() == [2, 4, 0]


def test_average_class_means_counts_each_device_once_for_any_number_of_samples():
    few_samples, many = (
        (normal(3, 2, seed=1), torch.tensor([1, 1, 0])),
        (normal(3, 2, seed=2), torch.tensor([99, 0, 0])),
    )
    means, holders = average_class_means([few_samples, many])
    assert_close(means[0], (few_samples[0][0] + many[0][0]) / 2)
    assert_close(means[1], few_samples[0][1])
    assert holders.tolist() == [2, 1, 0]


@pytest.mark.parametrize("merge", [merge_class_means, average_class_means])
def test_the_row_of_an_absent_class_is_never_read(merge):
    poisoned = torch.tensor([[1.0, 2.0], [math.nan, math.inf]]), torch.tensor([4, 0])
    means, counts = merge([poisoned, poisoned])
    assert means[0].tolist() == [1.0, 2.0] and means.isfinite().all()
    assert bool(counts[0]) and not bool(counts[1])
