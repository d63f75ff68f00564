"""The messages of a run that its coordinator has seen, and the samples of its devices.

The exchanges of `Observed` have no samples. They are read from the answers that a coordinator has kept, from an
experiment that is run again, or from the folder of a device. `Truth` has the samples of one device, so it exists only
in the last two cases. `coordinator/spool/kept_rounds.py` describes the files of kept answers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from protofleet.methods.contract.base import ClientHalf, Samples
from protofleet.methods.contract.plan import Plan
from protofleet.protocol.wire.messages import Arrays

# "kept": the answers that a coordinator has kept; "repeated": an experiment that was run again; "device": the last
# answers in the folder of one device.
Source = Literal["kept", "repeated", "device"]


@dataclass(frozen=True)
class Exchange:
    """The broadcast of one task and the answer of one device to it, after the decoding of a codec."""

    device: str
    number: int  # Number of the round.
    phase: str
    broadcast: Arrays
    answer: Arrays
    examples: int  # Number of samples that the device states.


@dataclass(frozen=True)
class Truth:
    """The samples of one device, and samples of the same domain that no device has used."""

    device: str
    domain: str
    samples: Samples  # The training samples of the device.
    # Samples of the domain in which no device has trained. They need not have the class mix of `samples`.
    held_out: Samples
    # The client half after the last answer, before any evaluation; None if it cannot be rebuilt.
    half: ClientHalf | None = None


@dataclass(frozen=True)
class Observed:
    """All exchanges that were kept, in the order of rounds, phases and devices."""

    plan: Plan
    source: Source
    exchanges: Sequence[Exchange]
    # Numbers of samples of each class that the devices state when they join; empty if the method does not need them.
    counts: Mapping[str, Sequence[int]] = field(default_factory=dict)
    truths: Mapping[str, Truth] = field(default_factory=dict)  # By device; empty if no samples are there.

    @property
    def devices(self) -> list[str]:
        """Return the names of the devices whose answers are there."""
        return sorted({one.device for one in self.exchanges})

    def of(self, device: str) -> list[Exchange]:
        """Return the exchanges of one device, in the order in which they took place."""
        return [one for one in self.exchanges if one.device == device]
