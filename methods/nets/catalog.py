"""The networks by name: each is a line in the table and a builder (image, classes, feature_size) -> Net."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias

import torch

from protofleet.methods.nets import cnn, zoo
from protofleet.methods.nets.base import Image, Net, initialised_from
from protofleet.methods.nets.mlp import fedpall_classifier
from protofleet.methods.nets.perceptron import SMALLEST as SMALLEST_PERCEPTRON
from protofleet.methods.nets.perceptron import perceptron
from protofleet.methods.nets.resnet10 import SMALLEST as SMALLEST_RESNET10
from protofleet.methods.nets.resnet10 import resnet10
from protofleet.protocol.settings.suggest import there_are

__all__ = ["Net", "build", "names"]

Builder: TypeAlias = Callable[[Image, int, int | None], Net]


@dataclass(frozen=True, slots=True)
class Recipe:
    make: Builder
    smallest: int  # side of an image, in pixels
    channels: int | None = None  # None: as many as the images have

    def problem_with(self, image: Image) -> str | None:
        channels, height, width = image
        if channels < 1 or self.channels not in (None, channels):
            return f"takes images of {self.channels or '1 or more'} channels, not {channels}"
        if min(height, width) < self.smallest:
            return f"takes images from {self.smallest}x{self.smallest} on, not {height}x{width}"
        return None


RECIPES: Mapping[str, Recipe] = {
    "cnn23": Recipe(cnn.fedlsa, cnn.SMALLEST),
    "cnn4": Recipe(cnn.fedsa, cnn.SMALLEST),
    "cnn_mnist": Recipe(cnn.fedsa, cnn.SMALLEST),  # the same layers; FedHP feeds them 1x28x28
    "cnn_mnist_conv": Recipe(cnn.fedhp_mnist_backbone, cnn.SMALLEST),
    "cnn_fednh": Recipe(cnn.fednh, cnn.SMALLEST),
    "cnn_fednh_small": Recipe(cnn.fednh_small, cnn.SMALLEST),
    "cnn_fednh_conv": Recipe(cnn.fednh_backbone, cnn.SMALLEST),
    "cnn_bn": Recipe(cnn.batch_norm, cnn.SMALLEST_WITH_BATCH_NORM),
    "mlp": Recipe(perceptron, SMALLEST_PERCEPTRON),
    "resnet10": Recipe(resnet10, SMALLEST_RESNET10),
    **{name: Recipe(partial(zoo.wrapped, name), zoo.SMALLEST, zoo.CHANNELS) for name in zoo.BACKBONES},
}


HEADS = ("linear", "mlp")


def misfit(name: str, image: Image, key: str = "network.name", table: str = "") -> str:
    """Why the network that `key` names cannot take such images, and the way out; "" where it can.

    `table` has the images' own settings, channels and size: "data." in an experiment.
    """
    recipe = RECIPES.get(name)
    if recipe is None or (problem := recipe.problem_with(image)) is None:
        return ""
    setting = "size" if recipe.channels in (None, image[0]) else "channels"
    return f'{key} is "{name}", which {problem}: change {table}{setting}{_or_another_network(image)}'


def names() -> list[str]:
    return sorted(RECIPES)


def build(
    name: str,
    *,
    classes: int,
    image: tuple[int, int, int] = (3, 32, 32),
    feature_size: int | None = None,
    embedding_size: int | None = None,
    head: str = "linear",
    seed: int = 0,
) -> Net:
    """An untrained network on the CPU: the same for the same arguments, whatever was drawn before.

    feature_size None is the network's own; set, `features` gives that many (each builder says how). embedding_size
    puts a linear projector of that width behind the features, as FedLSA's varphi, in place of the network's own.
    HEADS are "linear" and "mlp", FedPall's deeper classifier.
    """
    recipe = RECIPES.get(name)
    if recipe is None:
        raise LookupError(f"no network {name!r}; {there_are(name, names())}")
    if problem := recipe.problem_with(image):
        raise ValueError(f"{name} {problem}; convert the images{_or_another_network(image)}")
    if classes < 2:
        raise ValueError(f"classes is {classes}, below 2: state how many classes the whole federation has")
    if feature_size is not None and feature_size < 1:
        raise ValueError(f"feature_size is {feature_size}, below 1: leave it out for the network's own")
    if embedding_size is not None and embedding_size < 1:
        raise ValueError(f"embedding_size is {embedding_size}, below 1: leave it out for the network's own")
    with initialised_from(seed):
        model = recipe.make(image, classes, feature_size)
        if embedding_size is not None:
            model.project(embedding_size)
    if head == "mlp":
        model.head = fedpall_classifier(model.embedding_size, classes, seed=seed)
    return model


@dataclass(frozen=True, slots=True)
class Size:
    name: str
    parameters: int
    bytes: int  # of parameters and buffers, as they are sent
    smallest: int  # side of an image, in pixels
    channels: int | None  # None: as many as the images have


def sizes(classes: int = 10, side: int = 32) -> list[Size]:
    """Of all networks, for colour images of this side or the smallest that a network takes. Nothing is allocated."""
    found = []
    with torch.device("meta"):
        for name in names():
            recipe = RECIPES[name]
            larger = max(side, recipe.smallest)
            model = build(name, classes=classes, image=(3, larger, larger))
            state = model.state_dict().values()
            found.append(Size(
                name, sum(p.numel() for p in model.parameters()), sum(t.nbytes for t in state),
                recipe.smallest, recipe.channels,
            ))  # fmt: skip
    return found


def _or_another_network(image: Image) -> str:
    fitting = [name for name in names() if RECIPES[name].problem_with(image) is None]
    return f" or take one of {', '.join(fitting)}" if fitting else ""
