"""Choosing some of many labelled samples. Every choice is seeded, and none looks at a pixel."""

from __future__ import annotations

import numpy as np

from protofleet.edge_client.data.domain import Indices, Labels
from protofleet.edge_client.data.stable_random import StableRandom


def balanced(labels: Labels, k: int, rng: StableRandom) -> Indices:
    """k samples, as equally many of each class as there are."""
    order, rank, _ = _ranked(labels, rng)
    return order[np.argsort(rank, kind="stable")[:k]]


def stratified(labels: Labels, k: int, rng: StableRandom) -> Indices:
    """k samples in which each class has the share that it has in all: of every class one fraction, rounded.

    That is Webster's method. With many classes of one or two samples, a large class may get more than one sample
    above or below its part of k; but the first of many picks are the picks of fewer, which largest remainders break.
    """
    order, rank, count = _ranked(labels, rng)
    return order[np.argsort((2 * rank + 1) / count, kind="stable")[:k]]


def without(n: int, chosen: Indices) -> Indices:
    """The others of 0 .. n-1."""
    left = np.ones(n, np.bool_)
    left[chosen] = False
    return np.flatnonzero(left)


def _ranked(labels: Labels, rng: StableRandom) -> tuple[Indices, Indices, Indices]:
    """A random order and, along it, which one of its class each sample is, and of how many."""
    order = rng.permutation(len(labels))
    classes, counts = labels[order], np.bincount(labels)
    together = np.argsort(classes, kind="stable")
    starts = np.cumsum(counts) - counts
    rank = np.empty_like(order)
    rank[together] = np.arange(len(labels)) - starts[classes[together]]
    return order, rank, counts[classes]
