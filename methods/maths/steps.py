"""The steps of local SGD: their number, their number with momentum, and the mean gradient that they show."""

from __future__ import annotations

import math

from torch import Tensor


def steps_of(epochs: int, batch: int, examples: int) -> int:
    """Return how many steps a device takes in a round."""
    return epochs * math.ceil(examples / batch)


def effective_steps(steps: int, momentum: float) -> float:
    """Return a of FedNova: by how many learning rates one constant gradient moves the weights in these steps.

    Without momentum, the result is the number of steps. With momentum rho, step k of n steps counts as
    1 + rho + ... + rho^(n-k). The sum over all steps is computed by doubling their number. So there is no difference
    of almost equal numbers if rho is almost 1. Only sums and products are rounded, so the server and a device with
    another processor compute the same bits.
    """
    done, total, last, power = 0, 0.0, 0.0, 1.0
    # `last` is 1 + rho + ... + rho^(done-1), by which the total grows with step `done`. `power` is rho^done.
    for bit in f"{steps:b}":
        total, last = total + done * last + power * total, last + power * last
        done, power = 2 * done, power * power
        if bit == "1":
            done, last = done + 1, last + power
            total, power = total + last, power * momentum
    return total


def mean_gradient(start: Tensor, end: Tensor, lr: float, steps: float) -> Tensor:
    """Return the mean gradient of the steps between two models, in float64, because the difference is small."""
    return (start.double() - end.double()) / (lr * steps)
