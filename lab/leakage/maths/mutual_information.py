"""A lower bound of the mutual information of two sets of rows in nats (InfoNCE). It is shown, and gates nothing.

A critic learns on one part of the pairs, is chosen on a second part, and gives the value on a third part. A critic
that was not chosen on other pairs has given -5 nats for independent rows. The bound is at least 0, the value of a
constant critic, and at most the log of the number of pairs in a batch. Near it, the value says only "saturated".
The bound is loose: for Gaussian pairs of 2.88 nats it finds about 1. A map that can be undone with two known numbers
takes away no information, so a smaller bound says something of the estimator, too.
"""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass
from typing import Final

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from protofleet.lab.leakage.maths.intervals import Figure
from protofleet.lab.leakage.maths.recovery import Labels, Numbers, clustered

DIMENSIONS: Final = 32  # Numbers to which rows are reduced by their principal components.
HIDDEN: Final = 64
STEPS: Final = 400
LOOK: Final = 20  # Steps between two looks at the second part.
BATCH: Final = 64
RATE: Final = 2e-3
GAUSSIAN_WIDTH: Final = 4
CORRELATION: Final = 0.9  # Of each number in a Gaussian pair.
SATURATED: Final = 0.9  # Share of the cap from which on a value says only that it is large.


@dataclass(frozen=True)
class Bound:
    """A lower bound in nats, and the largest value that it could have."""

    nats: float
    cap: float
    low: float = math.nan  # Interval of the value over clusters of the pairs of the third part.
    high: float = math.nan

    @property
    def figure(self) -> Figure:
        """Return the value with its interval."""
        return Figure(self.nats, self.low, self.high)

    @property
    def saturated(self) -> bool:
        """Return whether the value is so near to the cap that it says only "large"."""
        return self.nats >= SATURATED * self.cap


class Critic(nn.Module):
    """A critic that scores each pair of rows [N, N]."""

    def __init__(self, width: int, other: int) -> None:
        super().__init__()
        self.one = nn.Sequential(nn.Linear(width, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, DIMENSIONS))
        self.other = nn.Sequential(nn.Linear(other, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, DIMENSIONS))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        scores: Tensor = self.one(x) @ self.other(y).T / math.sqrt(DIMENSIONS)
        return scores


def mutual_information(x: Tensor, y: Tensor, seed: int = 0, clusters: Labels | None = None) -> Bound:
    """Return the bound for pairs of rows x [N, A] and y [N, B], with an interval over the clusters [N]."""
    generator = torch.Generator().manual_seed(seed)
    order = torch.randperm(len(x), generator=generator)
    x, y = reduced(x.double())[order].float(), reduced(y.double())[order].float()
    learn, choose = round(0.6 * len(x)), round(0.8 * len(x))
    batch = min(BATCH, len(x) - choose)
    cap = math.log(batch)
    critic = chosen_critic(x[:choose], y[:choose], learn, batch, generator)
    values = pair_values(critic, x[choose:], y[choose:], batch)
    groups = np.arange(len(x)) if clusters is None else clusters[order.numpy()]
    found = clustered(values, groups[choose:][: len(values)])
    ends = (0.0, cap) if math.isnan(found.low) else (found.low, found.high)  # NaN: there is only one cluster.
    value, low, high = (min(max(0.0, one), cap) for one in (found.value, *ends))
    return Bound(value, cap, low, high)


def gaussian_control(rows: int, seed: int = 0) -> tuple[float, Bound]:
    """Return the true information of Gaussian pairs, and the bound that is found for this number of them."""
    generator = torch.Generator().manual_seed(seed)
    x, noise = (torch.randn(rows, GAUSSIAN_WIDTH, generator=generator) for _ in range(2))
    y = CORRELATION * x + math.sqrt(1 - CORRELATION**2) * noise
    return -GAUSSIAN_WIDTH / 2 * math.log(1 - CORRELATION**2), mutual_information(x, y, seed)


def reduced(rows: Tensor) -> Tensor:
    """Return the first principal components of the rows, each with variance 1."""
    centred = rows - rows.mean(0)
    directions, values, _ = torch.linalg.svd(centred, full_matrices=False)
    kept = values[:DIMENSIONS] > 1e-9 * values[0].clamp(min=1e-12)
    found: Tensor = directions[:, :DIMENSIONS][:, kept] * math.sqrt(len(rows))
    return found


def chosen_critic(x: Tensor, y: Tensor, learn: int, batch: int, generator: torch.Generator) -> Critic | None:
    """Train on the first `learn` pairs, and return the best critic on the others; None is the constant one."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(int(torch.randint(1 << 31, (), generator=generator)))
        critic = Critic(x.shape[1], y.shape[1])
    optimizer = torch.optim.Adam(critic.parameters(), lr=RATE)
    best, found = 0.0, None
    for step in range(1, STEPS + 1):
        rows = torch.randperm(learn, generator=generator)[:batch]
        optimizer.zero_grad()
        loss = F.cross_entropy(critic(x[rows], y[rows]), torch.arange(len(rows)))
        torch.autograd.backward(loss)
        optimizer.step()
        if step % LOOK == 0 and (value := info_nce(critic, x[learn:], y[learn:], batch)) > best:
            best, found = value, copy.deepcopy(critic)
    return found


def info_nce(critic: Critic | None, x: Tensor, y: Tensor, batch: int) -> float:
    """Return the mean bound over whole batches; a constant critic has 0."""
    values = pair_values(critic, x, y, batch)
    return float(values.mean()) if len(values) else 0.0


@torch.no_grad()
def pair_values(critic: Critic | None, x: Tensor, y: Tensor, batch: int) -> Numbers:
    """Return the part of each pair in the bound, for the pairs of whole batches."""
    starts = range(0, len(x) - batch + 1, batch)
    if critic is None:
        return np.zeros(len(starts) * batch)
    losses = [
        F.cross_entropy(critic(x[at : at + batch], y[at : at + batch]), torch.arange(batch), reduction="none")
        for at in starts
    ]
    return np.concatenate([math.log(batch) - one.double().numpy() for one in losses] or [np.zeros(0)])
