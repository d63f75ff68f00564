"""The form of every network here: sample -> features -> projector -> head.

The papers cut a network in the same places: psi, varphi, phi (FedLSA, eq. 9), f and head (FedSA, FedPLCC), G
and H (FedPall). Methods name these parts and never a layer, so any method runs on any network.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy
from typing import Final, TypeAlias, TypeVar

import torch
from torch import Tensor, nn

_GLOBAL_DRAWS = threading.RLock()
CPU: Final = torch.device("cpu")

Module = TypeVar("Module", bound=nn.Module)
Image: TypeAlias = tuple[int, int, int]  # channels, height, width
Axes: TypeAlias = tuple[int, ...]  # Shape of any sample: [F], [C, T] or [C, H, W].


class Net(nn.Module):
    """A network with three parts: sample -> features -> projector -> head."""

    features: nn.Module  # [B, *the shape of a sample] -> [B, feature_size], flat
    projector: nn.Module  # [B, feature_size] -> [B, embedding_size]; Identity if the network has none
    head: nn.Module  # [B, embedding_size] -> [B, classes]; one linear layer, or FedPall's deeper classifier
    feature_size: int
    embedding_size: int
    classes: int
    backbone_is_frozen: bool = False
    takes_features: bool = False  # True if the frozen features also take features that are already computed.
    # For a network of a plug-in: its file, and the shape of its samples. Error messages name both.
    made_in: str = ""
    made_for: Axes = ()

    def __init__(
        self,
        features: nn.Module,
        feature_size: int,
        classes: int,
        *,
        projector: nn.Module | None = None,
        embedding_size: int | None = None,
        head_bias: bool = True,
    ) -> None:
        super().__init__()
        self.feature_size, self.classes = feature_size, classes
        self.embedding_size = feature_size if embedding_size is None else embedding_size
        self.features = features
        self.projector = nn.Identity() if projector is None else projector
        self.head = nn.Linear(self.embedding_size, classes, bias=head_bias)

    def freeze_backbone(self, *, takes_features: bool = False) -> None:
        """Freeze the features: they are the same on all devices and never change.

        Frozen features are not trained, not sent, and not saved in a state. With `takes_features`, the frozen module
        returns an input of two axes as it is. Then a device can compute the features of its samples once, and use
        them in place of the samples. Samples must have other numbers of axes, as batches of series and images do.
        """
        self.backbone_is_frozen, self.takes_features = True, takes_features
        if takes_features:
            # The class changes, because a module around the features would change the names of their weights.
            kind = type(self.features)
            self.features.__class__ = type(kind.__name__, (_TakesFeatures, kind), {})
        self.features.requires_grad_(False).eval()

    def train(self, mode: bool = True) -> Net:
        """Switch to training mode, or with `mode=False` to evaluation; a frozen backbone stays in evaluation."""
        super().train(mode)
        if self.backbone_is_frozen:
            self.features.eval()  # Then batch norms keep their statistics, and dropout is off.
        return self

    def project(self, size: int) -> None:
        """Add a linear projector of this width, and a new head behind it."""
        self.projector, self.embedding_size = nn.Linear(self.feature_size, size), size
        self.head = nn.Linear(size, self.classes)

    @property
    def size_setting(self) -> str:
        """Return the setting that changes the size of the embedding.

        Behind a projector, the embedding has the same size with every number of features.
        """
        return "network.feature_size" if isinstance(self.projector, nn.Identity) else "network.embedding_size"

    def embed(self, x: Tensor) -> Tensor:
        """Return the embeddings [B, embedding_size] of samples, which the head takes."""
        embedding: Tensor = self.projector(self.features(x))
        return embedding

    def forward(self, x: Tensor) -> Tensor:
        """Return the class scores [B, classes] of samples."""
        scores: Tensor = self.head(self.embed(x))
        return scores


class _TakesFeatures(nn.Module):
    """The first base class of features that return computed features [B, feature_size] as they are."""

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = x if x.dim() == 2 else super().forward(x)
        return found


class Encoder(nn.Module):
    """The parts of a network before its head: [B, ch, H, W] -> [B, embedding_size]."""

    def __init__(self, features: nn.Module, projector: nn.Module) -> None:
        super().__init__()
        self.features, self.projector = features, projector

    def forward(self, x: Tensor) -> Tensor:
        embedding: Tensor = self.projector(self.features(x))
        return embedding


def frozen_backbones(module: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Yield the name and the features of each network in this module that has a frozen backbone."""
    for name, part in module.named_modules():
        if isinstance(part, Net) and part.backbone_is_frozen:
            yield ".".join(filter(None, (name, "features"))), part.features


def frozen(model: Module) -> Module:
    """Return a frozen copy of the model in evaluation mode, for example to use as a teacher."""
    return deepcopy(model).requires_grad_(False).eval()


def resized(own: int, wanted: int | None) -> nn.Module:
    """Return FedSA's layer that gives all networks one feature size: [B, own] -> [B, wanted].

    The layer averages neighbours. AdaptiveAvgPool1d takes [B, own] as one sample of B channels, so it averages
    within each row. If `wanted` is larger than `own`, the layer repeats numbers and adds no information.
    """
    return nn.Identity() if wanted in (None, own) else nn.AdaptiveAvgPool1d(wanted)


@contextmanager
def initialised_from(seed: int) -> Iterator[None]:
    """Initialise the layers that are made in this context from the seed, and keep the caller's random state.

    Layers are made on the CPU, or on torch's meta device, which needs no random numbers.
    """
    place = "meta" if torch.empty(0).is_meta else "cpu"
    with seeded_globally(seed), torch.device(place):
        yield


@contextmanager
def seeded_globally(seed: int, place: torch.device = CPU) -> Iterator[None]:
    """Seed the global random generator inside this context, and restore it afterwards.

    Use it for code that can draw only from the global generator: initialisers on the CPU, and dropout on the
    torch device of the network.

    The generator belongs to the process, and devices may share a process. A lock lets only one device use the
    generator at a time. torch.manual_seed is not used: it seeds every accelerator, but fork_rng restores only the
    accelerators in its arguments.
    """
    gpus = [place.index or 0] if place.type == "cuda" else []
    with _GLOBAL_DRAWS, torch.random.fork_rng(devices=gpus):
        torch.default_generator.manual_seed(seed)
        for gpu in gpus:
            torch.cuda.default_generators[gpu].manual_seed(seed)
        yield
