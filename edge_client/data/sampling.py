"""The choice of some of many labelled samples: every choice is seeded, and no choice looks at a pixel."""

from __future__ import annotations

import numpy as np

from protofleet.edge_client.data.domain import Indices, Labels
from protofleet.edge_client.data.stable_random import StableRandom


def balanced(labels: Labels, k: int, rng: StableRandom) -> Indices:
    """Choose k samples, with equally many of each class as far as the classes have enough."""
    order, rank, _ = _ranked(labels, rng)
    return order[np.argsort(rank, kind="stable")[:k]]


def stratified(labels: Labels, k: int, rng: StableRandom) -> Indices:
    """Choose k samples in which each class has the same fraction as in all samples, rounded.

    This is Webster's method. With many classes of one or two samples, a large class may get more than one
    sample above or below its part of k. But the first picks of a larger choice are the picks of a smaller
    choice; the method of largest remainders does not have this property.
    """
    order, rank, count = _ranked(labels, rng)
    return order[np.argsort((2 * rank + 1) / count, kind="stable")[:k]]


def without(n: int, chosen: Indices) -> Indices:
    """Return the indices 0 .. n-1 that are not chosen."""
    left = np.ones(n, np.bool_)
    left[chosen] = False
    return np.flatnonzero(left)


def _ranked(labels: Labels, rng: StableRandom) -> tuple[Indices, Indices, Indices]:
    """Return a random order and, along it, the rank of each sample in its class and the size of the class."""
    order = rng.permutation(len(labels))
    classes, counts = labels[order], np.bincount(labels)
    together = np.argsort(classes, kind="stable")
    starts = np.cumsum(counts) - counts
    rank = np.empty_like(order)
    rank[together] = np.arange(len(labels)) - starts[classes[together]]
    return order, rank, counts[classes]
