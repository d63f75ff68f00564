"""The verdicts on answers. A verdict is final.

A repeated answer gets the same verdict, however often and however late it comes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from protofleet.protocol.wire.reasons import Problem, Reason

# The problems that a poisoned broadcast causes in answers: values that are not finite or too large, or a
# loss that cannot be believed.
BROKEN = frozenset({Reason.NOT_FINITE, Reason.OUT_OF_BOUNDS, Reason.BAD_CLAIM})


@dataclass
class Verdicts:
    # Accepted answers of the open round: phase -> device -> base.
    accepted: dict[str, dict[str, bytes]] = field(default_factory=dict)
    refused: dict[str, Problem] = field(default_factory=dict)  # by device, refused answers to the open ask
    suspects: set[str] = field(default_factory=set)  # devices with a refused answer in any attempt at it
    # Newest accepted answers: device -> its round, and phase -> base in that round.
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
        """Return the devices whose answers to the open ask hold no usable numbers, with their problems."""
        return {device: why for device, why in self.refused.items() if why.reason in BROKEN}

    def known(self, phase: str, base: bytes) -> set[str]:
        """Return the devices that have answered exactly this question of the open round."""
        return {device for device, known in self.accepted.get(phase, {}).items() if known == base}

    def has_accepted(self, device: str, phase: str, base: bytes) -> bool:
        """Return whether the device's answer to exactly this question of the open round was accepted."""
        return self.accepted.get(phase, {}).get(device) == base

    def was_accepted(self, device: str, number: int, phase: str, base: bytes) -> bool:
        """Return whether the device's answer to this question of an earlier round was accepted.

        A device sends its newest answer until it has a receipt, and it sends no older answer.
        """
        known = self.last.get(device)
        return known is not None and known[0] == number and known[1].get(phase) == base

    def words_of_the_refused(self) -> str:
        words = [f"{device} ({why.message})" for device, why in sorted(self.refused.items())]
        return f"; refused: {', '.join(words)}" if words else ""
