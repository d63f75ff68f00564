"""The steps of local SGD: their number, and their number with momentum."""

from __future__ import annotations

import math


def steps_of(epochs: int, batch: int, examples: int) -> int:
    """Return how many steps a device takes in a round; a device without examples counts as one step."""
    return max(1, epochs * math.ceil(examples / batch))


def effective_steps(steps: int, momentum: float) -> float:
    """Return a of FedNova: by how many learning rates one constant gradient moves the weights in these steps.

    Without momentum, the result is the number of steps. With momentum rho, step k of n steps counts as
    1 + rho + ... + rho^(n-k). The sum over all steps is computed by doubling their number. So there is no difference
    of almost equal numbers if rho is almost 1. Only sums and products are rounded, so the server and a device with
    another processor compute the same bits.
    """
    done, total, last, power = (
        0,
        0.0,
        0.0,
        1.0,
    )
    # `last` is 1 + rho + ... + rho^(done-1), by which the total grows with step `done`. `power` is rho^done.
    for bit in f"{steps:b}":
        total, last = total + done * last + power * total, last + power * last
        done, power = 2 * done, power * power
        if bit == "1":
            done, last = done + 1, last + power
            total, power = total + last, power * momentum
    return total
