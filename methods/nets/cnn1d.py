"""A small CNN for series: two strided convolutions along the time, averaged over the time."""

from __future__ import annotations

from torch import nn

from protofleet.methods.nets.base import Axes, Net

SMALLEST = 8  # Smallest number of steps of a series; each convolution halves the number.
HIDDEN, FEATURES, EMBEDDING = 32, 64, 32


def cnn1d(shape: Axes, classes: int, feature_size: int | None) -> Net:
    """Build the network: [C, T] -> 32 channels -> 64 features, the mean over the time -> 32 -> classes.

    feature_size is the number of channels of the second convolution. The network has 14,084 parameters for 6 channels
    and 4 classes, for every length of the series.
    """
    channels, features = shape[0], feature_size or FEATURES
    encoder = nn.Sequential(
        *(nn.Conv1d(channels, HIDDEN, 7, stride=2, padding=3), nn.BatchNorm1d(HIDDEN), nn.ReLU()),
        *(nn.Conv1d(HIDDEN, features, 5, stride=2, padding=2), nn.BatchNorm1d(features), nn.ReLU()),
        *(nn.AdaptiveAvgPool1d(1), nn.Flatten()),
    )
    return Net(encoder, features, classes, projector=nn.Linear(features, EMBEDDING), embedding_size=EMBEDDING)
