"""Limit the weight of one device, because no one can check how many samples a device has.

A weight is capped at `factor` times the median of its cohort. If the number of weights is even, the median is
the lower of the two middle weights, so that half of the devices cannot raise the cap. Weights of 0 are left
out of the median.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Collection, Mapping


def weight_cap(weights: Collection[float], factor: float) -> float:
    """Return the largest allowed weight; infinity if `factor` is 0 (no cap) or if no weight is above 0."""
    positive = [weight for weight in weights if weight > 0]
    return factor * statistics.median_low(positive) if factor and positive else math.inf


def capped(weights: Mapping[str, float], factor: float) -> dict[str, float]:
    """Return the weights by device. A weight above the result of `weight_cap` is lowered to this result."""
    cap = weight_cap(weights.values(), factor)
    return {device: min(weight, cap) for device, weight in weights.items()}
