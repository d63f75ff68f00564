"""A perceptron over pixels: the smallest network with all three pieces. For smoke tests and very small devices."""

from __future__ import annotations

from torch import nn

from protofleet.methods.nets.base import Image, Net

SMALLEST = 2
HIDDEN, EMBEDDING = 32, 16


def perceptron(image: Image, classes: int, feature_size: int | None) -> Net:
    """pixels -> 32 with ReLU -> 16 -> classes; feature_size is the width of the hidden layer."""
    channels, height, width = image
    hidden = feature_size or HIDDEN
    features = nn.Sequential(nn.Flatten(), nn.Linear(channels * height * width, hidden), nn.ReLU())
    return Net(features, hidden, classes, projector=nn.Linear(hidden, EMBEDDING), embedding_size=EMBEDDING)
