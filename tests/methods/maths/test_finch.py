"""Tests of FINCH against a plain version in float64, against finch-clust, and on more rows than a table can hold."""

import itertools
import os
import threading
import time
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_array_equal
from torch.testing import assert_close

from protofleet.methods.maths import finch
from protofleet.methods.maths.finch import (
    by_first_member,
    finch_star,
    finch_star_in_parts,
    first_neighbours,
    levels,
    partition,
)
from tests.support.few_methods import few


def naive_neighbours(rows):
    found = []
    for i, a in enumerate(rows):
        values = []
        for j, b in enumerate(rows):
            lengths = np.linalg.norm(a) * np.linalg.norm(b)
            cosine = float(a @ b) / lengths if lengths else 0.0
            values.append((-round(cosine, 12), j) if i != j else (2.0, j))
        found.append(min(values)[1])
    return found


def naive_components(neighbours):
    label = list(range(len(neighbours)))
    while True:
        before = list(label)
        for i, j in enumerate(neighbours):
            label[i] = label[j] = min(label[i], label[j])
        if label == before:
            return label


def naive_partition(rows):
    """Cluster as the paper describes: join, average the original rows, repeat, and keep the last good level."""
    kept, means, groups = None, rows, np.arange(len(rows))
    while True:
        joined = naive_components(naive_neighbours(means))
        _, joined = np.unique(joined, return_inverse=True)
        new = joined[groups]
        count = len(set(new.tolist()))
        if kept is not None and (count == 1 or count == len(means)):
            return kept
        kept = new
        if count == 1:
            return kept
        means = np.stack([rows[new == c].mean(axis=0) for c in range(count)])
        groups = new


def same_partition(a, b):
    assert_array_equal(by_first_member(np.asarray(a)), by_first_member(np.asarray(b)))


def theirs(rows):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from finch import FINCH
    found, _, _ = FINCH(rows, ensure_early_exit=False, distance="cosine", verbose=False)
    return found[:, -1]


def drawn(seed):
    """Draw random rows of one of four kinds: clustered or not, and with or without a ReLU that makes rows similar."""
    dice = np.random.default_rng(seed)
    n, size, kind = int(dice.integers(2, 120)), int(dice.integers(2, 40)), seed % 4
    rows = dice.normal(size=(n, size))
    if kind in (1, 3):
        rows += 3 * dice.normal(size=(5, size))[dice.integers(0, 5, n)]
    if kind >= 2:
        rows = np.maximum(rows, 0) + 0.01 * dice.random((n, size))
    return rows.astype(np.float32)


@pytest.mark.parametrize("block", few(range(10), 5))
def test_300_random_inputs_are_clustered_as_by_the_plain_version_and_finch_clust(block):
    for seed in range(30 * block, 30 * block + 30):
        rows = drawn(seed)
        ours = partition(torch.from_numpy(rows)).numpy()
        same_partition(ours, theirs(rows))
        if len(rows) <= 60:
            same_partition(ours, naive_partition(rows.astype(np.float64)))


@pytest.mark.parametrize("n", [1, 2, 3])
def test_every_tiny_input_on_a_grid_is_clustered_as_by_the_plain_version(n):
    """The inputs include zeros, equal rows, opposite rows and ties."""
    corners = [np.array(p, float) for p in itertools.product((-1, 0, 1), repeat=2)]
    for points in itertools.product(corners, repeat=n):
        rows = np.stack(points)
        same_partition(partition(torch.from_numpy(rows)).numpy(), naive_partition(rows))


@pytest.mark.parametrize("fifth", range(5))
def test_four_rows_of_five_directions_are_clustered_as_by_the_plain_version(fifth):
    corners = [np.array(p, float) for p in ((0, 0), (1, 0), (0, 1), (1, 1), (-1, 0))]
    for points in itertools.product(corners, repeat=3):
        rows = np.stack([corners[fifth], *points])
        same_partition(partition(torch.from_numpy(rows)).numpy(), naive_partition(rows))


def test_one_row_is_one_cluster_and_no_row_is_no_cluster():
    assert partition(torch.ones(1, 3)).tolist() == [0] and partition(torch.ones(0, 3)).tolist() == []


def test_two_or_three_rows_are_always_one_cluster():
    for seed in range(50):
        rows = torch.randn(2 + seed % 2, 5, generator=torch.Generator().manual_seed(seed))
        assert partition(rows).unique().tolist() == [0]


@given(st.integers(0, 10**6))
@settings(max_examples=40, deadline=None)
def test_no_cluster_has_a_single_member(seed):
    rows = drawn(seed % 1000)
    counts = np.bincount(partition(torch.from_numpy(rows)).numpy())
    assert counts.min() >= 2 and len(counts) <= max(1, len(rows) // 2)


@pytest.mark.parametrize("block", [64, 100, 128, 300, 4096])
@pytest.mark.parametrize("repeated", [False, True])
def test_the_neighbours_do_not_depend_on_the_size_of_blocks_also_with_ties(block, repeated):
    dice = np.random.default_rng(5)
    rows = dice.integers(-2, 3, (700, 3)).astype(float) if repeated else dice.normal(size=(700, 20))
    rows[3] = 0
    assert first_neighbours(rows, block).tolist() == naive_neighbours_fast(rows)


def naive_neighbours_fast(rows):
    lengths = np.linalg.norm(rows, axis=1)
    units = rows / np.where(lengths > 0, lengths, 1)[:, None]
    cosines = (units @ units.T).round(12)
    np.fill_diagonal(cosines, -2)
    return cosines.argmax(axis=1).tolist()


def test_rows_that_single_precision_cannot_distinguish_get_the_right_neighbours():
    """Cosines that differ by 1e-9: their float32 images are equal or in the wrong order."""
    angles = np.cumsum(np.geomspace(2e-5, 9e-5, 40))
    rows = np.stack([np.cos(angles), np.sin(angles)], axis=1)
    expected = [1] + [i - 1 for i in range(1, 40)]  # The gaps grow, so the row before is the nearer one.
    assert first_neighbours(rows).tolist() == expected


@pytest.mark.parametrize("scale", [1e-30, 1.0, 1e30])
def test_the_neighbours_do_not_depend_on_the_lengths_of_rows(scale):
    rows = drawn(9).astype(np.float64)
    assert first_neighbours(rows * scale).tolist() == first_neighbours(rows).tolist()


def test_the_levels_end_before_all_rows_are_one_cluster():
    angles = np.deg2rad([0, 4, 10, 14, 80, 84, 92, 96])
    found = list(levels(np.stack([np.cos(angles), np.sin(angles)], axis=1)))
    assert [len(set(level.tolist())) for level in found] == [4, 2]


def test_rows_with_nan_or_infinity_are_one_cluster():
    rows = torch.tensor([[1.0, 0.0], [float("nan"), 0.0], [0.0, 1.0], [float("inf"), 1.0]])
    assert partition(rows).tolist() == [0, 0, 0, 0]


@pytest.mark.parametrize("weighted", [False, True])
def test_finch_star_averages_members_and_adds_their_weights(weighted):
    rows = torch.from_numpy(drawn(13))
    weights = torch.randint(1, 50, (len(rows),), generator=torch.Generator().manual_seed(1))
    labels = partition(rows).tolist()
    means, total = finch_star(rows, weights, weighted_centroid=weighted)
    assert len(means) == len(set(labels)) > 1 and total.dtype == weights.dtype
    for c in range(len(means)):
        members = [i for i, label in enumerate(labels) if label == c]
        share = [weights[i].item() if weighted else 1 for i in members]
        expected = sum(w * rows[i].double() for w, i in zip(share, members, strict=True)) / sum(share)
        assert_close(means[c], expected.float())
        assert total[c] == sum(weights[i].item() for i in members)


def test_finch_star_of_no_rows_returns_no_rows():
    means, weights = finch_star(torch.ones(0, 4), torch.ones(0, dtype=torch.int64))
    assert means.shape == (0, 4) and weights.shape == (0,)


def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def peak_of(work):
    """Return by how many bytes the process grows during the work, measured every 2 ms."""
    before, highest, done = resident(), 0, threading.Event()

    def watch():
        nonlocal highest
        while not done.wait(0.002):
            highest = max(highest, resident())

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        work()
    finally:
        done.set()
        watcher.join()
    return highest - before


def clustered(n, size):
    dice = np.random.default_rng(0)
    centres = np.abs(dice.normal(size=(200, size)))
    rows = np.abs(centres[dice.integers(0, 200, n)] + 0.5 * dice.normal(size=(n, size)))
    return torch.from_numpy(rows.astype(np.float32))


@pytest.mark.slow
@pytest.mark.parametrize("rows", [clustered(12_000, 32), torch.ones(6000, 8)], ids=["clustered", "all equal"])
def test_memory_grows_with_the_number_of_rows_and_not_with_its_square(rows):
    list(levels(np.eye(3)))  # This call does the imports.
    table = 4 * len(rows) ** 2  # Bytes of all distances in single precision.
    assert peak_of(lambda: partition(rows)) < table / (2 if len(rows) > 10_000 else 1)


@pytest.mark.slow
@pytest.mark.skipif(not os.environ.get("PROTOFLEET_SLOW"), reason="20 s alone; PROTOFLEET_SLOW=1 runs it")
def test_50_000_rows_take_at_most_twice_the_time_of_the_products_of_all_pairs():
    rows = clustered(50_000, 512)
    list(levels(np.eye(3)))
    began = time.monotonic()
    products_of_all_pairs(rows.numpy())
    products = time.monotonic() - began
    began = time.monotonic()
    grown = peak_of(lambda: partition(rows))
    assert grown < 1e9 and time.monotonic() - began < 2 * products


def products_of_all_pairs(rows, block=2048):
    """Compute half of the table of cosines in single precision, which every exact algorithm needs."""
    for i, j in ((i, j) for i in range(0, len(rows), block) for j in range(i, len(rows), block)):
        np.matmul(rows[i : i + block], rows[j : j + block].T)


def test_finch_star_in_parts_equals_finch_star_up_to_the_bound_and_keeps_all_weights():
    rows, weights = torch.randn(64, 5, generator=torch.Generator().manual_seed(1)), torch.arange(1, 65)
    whole = finch_star(rows, weights)
    assert all(map(torch.equal, finch_star_in_parts(rows, weights, most=64), whole))
    means, total = finch_star_in_parts(rows, weights, most=10, weighted_centroid=True)
    assert total.sum() == weights.sum() and 1 <= len(means) <= 5
    expected = (rows.double() * weights.unsqueeze(1)).sum(0)
    assert torch.allclose((means.double() * total.unsqueeze(1)).sum(0), expected, atol=1e-3)


@pytest.mark.parametrize("how", [torch.rand, torch.zeros, torch.ones])
def test_finch_star_in_parts_clusters_at_most_the_given_number_of_rows_together(how, monkeypatch):
    seen = []
    real = finch.partition
    monkeypatch.setattr(finch, "partition", lambda x: (seen.append(len(x)), real(x))[1])
    finch_star_in_parts(how(1001, 3), torch.ones(1001), most=16)
    assert max(seen) <= 16 and sum(seen) <= 2 * 1001 + 16, "the work must be linear in the number of rows"
