"""What has been said of answers. It is final: a repetition gets the same verdict, however often and late it comes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from protofleet.protocol.wire.reasons import Problem, Reason

# What comes of a broadcast that is poisoned: numbers that are none, too large ones, a loss beyond belief.
BROKEN = frozenset({Reason.NOT_FINITE, Reason.OUT_OF_BOUNDS, Reason.BAD_CLAIM})


@dataclass
class Verdicts:
    # Of the round: phase -> device -> base.
    accepted: dict[str, dict[str, bytes]] = field(default_factory=dict)
    refused: dict[str, Problem] = field(default_factory=dict)  # of the open ask
    suspects: set[str] = field(default_factory=set)  # refused in any attempt at the round
    # Of each device: round, its bases.
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
        """Of the open ask, whose answers hold no numbers that can be used."""
        return {device: why for device, why in self.refused.items() if why.reason in BROKEN}

    def known(self, phase: str, base: bytes) -> set[str]:
        """Who has answered this very question of the round in hand."""
        return {device for device, known in self.accepted.get(phase, {}).items() if known == base}

    def has_accepted(self, device: str, phase: str, base: bytes) -> bool:
        """Its answer to this very question of the round in hand."""
        return self.accepted.get(phase, {}).get(device) == base

    def was_accepted(self, device: str, number: int, phase: str, base: bytes) -> bool:
        """In an earlier round: each device says its newest answer until it has a receipt, and no older one."""
        known = self.last.get(device)
        return known is not None and known[0] == number and known[1].get(phase) == base

    def words_of_the_refused(self) -> str:
        words = [f"{device} ({why.message})" for device, why in sorted(self.refused.items())]
        return f"; refused: {', '.join(words)}" if words else ""
