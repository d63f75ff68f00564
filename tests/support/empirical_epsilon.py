"""A lower bound of epsilon from the outputs that an attacker sees for two neighbouring data sets."""

import math

import numpy as np
from scipy import special


def best_bound(present, absent, delta):
    """Return a lower bound of epsilon with a confidence of 99.9 %; one half chooses the threshold."""
    half = len(present) // 2
    tried = np.quantile(present[:half], np.concatenate([np.linspace(0.05, 0.95, 19), [0.97, 0.98, 0.99]]))
    best = max(tried, key=lambda threshold: bound_at(threshold, present[:half], absent[:half], delta))
    return bound_at(best, present[half:], absent[half:], delta)


def bound_at(threshold, present, absent, delta):
    right, wrong = int((present > threshold).sum()), int((absent > threshold).sum())
    right_rate = special.betaincinv(right, len(present) - right + 1, 0.0005) if right else 0.0
    wrong_rate = special.betaincinv(wrong + 1, len(absent) - wrong, 0.9995)
    return math.log((right_rate - delta) / wrong_rate) if right_rate > delta else 0.0
