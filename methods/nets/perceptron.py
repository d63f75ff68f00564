"""A perceptron over all numbers of a sample of any shape: the smallest network with all three parts.

Use it for vectors, smoke tests and very small devices.
"""

from __future__ import annotations

import math

from torch import nn

from protofleet.methods.nets.base import Axes, Net

SMALLEST = 2
HIDDEN, EMBEDDING = 32, 16


def perceptron(shape: Axes, classes: int, feature_size: int | None) -> Net:
    """Build the network: numbers -> 32 with ReLU -> 16 -> classes; feature_size is the hidden width."""
    hidden = feature_size or HIDDEN
    features = nn.Sequential(nn.Flatten(), nn.Linear(math.prod(shape), hidden), nn.ReLU())
    return Net(features, hidden, classes, projector=nn.Linear(hidden, EMBEDDING), embedding_size=EMBEDDING)
