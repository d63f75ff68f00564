"""A task of an attempt: the updates are steps of a masked sum, and each device may get bytes of its own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from protofleet.methods.contract.base import Ask, Payload
from protofleet.protocol.privacy.accountant import Noise
from protofleet.protocol.wire.reasons import Problem


@dataclass(frozen=True, slots=True)
class SumAsk(Ask):
    """A task that is a step of a masked sum."""

    personal: Mapping[str, bytes] = field(default_factory=dict)  # device -> bytes for this device only
    most_personal: int = 0  # bytes that a task of this phase, or of a later step, has for one device only
    least: int = 0  # fewest updates with which the phase closes
    seconds: float = 0.0  # seconds that the devices have; 0 means policy.patience_seconds
    # True if a device that has answered takes part in no other attempt of the round.
    final: bool = False
    # Function that returns why the update of a device cannot be used, or None.
    verify: Callable[[str, Payload], Problem | None] = field(default=lambda device, payload: None, repr=False)
    noise: Noise | None = None  # the noise that the devices share, if the updates of this step have it


def most_personal(ask: Ask | None) -> int:
    """Return how many bytes for one device only the packets of the broker must have room for."""
    return ask.most_personal if isinstance(ask, SumAsk) else 0
