"""The result of an attack: a figure with its attacker, interval and control, or the reason why there is no figure."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Final, Literal, TypeAlias, get_args

import numpy as np
from numpy.typing import NDArray

from protofleet.lab.leakage.maths.intervals import Figure
from protofleet.lab.leakage.maths.membership import Scores

Numbers: TypeAlias = NDArray[np.float64]
Labels: TypeAlias = NDArray[np.int64]

# A0: one upload alone. A1: all messages of the run, and the protocol. A2: A1 with samples of the domain that no
# device has used. A3: A2 with the network of this device.
Attacker = Literal["A0", "A1", "A2", "A3"]
ATTACKERS: Final[tuple[Attacker, ...]] = get_args(Attacker)
NO_TRUTH: Final = "no ground truth: not measured; --replay computes it"


@dataclass(frozen=True)
class Finding:
    """One row of a report of leakage.

    A row is struck out if its control is not where it must be, because then its figure says nothing.
    """

    attack: str  # Name of the attack, such as "membership by loss".
    kind: str  # Kind of the arrays that are attacked.
    measure: str  # Name and unit of the figure, such as "AUC".
    attacker: Attacker = "A1"
    device: str = ""  # "" means all devices together.
    figure: Figure = field(default_factory=lambda: Figure(math.nan))
    baseline: float = math.nan  # The figure of an attacker who has not seen the upload.
    control: Figure = field(default_factory=lambda: Figure(math.nan))
    control_name: str = ""
    sound: bool = True  # Whether the control is where it must be.
    gates: bool = False  # Whether the figure is reliable enough to stop a release.
    note: str = ""
    unmeasured: str = ""  # The reason why there is no figure.


@dataclass(frozen=True)
class MembershipScores:
    """The scores of one device's samples under one attack; devices are compared and pooled later."""

    attack: str
    kind: str
    attacker: Attacker
    scores: Scores
    note: str = ""
    measure: str = "AUC"

    @property
    def device(self) -> str:
        """Return the name of the device."""
        return self.scores.device


@dataclass(frozen=True)
class ImageScores:
    """The closeness of images that an attack has made to one device's images, image by image.

    A larger value is closer. Devices are compared and pooled later.
    """

    attack: str
    kind: str
    measure: str
    attacker: Attacker
    device: str
    values: Numbers  # [N]: of each image of the device.
    classes: Labels  # [N]
    baseline: Numbers  # [N]: of an attacker who has not seen the upload.
    control: Numbers  # [M]: of images that do not belong together.
    control_classes: Labels  # [M]
    control_name: str
    gates: bool = False
    note: str = ""


@dataclass(frozen=True)
class Unmet:
    """The condition of an attack that an answer does not meet."""

    attack: str
    kind: str
    reason: str


Result: TypeAlias = Finding | MembershipScores | ImageScores | Unmet
