"""The shape every network here has: sample -> features -> projector -> head.

The papers cut a network in the same places: psi, varphi, phi (FedLSA, eq. 9), f and head (FedSA, FedPLCC),
G and H (FedPall). Methods name the pieces and never a layer, so any method runs on any network.
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
Axes: TypeAlias = tuple[int, ...]  # of any sample: [F], [C, T] or [C, H, W]


class Net(nn.Module):
    """sample -> features -> projector -> head."""

    features: nn.Module  # [B, *the shape of a sample] -> [B, feature_size], flat
    projector: nn.Module  # [B, feature_size] -> [B, embedding_size]; Identity where the network has none
    head: nn.Module  # [B, embedding_size] -> [B, classes]; one linear layer, or FedPall's deeper classifier
    feature_size: int
    embedding_size: int
    classes: int
    backbone_is_frozen: bool = False
    # Of somebody's own, who is told where it fits nothing: its file, and the shape of samples that was asked for.
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

    def freeze_backbone(self) -> None:
        """The features are the same for all and for good: nobody trains them, sends them or keeps a state of them."""
        self.backbone_is_frozen = True
        self.features.requires_grad_(False).eval()

    def train(self, mode: bool = True) -> Net:
        super().train(mode)
        if self.backbone_is_frozen:
            self.features.eval()  # its batch norms count nothing, and nothing is dropped
        return self

    def project(self, size: int) -> None:
        """A linear projector of this width, and a head behind it."""
        self.projector, self.embedding_size = nn.Linear(self.feature_size, size), size
        self.head = nn.Linear(size, self.classes)

    def embed(self, x: Tensor) -> Tensor:
        embedding: Tensor = self.projector(self.features(x))
        return embedding

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.head(self.embed(x))
        return scores


class Encoder(nn.Module):
    """Of a network, what is before its head: [B, ch, H, W] -> [B, embedding_size]."""

    def __init__(self, features: nn.Module, projector: nn.Module) -> None:
        super().__init__()
        self.features, self.projector = features, projector

    def forward(self, x: Tensor) -> Tensor:
        embedding: Tensor = self.projector(self.features(x))
        return embedding


def frozen_backbones(module: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """The features of networks in this module whose backbone is frozen, by their name in it."""
    for name, part in module.named_modules():
        if isinstance(part, Net) and part.backbone_is_frozen:
            yield ".".join(filter(None, (name, "features"))), part.features


def frozen(model: Module) -> Module:
    """As it is now, in evaluation mode: a previous model, a teacher, one that was received."""
    return deepcopy(model).requires_grad_(False).eval()


def resized(own: int, wanted: int | None) -> nn.Module:
    """FedSA's way to one feature size for all networks: average neighbours, [B, own] -> [B, wanted].

    AdaptiveAvgPool1d takes [B, own] for one sample of B channels, which is a mean over each row. A size above
    the network's own repeats neighbours and adds no information.
    """
    return nn.Identity() if wanted in (None, own) else nn.AdaptiveAvgPool1d(wanted)


@contextmanager
def initialised_from(seed: int) -> Iterator[None]:
    """Layers made inside are the same for the same seed, and the caller's random state stays as it was.

    Layers are made on the CPU - or on meta, where nothing is drawn.
    """
    place = "meta" if torch.empty(0).is_meta else "cpu"
    with seeded_globally(seed), torch.device(place):
        yield


@contextmanager
def seeded_globally(seed: int, place: torch.device = CPU) -> Iterator[None]:
    """For what draws from the global generator and takes no other: initialisers, on the CPU, and dropout, where the
    network computes.

    The generator is the process's own, and devices may share a process: without the lock one puts back, in the
    middle of another's draws, what it had found. torch.manual_seed would reseed every accelerator too, which
    fork_rng does not undo for those that it is not told of.
    """
    gpus = [place.index or 0] if place.type == "cuda" else []
    with _GLOBAL_DRAWS, torch.random.fork_rng(devices=gpus):
        torch.default_generator.manual_seed(seed)
        for gpu in gpus:
            torch.cuda.default_generators[gpu].manual_seed(seed)
        yield
