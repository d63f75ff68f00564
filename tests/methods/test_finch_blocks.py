"""Neighbours that single precision confuses, far apart in the input: settled pair by pair."""

from __future__ import annotations

import numpy as np

from methods.maths.finch import first_neighbours


def test_pairs_that_single_precision_confuses_are_settled_one_by_one():
    """400 triples: the second is a little nearer to the first than the third is, 4e-9 in cosine."""
    dice = np.random.default_rng(0)
    first, away = dice.normal(size=(2, 400, 40))
    first /= np.linalg.norm(first, axis=1, keepdims=True)
    away -= (away * first).sum(axis=1, keepdims=True) * first
    away /= np.linalg.norm(away, axis=1, keepdims=True)
    near, far = (np.cos(a) * first + np.sin(a) * s * away for a, s in ((1e-4, 1), (1.3e-4, -1)))
    assert first_neighbours(np.concatenate([first, far, near]))[:400].tolist() == list(range(800, 1200))
