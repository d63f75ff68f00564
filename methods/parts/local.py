"""The local training loop of all methods. A method differs only in the objective that it passes.

All random numbers come from the caller's generator: the order of the samples, and a seed for dropout. The training
does not change the state of torch's global generator.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Annotated, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from protofleet.methods.contract.base import Samples
from protofleet.methods.nets.base import Net, frozen_backbones, seeded_globally
from protofleet.methods.parts.optimizers import SGD, Optimizer
from protofleet.methods.parts.weights import torch_device_of
from protofleet.protocol.settings.bounds import LONGEST_NORM, Batch, Epochs, Momentum, Rate, Weight, Within
from protofleet.protocol.settings.reader import demand_within

Norm: TypeAlias = Annotated[float, Within(0, LONGEST_NORM, above=True)]
Objective: TypeAlias = Callable[[Tensor, Tensor], Tensor]  # x [B, ...], y [B] -> loss of the batch

BATCH = 256  # Number of samples in a batch when no gradient is computed.


@dataclass(frozen=True)
class LocalHyper:
    """The settings of local SGD, with defaults as in FedLSA and in FPL's code.

    The Hyper of every method that trains on its devices extends this class.
    """

    epochs: Epochs = 5
    """Number of passes over the device's own samples in a round."""
    batch: Batch = 64
    """Number of samples in a batch."""
    lr: Rate = 0.01
    """Learning rate of the local optimizer."""
    momentum: Momentum = 0.9
    """Momentum of the local optimizer; 0 means none."""
    weight_decay: Weight = 1e-5
    """Weight decay of the local optimizer; 0 means none."""
    clip: Norm | None = None
    """Largest norm of a gradient; larger gradients are scaled down to this norm; if left out, gradients are not
    clipped.
    """

    def __post_init__(self) -> None:
        demand_within(self)


def demand(name: str, value: object, holds: bool, limit: str) -> None:
    """Raise ValueError with the setting, its value and its limit if `holds` is false."""
    if not holds:
        raise ValueError(f"{name} is {value}, it must be {limit}")


def demand_one_of(name: str, value: str, options: tuple[str, ...]) -> None:
    demand(name, repr(value), value in options, f"one of {', '.join(options)}")


def train(
    model: nn.Module,
    data: Samples,
    objective: Objective,
    hyper: LocalHyper,
    generator: torch.Generator,
    before_epoch: Callable[[], object] | None = None,
    optimizers: Sequence[Optimizer] = (),
    clipped: Sequence[nn.Module] = (),
) -> None:
    """Train on shuffled batches.

    No sample is dropped. Without samples, or without a trainable parameter, nothing changes. If the backbone
    is frozen, the rest of the network may have no trainable parameter.

    `optimizers` are the caller's own. Without them, a new SGD trains all parameters of the model. For each
    module in `clipped`, the norm of its gradient is bounded separately. Without `clipped`, the norm of the
    whole model's gradient is bounded.
    """
    if not any(w.requires_grad for w in model.parameters()):
        return
    steps = optimizers or [sgd(model.parameters(), hyper)]
    seed = int(torch.randint(1 << 62, (), generator=generator))
    norms = norms_of(model)
    with seeded_globally(seed, torch_device_of(model)), _mode(model, training=True):
        for _ in range(hyper.epochs):
            if before_epoch:
                before_epoch()
            for x, y in _batches(data, hyper.batch, generator):
                train_norms(norms, len(y))
                for optimizer in steps:
                    optimizer.zero_grad()
                torch.autograd.backward(objective(x, y))
                if hyper.clip is not None:
                    for part in clipped or [model]:
                        nn.utils.clip_grad_norm_(part.parameters(), hyper.clip)
                for optimizer in steps:
                    optimizer.step()


def norms_of(model: nn.Module) -> list[nn.Module]:
    still = {part for _, backbone in frozen_backbones(model) for part in backbone.modules()}
    return [part for part in model.modules() if isinstance(part, _BatchNorm) and part not in still]


def train_norms(norms: Iterable[nn.Module], samples: int) -> None:
    """Set the mode of the batch norms for a batch.

    A batch of one sample has no variance, so it uses the running statistics without changing them.
    """
    for norm in norms:
        norm.train(samples > 1)


def sgd(parameters: Iterable[nn.Parameter], hyper: LocalHyper) -> SGD:
    return SGD(parameters, lr=hyper.lr, momentum=hyper.momentum, weight_decay=hyper.weight_decay)


def embed(model: Net, x: Tensor) -> Tensor:
    """Return the embeddings [N, embedding_size] of all samples, in evaluation mode."""
    return in_batches(model, model.embed, x)


@torch.no_grad()
def in_batches(model: nn.Module, function: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """Return `function(x)`, computed in batches, in evaluation mode and without gradient; the mode is restored."""
    with _mode(model, training=False):
        return torch.cat([function(piece) for piece in torch.split(x, BATCH)])


def _batches(data: Samples, size: int, generator: torch.Generator) -> Iterator[tuple[Tensor, Tensor]]:
    order = torch.randperm(len(data.y), generator=generator)
    for start in range(0, len(order), size):
        rows = order[start : start + size]
        yield data.x[rows], data.y[rows]


@contextmanager
def _mode(model: nn.Module, training: bool) -> Iterator[None]:
    before = model.training
    model.train(training)
    try:
        yield
    finally:
        model.train(before)
