"""The verdicts on updates.

A verdict is final: if an update arrives again later, it gets the verdict of its first arrival.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from protofleet.protocol.wire.reasons import Problem, Reason

# The problems that updates have if the broadcast was poisoned: values that are too large or not finite, or a
# loss that cannot be believed.
BROKEN = frozenset({Reason.NOT_FINITE, Reason.OUT_OF_BOUNDS, Reason.BAD_CLAIM})

NONE_LATE: Final[Mapping[str, int]] = {}


@dataclass
class Verdicts:
    # Phase -> device -> base of its accepted update, in the open round.
    accepted: dict[str, dict[str, bytes]] = field(default_factory=dict)
    # Device -> age in rounds of the task of its accepted update, for the late updates of a buffered round.
    late: dict[str, int] = field(default_factory=dict)
    # Device -> reason why its update for the open task was refused.
    refused: dict[str, Problem] = field(default_factory=dict)
    # Devices whose update was refused in any attempt at the open round.
    suspects: set[str] = field(default_factory=set)
    # Device -> the round of the last tasks whose updates were accepted, and the bases of these updates by phase.
    last: dict[str, tuple[int, dict[str, bytes]]] = field(default_factory=dict)

    def begin_round(
        self, accepted: Mapping[str, Mapping[str, bytes]], late: Mapping[str, int] = NONE_LATE
    ) -> None:
        self.accepted = {phase: dict(devices) for phase, devices in accepted.items()}
        self.late = dict(late)
        self.refused, self.suspects = {}, set()

    def end_round(self, number: int) -> None:
        for phase, devices in self.accepted.items():
            for device, base in devices.items():
                known, task_round = self.last.get(device), number - self.late.get(device, 0)
                phases = known[1] if known and known[0] == task_round else {}
                self.last[device] = (task_round, {**phases, phase: base})
        self.begin_round({})

    def accept(self, phase: str, device: str, base: bytes, staleness: int = 0) -> None:
        self.accepted.setdefault(phase, {})[device] = base
        self.late.pop(device, None)
        if staleness:
            self.late[device] = staleness

    def newest_task(self, device: str, number: int) -> int:
        """Return the round of the newest task whose update was accepted; `number` is the open round."""
        if any(device in devices for devices in self.accepted.values()):
            return number - self.late.get(device, 0)
        return self.last[device][0] if device in self.last else 0

    def refuse(self, device: str, problem: Problem) -> None:
        self.refused[device] = problem
        self.suspects.add(device)

    @property
    def broken(self) -> Mapping[str, Problem]:
        """Return the problem of each device whose update for the open task holds no usable numbers."""
        return {device: why for device, why in self.refused.items() if why.reason in BROKEN}

    def known(self, phase: str, base: bytes) -> set[str]:
        """Return the devices with an accepted update for exactly this task of the open round, or a late update."""
        accepted = self.accepted.get(phase, {})
        return {device for device, known in accepted.items() if known == base or device in self.late}

    def has_accepted(self, device: str, phase: str, base: bytes, staleness: int = 0) -> bool:
        """Return whether the device's update for exactly this task counts in the open round.

        The task is `staleness` rounds old.
        """
        known = self.accepted.get(phase, {}).get(device)
        return known == base and self.late.get(device, 0) == staleness

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
