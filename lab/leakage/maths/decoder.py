"""A small network that makes images from rows, such as features or means of features.

It learns on images that no device has sent. It begins as the ridge map of recovery.py, and learns what a linear map
misses. A part of the images chooses the step at which it is kept, so a network that only remembers its images is not
kept. Its figures are measured on other images than both parts. It is shown, and gates nothing.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Final, TypeAlias

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from protofleet.lab.leakage.maths.recovery import Ridge, fitted_ridge

Numbers: TypeAlias = NDArray[np.float64]
Labels: TypeAlias = NDArray[np.int64]

HIDDEN: Final = 256
STEPS: Final = 600
LOOK: Final = 20  # Steps between two looks at the part that chooses.
PATIENCE: Final = 8  # Looks without a better network after which training ends.
BATCH: Final = 64
RATE: Final = 2e-3
DECAY: Final = 1e-4
CHOOSING: Final = 0.2  # Share of the images that choose the step.
GROUP: Final = 32  # Most samples in a mean of the attacker's own samples.


@dataclass(frozen=True)
class Decoder:
    """A map from rows to pixels: a linear map, and a network for the rest, if one was better than none."""

    linear: Ridge
    network: nn.Module | None
    centre: Numbers
    scale: Numbers

    @torch.no_grad()
    def __call__(self, rows: Numbers) -> Numbers:
        """Return the pixels [N, P] of rows [N, D]."""
        found = self.linear(rows)
        if self.network is not None:
            found = found + self.network(scaled(rows, self.centre, self.scale)).double().numpy()
        return np.clip(found, -1, 1)


def scaled(rows: Numbers, centre: Numbers, scale: Numbers) -> Tensor:
    return torch.from_numpy((rows - centre) / scale).float()


def fitted_decoder(rows: Numbers, pixels: Numbers, classes: Labels | None = None, seed: int = 0) -> Decoder:
    """Learn on four fifths of the rows and their pixels; the other fifth chooses the step.

    With `classes`, both parts also have means of samples of one class, because a class row is such a mean.
    """
    order = np.random.default_rng(seed).permutation(len(rows))
    parts = np.split(order, [round(CHOOSING * len(rows))])
    held, known = ((rows[part], pixels[part]) for part in parts)
    if classes is not None:
        held, known = (
            with_means(*values, classes[part], seed)
            for values, part in zip((held, known), parts, strict=True)
        )
    linear = fitted_ridge(*known, seed)
    centre, scale = known[0].mean(0), np.maximum(known[0].std(0), 1e-6)
    (x, targets), (held_x, held_targets) = (
        (scaled(of, centre, scale), torch.from_numpy(to - linear(of)).float()) for of, to in (known, held)
    )
    return Decoder(linear, chosen_network(x, targets, held_x, held_targets, seed), centre, scale)


def chosen_network(
    x: Tensor, targets: Tensor, held: Tensor, held_targets: Tensor, seed: int
) -> nn.Module | None:
    """Return the network at the step that is best on the held rows; None if no step is better than no network."""
    generator = torch.Generator().manual_seed(seed)
    network = new_network(x.shape[1], targets.shape[1], seed)
    optimizer = torch.optim.AdamW(network.parameters(), lr=RATE, weight_decay=DECAY)
    best, found, last = float(held_targets.square().mean()), None, 0
    for step in range(1, STEPS + 1):
        places = torch.randint(len(x), (min(BATCH, len(x)),), generator=generator)
        optimizer.zero_grad()
        torch.autograd.backward(F.mse_loss(network(x[places]), targets[places]))
        optimizer.step()
        if step % LOOK == 0 and (error := missed(network, held, held_targets)) < best:
            best, found, last = error, copy.deepcopy(network), step
        if step - last >= PATIENCE * LOOK:
            break
    return found


def new_network(width: int, pixels: int, seed: int) -> nn.Module:
    """Return a network whose output is 0 at first."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        last = nn.Linear(HIDDEN, pixels)
        layers = (nn.Linear(width, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, HIDDEN), nn.ReLU(), last)
    nn.init.zeros_(last.weight)
    nn.init.zeros_(last.bias)
    return nn.Sequential(*layers)


@torch.no_grad()
def missed(network: nn.Module, x: Tensor, targets: Tensor) -> float:
    return float((network(x) - targets).square().mean())


def with_means(rows: Numbers, pixels: Numbers, classes: Labels, seed: int = 0) -> tuple[Numbers, Numbers]:
    """Return the rows and pixels of samples, and the means of as many random groups of one class."""
    rng = np.random.default_rng(seed)
    places = [
        rng.choice(np.flatnonzero(classes == label), rng.integers(2, GROUP + 1))
        for label in rng.permutation(classes)
    ]
    means = [np.stack([values[group].mean(0) for group in places]) for values in (rows, pixels)]
    return np.vstack([rows, means[0]]), np.vstack([pixels, means[1]])
