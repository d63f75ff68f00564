"""Sums over the samples of a device, which may be released with noise for each sample.

Noise protects a sample only if the sample changes nothing but its own row. So a method can have these sums only if
its features do not depend on the training samples: the network is as the run begins, and nothing is trained. If a
network was trained on the sample, the rows of all other samples carry the sample too, and no noise on the sums hides
it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Protocol

from torch import Tensor

SUMS: Final = "sums"  # Name of the array with the sums; it stays on the device.
SUMS_PHASE: Final = "describe"  # The phase in which a method sends the arrays that are made of its sums.


@dataclass(frozen=True)
class SumNoise:
    """The noise on the sums in each reply. It follows from the plan, so the server half may use it."""

    clip: float  # Largest length of the features of one sample (`dp.clip`).
    # Deviation of the noise on each number of the vector, or the largest one that it may have.
    deviation: float


class SampleSums(Protocol):
    """The sums of a method: one vector, and the arrays of the update that are made from the vector."""

    @property
    def numbers(self) -> int:
        """Return the count of numbers in the vector."""
        ...

    @property
    def sensitivity(self) -> float:
        """Return the largest length of the part of one sample in the vector."""
        ...

    @property
    def largest(self) -> float:
        """Return the largest absolute value of a number in the part of one sample."""
        ...

    def vector(self, z: Tensor, y: Tensor) -> Tensor:
        """Return the sum [L] over the samples with the features z [N, D] and the classes y [N], in float64."""
        ...

    def payload(self, vector: Tensor, samples: int) -> dict[str, Tensor]:
        """Return the arrays of an update from the vector with noise.

        `samples` is the number of samples that the device states. Nothing else about the samples is used.
        """
        ...

    def samples(self, vector: Tensor) -> int:
        """Return the number of samples, and at least 1, from the counts with noise in the vector."""
        ...
