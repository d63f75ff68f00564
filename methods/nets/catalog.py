"""The networks by name: each has a row in RECIPES and a function (shape, classes, feature_size) -> Net."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias

import torch

from protofleet.methods.nets import cnn, efficientnet_lite0, zoo
from protofleet.methods.nets.base import Axes, Net, initialised_from
from protofleet.methods.nets.cnn1d import SMALLEST as SMALLEST_CNN1D
from protofleet.methods.nets.cnn1d import cnn1d
from protofleet.methods.nets.mlp import fedpall_classifier
from protofleet.methods.nets.perceptron import SMALLEST as SMALLEST_PERCEPTRON
from protofleet.methods.nets.perceptron import perceptron
from protofleet.methods.nets.resnet10 import SMALLEST as SMALLEST_RESNET10
from protofleet.methods.nets.resnet10 import resnet10
from protofleet.methods.nets.torchvision_import import import_torchvision
from protofleet.methods.plugins.found import find
from protofleet.protocol.settings.input_shape import FORMS, KINDS, InputShape
from protofleet.protocol.settings.suggest import there_are

__all__ = ["Net", "build", "names"]

# The arguments of a builder are the shape of a sample, the number of classes, feature_size, and by their names those
# of the network's own settings that are given.
Builder: TypeAlias = Callable[..., Net]


@dataclass(frozen=True, slots=True)
class Recipe:
    make: Builder
    smallest: int  # Smallest side of an image in pixels, or smallest number of steps of a series.
    # Number of channels of an image. If it is None, the network has as many channels as the samples.
    channels: int | None = None
    ranks: tuple[int, ...] = (3,)  # Numbers of axes of the samples: 1 vectors, 2 series, 3 images.
    settings: tuple[str, ...] = ()  # Names of the network's own settings.
    # Function (shape, own settings) -> why these settings do not fit samples of this shape, or "".
    settings_misfit: Callable[..., str] = lambda shape, **own: ""
    import_library: Callable[[], object] = lambda: None  # Imports the library that `make` needs.

    def problem_with(self, shape: InputShape) -> str | None:
        if shape.rank not in self.ranks:
            taken = ", ".join(f"{KINDS[rank]} {FORMS[rank]}" for rank in self.ranks)
            return f"takes {taken}, these samples are {shape}"
        if self.channels not in (None, shape.channels):
            return f"takes images of {self.channels} channels, not {shape.channels}"
        if min(shape.spatial, default=self.smallest) >= self.smallest:
            return None
        if shape.rank == 3:
            return f"takes images from {self.smallest}x{self.smallest} on, not {'x'.join(map(str, shape.spatial))}"
        return f"takes series from {self.smallest} steps on, not {shape.spatial[0]}"


RECIPES: Mapping[str, Recipe] = {
    "cnn23": Recipe(cnn.fedlsa, cnn.SMALLEST),
    "cnn4": Recipe(cnn.fedsa, cnn.SMALLEST),
    "cnn_mnist": Recipe(cnn.fedsa, cnn.SMALLEST),  # FedHP uses these layers of FedSA's CNN for 1x28x28.
    "cnn_mnist_conv": Recipe(cnn.fedhp_mnist_backbone, cnn.SMALLEST),
    "cnn_fednh": Recipe(cnn.fednh, cnn.SMALLEST),
    "cnn_fednh_small": Recipe(cnn.fednh_small, cnn.SMALLEST),
    "cnn_fednh_conv": Recipe(cnn.fednh_backbone, cnn.SMALLEST),
    "cnn_bn": Recipe(cnn.batch_norm, cnn.SMALLEST_WITH_BATCH_NORM),
    "cnn1d": Recipe(cnn1d, SMALLEST_CNN1D, ranks=(2,)),
    "efficientnet_lite0": Recipe(
        efficientnet_lite0.efficientnet_lite0,
        efficientnet_lite0.SMALLEST,
        efficientnet_lite0.CHANNELS,
        settings=efficientnet_lite0.SETTINGS,
        settings_misfit=efficientnet_lite0.problem_with_settings,
    ),
    "mlp": Recipe(perceptron, SMALLEST_PERCEPTRON, ranks=(1, 2, 3)),
    "resnet10": Recipe(resnet10, SMALLEST_RESNET10),
    **{
        name: Recipe(
            partial(zoo.wrapped, name), zoo.SMALLEST, zoo.CHANNELS, import_library=import_torchvision
        )
        for name in zoo.BACKBONES
    },
}


SERIES = (6, 128)  # Shape of the sample with which networks for series are measured.
HEADS = ("linear", "mlp")
NONE: Mapping[str, int] = {}


def misfit(
    name: str, shape: InputShape, key: str = "network.name", table: str = "", own: Mapping[str, int] = NONE
) -> str:
    """Return the reason why a network cannot take samples of this shape, and a change that helps.

    Return "" if the network can take the samples, or if it is not a network of protofleet. `key` is the setting with
    the name of the network. The message also names settings of the samples. `table` is the prefix of these names, for
    example "data." in an experiment. `own` are the network's own settings.
    """
    recipe = RECIPES.get(name)
    if recipe is None:
        return ""
    if (problem := recipe.problem_with(shape)) is None:
        return recipe.settings_misfit(shape.axes, **own)
    if shape.rank not in recipe.ranks:
        return f'{key} is "{name}", which {problem}: {_others(shape) or f"change {table}shape"}'
    setting = "size" if recipe.channels in (None, shape.channels) else "channels"
    change = f"change {table}{setting if shape.is_square_picture else 'shape'}"
    return f'{key} is "{name}", which {problem}: {" or ".join(filter(None, (change, _others(shape))))}'


def foreign_setting(name: str, given: Iterable[str]) -> str:
    """Return why a network does not have one of these own settings, or "" if it has all of them."""
    own = RECIPES[name].settings if name in RECIPES else ()
    strange = next((key for key in given if key not in own), "")
    having = [other for other in names() if strange in RECIPES[other].settings]
    return strange and f"the network {name} has no setting {strange}; leave it out, or take {_either(having)}"


def names() -> list[str]:
    return sorted(RECIPES)


def import_library(name: str) -> None:
    """Import the library that a network of protofleet needs; raise ImportError if it is not installed."""
    if name in RECIPES:
        RECIPES[name].import_library()


def build(
    name: str,
    *,
    classes: int,
    image: Axes = (3, 32, 32),
    feature_size: int | None = None,
    embedding_size: int | None = None,
    head: str = "linear",
    seed: int = 0,
    plugin: str = "",
    own: tuple[tuple[str, int], ...] = (),
) -> Net:
    """Return an untrained network on the CPU, which depends only on the arguments.

    `image` is the shape of a sample of any kind. `feature_size` is the number of features, and None means the
    network's own number; each builder states how it makes the features. `embedding_size` adds a linear projector of
    this width after the features (varphi of FedLSA). It replaces the network's own projector. `head` is one of HEADS:
    "linear", or "mlp", which is FedPall's deeper classifier. `plugin` is the SHA-256 of a network that is a plug-in.
    `own` are the names and values of the network's own settings that are given.
    """
    recipe, shape = recipe_of(name, plugin), InputShape(image)
    if problem := recipe.problem_with(shape):
        raise ValueError(f"{name} {problem}; {_way_out(recipe, shape)}")
    if problem := foreign_setting(name, dict(own)) or recipe.settings_misfit(shape.axes, **dict(own)):
        raise ValueError(problem)
    if classes < 2:
        raise ValueError(
            f"classes is {classes}, but must be 2 or more: count the classes of the whole federation"
        )
    if feature_size is not None and feature_size < 1:
        raise ValueError(
            f"feature_size is {feature_size}, but must be 1 or more; leave out feature_size to use the network's "
            "own size"
        )
    if embedding_size is not None and embedding_size < 1:
        raise ValueError(
            f"embedding_size is {embedding_size}, but must be 1 or more; leave out embedding_size to use the "
            "network's own size"
        )
    with initialised_from(seed):
        model = recipe.make(shape.axes, classes, feature_size, **dict(own))
        if embedding_size is not None:
            model.project(embedding_size)
    if head == "mlp":
        model.head = fedpall_classifier(model.embedding_size, classes, seed=seed)
    return model


def recipe_of(name: str, plugin: str = "") -> Recipe:
    if plugin:
        return find("network", name, plugin, Recipe)  # type: ignore[no-any-return]
    if name not in RECIPES:
        raise LookupError(f"no network {name!r}; {there_are(name, names())}")
    return RECIPES[name]


@dataclass(frozen=True, slots=True)
class Size:
    name: str
    parameters: int
    bytes: int  # Bytes of parameters and buffers, as they are sent.
    smallest: int  # Smallest side of an image in pixels, or smallest number of steps of a series.
    # Number of channels of an image. If it is None, the network has as many channels as the samples.
    channels: int | None
    ranks: tuple[int, ...]  # Numbers of axes of the samples: 1 vectors, 2 series, 3 images.


def sizes(classes: int = 10, side: int = 32) -> list[Size]:
    """Return the sizes of all networks.

    A network for images is measured with colour images of this side, or of the smallest side that the network takes.
    Other networks are measured with samples of the shape SERIES. No memory is allocated.
    """
    found = []
    with torch.device("meta"):
        for name in names():
            recipe = RECIPES[name]
            larger = max(side, recipe.smallest)
            image = (3, larger, larger) if 3 in recipe.ranks else SERIES
            model = build(name, classes=classes, image=image)
            state = model.state_dict().values()
            found.append(Size(
                name, sum(p.numel() for p in model.parameters()), sum(t.nbytes for t in state),
                recipe.smallest, recipe.channels, recipe.ranks,
            ))  # fmt: skip
    return found


def _way_out(recipe: Recipe, shape: InputShape) -> str:
    convert = "" if shape.rank not in recipe.ranks else f"convert the {shape.kind}"
    return " or ".join(filter(None, (convert, _others(shape)))) or "set data.shape"


def _others(shape: InputShape) -> str:
    fitting = [name for name in names() if RECIPES[name].problem_with(shape) is None]
    return f"take {'one of ' if len(fitting) > 3 else ''}{_either(fitting)}" if fitting else ""


def _either(networks: list[str]) -> str:
    return " or ".join(networks) if len(networks) <= 3 else ", ".join(networks)
