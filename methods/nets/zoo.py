"""torchvision's networks, untrained: FedSA's mixed networks HtFE8 and FedPall's extractor G, ResNet-50.

The last layer is replaced by the features, and with feature_size to FedSA's AdaptiveAvgPool1d. G, ResNet-50
without its last layer, has 23,508,032 parameters.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from protofleet.methods.nets.base import Image, Net, resized
from protofleet.methods.nets.torchvision_import import import_torchvision

CHANNELS = 3
SMALLEST = 16  # pixels: they halve the image five times; GoogLeNet has none left at 14


@dataclass(frozen=True, slots=True)
class Backbone:
    last: str  # attribute of the layers that turn features into classes
    features: int
    options: Mapping[str, object] = field(default_factory=dict)


# GoogLeNet without its two auxiliary heads, whose outputs no method reads, and with torchvision's default
# initialisation stated (it warns that the default will change). No dropout: that draws from torch's
# global generator, and a training step would depend on what ran before. MobileNetV2's goes with its head.
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
    """The same layers for every image: they end in a mean over it."""
    backbone = BACKBONES[name]
    make = getattr(import_torchvision().models, name)
    network = make(weights=None, num_classes=1, **backbone.options)
    setattr(network, backbone.last, resized(backbone.features, feature_size))
    return Net(network, backbone.features if feature_size is None else feature_size, classes)
