"""The verdicts on updates.

A verdict is final: if an update arrives again later, it gets the verdict of its first arrival.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from protofleet.protocol.wire.reasons import Problem, Reason

# The problems that updates have if the broadcast was poisoned: values that are too large or not finite, or a
# loss that cannot be believed.
BROKEN = frozenset({Reason.NOT_FINITE, Reason.OUT_OF_BOUNDS, Reason.BAD_CLAIM})


@dataclass
class Verdicts:
    # Phase -> device -> base of its accepted update, in the open round.
    accepted: dict[str, dict[str, bytes]] = field(default_factory=dict)
    # Device -> reason why its update for the open task was refused.
    refused: dict[str, Problem] = field(default_factory=dict)
    # Devices whose update was refused in any attempt at the open round.
    suspects: set[str] = field(default_factory=set)
    # Device -> the last round in which its updates were accepted, and the bases of these updates by phase.
    last: dict[str, tuple[int, dict[str, bytes]]] = field(default_factory=dict)

    def begin_round(self, accepted: Mapping[str, Mapping[str, bytes]]) -> None:
        self.accepted = {phase: dict(devices) for phase, devices in accepted.items()}
        self.refused, self.suspects = {}, set()

    def end_round(self, number: int) -> None:
        for phase, devices in self.accepted.items():
            for device, base in devices.items():
                known = self.last.get(device)
                phases = known[1] if known and known[0] == number else {}
                self.last[device] = (number, {**phases, phase: base})
        self.begin_round({})

    def accept(self, phase: str, device: str, base: bytes) -> None:
        self.accepted.setdefault(phase, {})[device] = base

    def refuse(self, device: str, problem: Problem) -> None:
        self.refused[device] = problem
        self.suspects.add(device)

    @property
    def broken(self) -> Mapping[str, Problem]:
        """Return the problem of each device whose update for the open task holds no usable numbers."""
        return {device: why for device, why in self.refused.items() if why.reason in BROKEN}

    def known(self, phase: str, base: bytes) -> set[str]:
        """Return the devices with an accepted update for exactly this task of the open round."""
        return {device for device, known in self.accepted.get(phase, {}).items() if known == base}

    def has_accepted(self, device: str, phase: str, base: bytes) -> bool:
        """Return whether the device's update for exactly this task of the open round was accepted."""
        return self.accepted.get(phase, {}).get(device) == base

    def was_accepted(self, device: str, number: int, phase: str, base: bytes) -> bool:
        """Return whether the device's update for this task of an earlier round was accepted.

        Only the newest updates are known here. That is enough, because a device repeats only its newest
        update, until it has a receipt.
        """
        known = self.last.get(device)
        return known is not None and known[0] == number and known[1].get(phase) == base

    def words_of_the_refused(self) -> str:
        words = [f"{device} ({why.message})" for device, why in sorted(self.refused.items())]
        return f"; refused: {', '.join(words)}" if words else ""
