"""FedPall's two small networks over features: the classifier H (also C_g) and the amplifier A.

    H: d -> 512 -> 512 -> classes, BatchNorm and ReLU on hidden layers; 1,318,922 parameters for 2048, 10
    A: d -> 512 -> 512 -> clients, the same without biases;             1,315,328 parameters for 2048, 5

The authors' file of models also has a network A with biases (1,316,357 parameters). The paper states
that A has 5.59 % of the parameters of ResNet-50. This is true for both forms of A, if the share is cut off after the
second decimal. BatchNorm1d cannot train on a batch of one sample.
"""

from __future__ import annotations

from torch import nn

from protofleet.methods.nets.base import initialised_from

HIDDEN = 512


def fedpall_classifier(feature_size: int, classes: int, *, seed: int = 0) -> nn.Sequential:
    with initialised_from(seed):
        return _mlp(feature_size, classes, bias=True)


def amplifier(feature_size: int, clients: int, *, seed: int = 0) -> nn.Sequential:
    with initialised_from(seed):
        return _mlp(feature_size, clients, bias=False)


def _mlp(inputs: int, outputs: int, bias: bool) -> nn.Sequential:
    return nn.Sequential(
        *(nn.Linear(inputs, HIDDEN, bias=bias), nn.BatchNorm1d(HIDDEN), nn.ReLU()),
        *(nn.Linear(HIDDEN, HIDDEN, bias=bias), nn.BatchNorm1d(HIDDEN), nn.ReLU()),
        nn.Linear(HIDDEN, outputs, bias=bias),
    )
