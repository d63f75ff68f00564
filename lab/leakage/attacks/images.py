"""Samples as rows of pixels."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from protofleet.methods.contract.base import Samples

Pixels: TypeAlias = NDArray[np.float64]


def flat(samples: Samples) -> Pixels:
    """Return each sample as one row."""
    return samples.x.reshape(len(samples.x), -1).double().numpy()


def class_images(samples: Samples, classes: int) -> Pixels:
    """Return the mean sample of each class; a class without samples gets the mean of all samples."""
    pixels, labels = flat(samples), samples.y.numpy()
    every = pixels.mean(0)
    return np.stack([pixels[labels == k].mean(0) if (labels == k).any() else every for k in range(classes)])
