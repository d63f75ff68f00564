"""Random integers that are the same on every machine and in every release.

NumPy guarantees that the raw 64 bits of PCG64 and its seeding do not change. Its other functions (`integers`,
`permutation`, `dirichlet`, ...) may change with each release. The devices of one fleet may run different
releases, but they must agree on the sample indices of each device. So this module makes all draws from the raw
bits.
"""

from __future__ import annotations

import hashlib
import math
from typing import Final

import numpy as np
from numpy.typing import NDArray

Integers = NDArray[np.int64]

# Standard deviation of `noise`, the sum of four random bytes: sqrt(4 (256^2 - 1) / 12) = 147.8.
NOISE_ONE: Final = 148


class StableRandom:
    """A stream of random numbers that depends only on the arguments, which name its purpose.

    For example, StableRandom(seed, "mnist", "validation") chooses the validation samples of mnist.
    """

    def __init__(self, *purpose: object) -> None:
        name = "/".join(str(part) for part in purpose).encode()
        self._bits = np.random.PCG64(int.from_bytes(hashlib.sha256(name).digest()[:16], "big"))

    def below(self, limit: int, *shape: int) -> Integers:
        """Draw numbers from 0 to limit - 1.

        The probabilities of two numbers differ by a factor of at most 1 + limit / 2^32.
        """
        high = self.raw(math.prod(shape)) >> np.uint64(32)
        drawn: Integers = ((high * np.uint64(limit)) >> np.uint64(32)).astype(np.int64)
        return drawn.reshape(shape)

    def between(self, low: int, high: int, *shape: int) -> Integers:
        """Draw numbers from `low` to `high`, including both limits."""
        return low + self.below(high - low + 1, *shape)

    def permutation(self, n: int) -> Integers:
        """Draw a permutation of 0 .. n-1."""
        return np.argsort(self.raw(n), kind="stable").astype(np.int64)

    def noise(self, *shape: int) -> NDArray[np.int32]:
        """Draw numbers whose distribution is nearly normal, with mean 0 and standard deviation NOISE_ONE.

        Each number is the sum of four random bytes, minus the mean of the sum.
        """
        size = math.prod(shape)
        # Little-endian order is forced, so that the bytes have the same order on every machine.
        raw = self.raw((size + 1) // 2).astype("<u8").view(np.uint8)
        sums: NDArray[np.int32] = raw.reshape(-1, 4).sum(1, dtype=np.int32)[:size]
        sums -= 510
        return sums.reshape(shape)

    def log_gamma_draw(self, shape: float) -> float:
        """Draw the logarithm of a Gamma(shape) number (Marsaglia and Tsang, 2000).

        The logarithm is returned because for a shape such as 0.01 the number itself is often too small for floating
        point.
        """
        if shape < 1:
            return self.log_gamma_draw(shape + 1) + math.log(self._unit()) / shape
        d = shape - 1 / 3
        while True:
            x = self._normal()
            v = (1 + x / math.sqrt(9 * d)) ** 3
            if v > 0 and math.log(self._unit()) < x * x / 2 + d - d * v + d * math.log(v):
                return math.log(d * v)

    def _normal(self) -> float:
        return math.sqrt(-2 * math.log(self._unit())) * math.cos(2 * math.pi * self._unit())

    def _unit(self) -> float:
        """Draw a number in (0, 1], so that its logarithm exists."""
        return (int(self.raw(1)[0] >> np.uint64(11)) + 1) / 2**53

    def raw(self, n: int) -> NDArray[np.uint64]:
        return np.asarray(self._bits.random_raw(n), dtype=np.uint64)
