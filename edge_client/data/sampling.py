"""Random choices of samples, which depend only on a seed and on the labels of the samples."""

from __future__ import annotations

import numpy as np

from protofleet.edge_client.data.domain import Indices, Labels
from protofleet.edge_client.data.stable_random import StableRandom


def balanced(labels: Labels, k: int, rng: StableRandom) -> Indices:
    """Choose k samples, with the same number of each class if the classes have enough samples."""
    order, rank, _ = _ranked(labels, rng)
    return order[np.argsort(rank, kind="stable")[:k]]


def stratified(labels: Labels, k: int, rng: StableRandom) -> Indices:
    """Choose k samples so that the fraction of each class is about the same as among all samples.

    This is Webster's method. The samples that are chosen for k are also chosen for every larger k, which would not be
    true with the method of largest remainders. But with many classes of one or two samples, a large class may get
    two or more samples too many or too few.
    """
    order, rank, count = _ranked(labels, rng)
    return order[np.argsort((2 * rank + 1) / count, kind="stable")[:k]]


def without(n: int, chosen: Indices) -> Indices:
    """Return the indices 0 .. n-1 that are not chosen."""
    left = np.ones(n, np.bool_)
    left[chosen] = False
    return np.flatnonzero(left)


def _ranked(labels: Labels, rng: StableRandom) -> tuple[Indices, Indices, Indices]:
    """Return the indices of all samples in a random order, their ranks, and the sizes of their classes.

    A rank is the place of a sample in its class. The ranks and the sizes have the same order as the indices.
    """
    order = rng.permutation(len(labels))
    classes, counts = labels[order], np.bincount(labels)
    together = np.argsort(classes, kind="stable")
    starts = np.cumsum(counts) - counts
    rank = np.empty_like(order)
    rank[together] = np.arange(len(labels)) - starts[classes[together]]
    return order, rank, counts[classes]
