"""Structural similarity of images (Wang et al., IEEE TIP 2004), beside the PSNR of recovery.py.

PSNR counts errors of single pixels, so a blurred image can have a high PSNR. SSIM compares means, variances and
covariances in a window that moves over the image: 1 for equal images, about 0 for images without a common structure.
"""

from __future__ import annotations

from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from protofleet.lab.leakage.maths.recovery import RANGE

Numbers: TypeAlias = NDArray[np.float64]

WINDOW: Final = 11  # Pixels on a side of the window; a smaller image has a smaller window.
SPREAD: Final = 1.5  # Standard deviation of the window's Gaussian weights, in pixels.
SMALL_MEAN: Final = (0.01 * RANGE) ** 2  # C1 of the paper
SMALL_VARIANCE: Final = (0.03 * RANGE) ** 2  # C2 of the paper


def ssim(found: Numbers, true: Numbers) -> Numbers:
    """Return the mean SSIM over channels and windows of each pair of images [N, C, H, W]."""
    mean, other = smoothed(found), smoothed(true)
    variance, other_variance = smoothed(found**2) - mean**2, smoothed(true**2) - other**2
    covariance = smoothed(found * true) - mean * other
    light = (2 * mean * other + SMALL_MEAN) / (mean**2 + other**2 + SMALL_MEAN)
    structure = (2 * covariance + SMALL_VARIANCE) / (variance + other_variance + SMALL_VARIANCE)
    values: Numbers = (light * structure).mean(axis=(1, 2, 3))
    return values


def smoothed(images: Numbers) -> Numbers:
    """Return the weighted mean in each window that lies wholly in the image."""
    for axis in (2, 3):
        weights = window(images.shape[axis])
        left = images.shape[axis] - len(weights) + 1
        images = sum(
            (
                weight * np.take(images, range(place, place + left), axis)
                for place, weight in enumerate(weights)
            ),
            start=np.zeros(1),
        )
    return images


def window(side: int) -> Numbers:
    """Return the weights of the window along one axis: an odd number of at most WINDOW, and their sum is 1."""
    size = min(WINDOW, side - (side + 1) % 2)
    weights = np.exp(-np.square(np.arange(size) - size // 2) / (2 * SPREAD**2))
    found: Numbers = weights / weights.sum()
    return found
