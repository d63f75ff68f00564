"""Images and labels from the gradient of a small batch. The inversion of gradients is shown, and gates nothing.

closed form   A first linear layer computes W x + b. The gradient of row i of W is sum_n d_ni x_n, and that of b_i is
              sum_n d_ni. If one image of the batch passes through unit i, the quotient of both is this image. The
              scale of the gradient does not count, so the quotient also holds for a few steps, and for clipping.
labels        The gradient of the head's bias is the mean of (probability - 1 if it is the label). So a negative
              entry shows a class of the batch, and the mean probability of other images tells how often.
optimisation  Images are changed until their gradient has the direction of the one that was sent, layer by layer
              (Geiping et al., NeurIPS 2020, who take the cosine of all layers together). A term for smoothness keeps
              noise out of the images. If it fails, another optimisation may still find the images.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

Numbers: TypeAlias = NDArray[np.float64]
Labels: TypeAlias = NDArray[np.int64]
# Images [N, ...] -> the gradient of each layer for these images, which can be differentiated again.
GradientOf: TypeAlias = Callable[[Tensor], Sequence[Tensor]]

STEPS: Final = 400
RATE: Final = 0.1
SMOOTHNESS: Final = 1e-2
TRIES: Final = 2  # Starts of an optimisation; the one whose gradient fits best is kept.
DROPS: Final = (3 / 8, 5 / 8, 7 / 8)  # Shares of the steps after which the rate is divided by 10.
SMALLEST: Final = 1e-12
SIGNIFICANT: Final = 1e-4  # Share of the largest entry below which an entry of a bias is only rounding.


def inputs_of_first_layer(weight: Numbers, bias: Numbers) -> Numbers:
    """Return candidates for the inputs of a linear layer from the gradients of its weight [H, D] and bias [H]."""
    active = np.abs(bias) > SIGNIFICANT * np.abs(bias).max(initial=0.0)
    found: Numbers = np.clip(weight[active] / bias[active][:, None], -1, 1)
    return found


def labels_from_bias(gradient: Numbers, images: int, guess: Numbers) -> Labels:
    """Return the labels of a batch of this number of images from the gradient [C] of the head's bias.

    `guess` [C] is the mean probability of each class for other images. A class with a negative entry is certainly in
    the batch. The further labels are those that are most frequent if the batch has the probabilities of `guess`.
    """
    present = [int(k) for k in np.argsort(gradient) if gradient[k] < 0][:images]
    left = images * (guess - gradient)
    left[present] -= 1
    while len(present) < images:
        present.append(int(left.argmax()))
        left[present[-1]] -= 1
    return np.sort(np.array(present, dtype=np.int64))


@dataclass(frozen=True)
class Matched:
    """Images whose gradient fits one that was sent."""

    images: Tensor  # [N, ...]
    distance: float  # 1 minus the mean cosine of the layers.


def matched_images(
    gradient_of: GradientOf, sent: Sequence[Tensor], shape: Sequence[int], steps: int = STEPS, seed: int = 0
) -> Matched:  # fmt: skip
    """Return images [N, ...] of this shape whose gradient has the direction of the one that was sent."""
    starts = (torch.randn(*shape, generator=torch.Generator().manual_seed(seed + k)) for k in range(TRIES))
    return min(
        (_optimised(gradient_of, sent, start, steps) for start in starts), key=lambda one: one.distance
    )


def _optimised(gradient_of: GradientOf, sent: Sequence[Tensor], start: Tensor, steps: int) -> Matched:
    images = (start / start.abs().max()).requires_grad_()
    optimizer = torch.optim.Adam([images], lr=RATE)
    drops = [round(share * steps) for share in DROPS]
    for step in range(steps):
        optimizer.param_groups[0]["lr"] = RATE * 0.1 ** sum(step >= one for one in drops)
        loss = distance(gradient_of(images), sent) + SMOOTHNESS * roughness(images)
        # The sign makes steps as long for layers with small gradients, as in the authors' code.
        images.grad = torch.autograd.grad(loss, images)[0].sign()
        optimizer.step()
        with torch.no_grad():
            images.clamp_(-1, 1)
    return Matched(images.detach(), float(distance(gradient_of(images), sent).detach()))


def distance(one: Sequence[Tensor], other: Sequence[Tensor]) -> Tensor:
    """Return 1 minus the mean cosine of the layers. Layers without a gradient do not count."""
    pairs = [
        (a.flatten(), b.flatten()) for a, b in zip(one, other, strict=True) if float(b.norm()) > SMALLEST
    ]
    return 1 - torch.stack([F.cosine_similarity(a, b, dim=0) for a, b in pairs]).mean()


def roughness(images: Tensor) -> Tensor:
    """Return the mean difference of neighbouring numbers of a sample along its last axes; the first is a channel."""
    axes = range(2, images.dim())
    return sum((images.diff(dim=axis).abs().mean() for axis in axes), start=torch.zeros(()))


def nearest_candidates(candidates: Numbers, true: Numbers) -> Numbers:
    """Return for each true row the nearest candidate. The control of an attack must choose in the same way."""
    squares = np.square(candidates).sum(1)[None, :] - 2 * true @ candidates.T
    found: Numbers = candidates[squares.argmin(1)]
    return found


def gradient_sent(start: Tensor, end: Tensor, rate: float, steps: float, decay: float) -> Tensor:
    """Return the mean gradient of the steps between two arrays of weights, without their decay."""
    return (start.double() - end.double()) / (rate * steps) - decay * start.double()


def cosine_of(one: Sequence[Tensor], other: Sequence[Tensor]) -> float:
    """Return the cosine of all layers together; NaN if one of them is 0."""
    a, b = (torch.cat([part.detach().flatten().double() for part in parts]) for parts in (one, other))
    lengths = float(a.norm() * b.norm())
    return float(a @ b) / lengths if lengths else math.nan
