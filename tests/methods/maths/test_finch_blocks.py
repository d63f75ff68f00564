"""Tests of neighbours that single precision confuses and that are far apart in the input."""

from __future__ import annotations

import numpy as np

from protofleet.methods.maths.finch import first_neighbours


def test_pairs_that_single_precision_confuses_are_compared_in_double_precision():
    """400 triples: the second is a little nearer to the first than the third is, 4e-9 in cosine."""
    dice = np.random.default_rng(0)
    first, away = dice.normal(size=(2, 400, 40))
    first /= np.linalg.norm(first, axis=1, keepdims=True)
    away -= (away * first).sum(axis=1, keepdims=True) * first
    away /= np.linalg.norm(away, axis=1, keepdims=True)
    near, far = (np.cos(a) * first + np.sin(a) * s * away for a, s in ((1e-4, 1), (1.3e-4, -1)))
    assert first_neighbours(np.concatenate([first, far, near]))[:400].tolist() == list(range(800, 1200))


def test_many_similar_rows_get_the_same_neighbours_as_by_comparing_each_pair():
    """Neighbours that are computed row by row, for speed, equal those that are computed pair by pair, bit by bit."""
    dice = np.random.default_rng(1)
    near = 1 + 0.7071e-6 * dice.normal(size=(300, 512))
    units = near / np.linalg.norm(near, axis=1, keepdims=True)
    expected = []
    for i in range(len(units)):
        others = np.delete(np.arange(len(units)), i)
        pairs = np.einsum("nd,nd->n", units[np.full(len(others), i)], units[others]).round(12)
        expected.append(int(others[pairs.argmax()]))
    assert first_neighbours(near).tolist() == expected
