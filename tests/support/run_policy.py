"""A policy together with the number of rounds for which a test's run keeps it."""

from dataclasses import dataclass

from protofleet.coordinator.round.policy import Policy


@dataclass(frozen=True)
class RunPolicy(Policy):
    rounds: int = 2
