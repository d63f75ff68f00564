"""The [dp] table: what the releases of a run may give away about one device, or about one sample of a device."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Final, Literal, TypeAlias

from protofleet.protocol.settings.bounds import Rounds, Within
from protofleet.protocol.settings.reader import demand_within
from protofleet.protocol.settings.secagg import MOST_DEVICES

LARGEST_EPSILON: Final = 30.0  # A larger epsilon protects nothing.
LARGEST_CLIP: Final = 1e6
PrivacyUnit: TypeAlias = Literal["device", "sample"]
Epsilon = Annotated[float, Within(0, LARGEST_EPSILON, above=True)]
Delta = Annotated[float, Within(0, 0.1, above=True)]
Clip = Annotated[float, Within(0, LARGEST_CLIP, above=True)]
Colluders = Annotated[int, Within(0, MOST_DEVICES - 1)]


@dataclass(frozen=True)
class DpSettings:
    """The [dp] table: the differential privacy of the updates."""

    unit: PrivacyUnit
    """Protected unit, `device` (all training samples of a device together) or `sample` (one training sample)."""
    epsilon: Epsilon
    """Largest epsilon of all releases of a device together."""
    delta: Delta
    """Delta of this epsilon; it must be at most 1 / devices, or at most 1 / samples of each device."""
    clip: Clip
    """Largest length of the change of all weights, or of all rows of classes, in a round with `device`, and of the
    features of one sample with `sample`.
    """
    rounds: Rounds
    """Number of updates for which a device may release numbers, also when a round begins again; the noise is made for
    this number.
    """
    colluders: Colluders = 0
    """Number of devices that may tell others their part of the noise, in a run with `secagg`."""

    def __post_init__(self) -> None:
        demand_within(self)
