"""Networks of torchvision, without trained weights.

FedSA uses a mix of these networks (HtFE8). FedPall uses ResNet-50 as its extractor G. The last layer of each network
is removed, and the input of this layer becomes the features. If feature_size is set, FedSA's AdaptiveAvgPool1d
follows. G has 23,508,032 parameters.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from protofleet.methods.nets.base import Image, Net, resized
from protofleet.methods.nets.torchvision_import import import_torchvision

CHANNELS = 3
# Smallest side in pixels. The networks halve the image five times; GoogLeNet has no pixel left at a side of 14.
SMALLEST = 16


@dataclass(frozen=True, slots=True)
class Backbone:
    last: str  # Name of the attribute with the layers that turn features into classes.
    features: int
    options: Mapping[str, object] = field(default_factory=dict)


# GoogLeNet comes without its two auxiliary heads, because no method reads their outputs. torchvision's default
# initialisation is stated, because torchvision warns that the default will change. GoogLeNet has no dropout: dropout
# draws from the global generator of torch, so a training step would depend on earlier draws. The dropout of
# MobileNetV2 is removed with its head.
BACKBONES: Mapping[str, Backbone] = {
    "resnet18": Backbone("fc", 512),
    "resnet34": Backbone("fc", 512),
    "resnet50": Backbone("fc", 2048),
    "resnet101": Backbone("fc", 2048),
    "resnet152": Backbone("fc", 2048),
    "googlenet": Backbone("fc", 1024, {"aux_logits": False, "init_weights": True, "dropout": 0.0}),
    "mobilenet_v2": Backbone("classifier", 1280),
}


def wrapped(name: str, image: Image, classes: int, feature_size: int | None) -> Net:
    """Build a network with the same layers for every image size, and a mean over the image at the end."""
    backbone = BACKBONES[name]
    make = getattr(import_torchvision().models, name)
    network = make(weights=None, num_classes=1, **backbone.options)
    setattr(network, backbone.last, resized(backbone.features, feature_size))
    return Net(network, backbone.features if feature_size is None else feature_size, classes)
