"""The part of the round machine that other modules may read. Only the run passes events to the machine."""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from typing import Protocol

from protofleet.coordinator.round.events import Stage
from protofleet.coordinator.round.policy import Policy


class MachineReader(Protocol):
    @property
    def policy(self) -> Policy: ...

    @property
    def rounds(self) -> int: ...

    @property
    def round(self) -> int: ...

    @property
    def attempt(self) -> int: ...

    @property
    def stage(self) -> Stage: ...

    @property
    def asked(self) -> str: ...

    @property
    def base(self) -> bytes: ...

    @property
    def is_last_evaluation(self) -> bool: ...

    @property
    def next_round_at(self) -> float: ...

    @property
    def roster(self) -> AbstractSet[str]: ...

    @property
    def cohort(self) -> tuple[str, ...]: ...

    @property
    def answered(self) -> AbstractSet[str]: ...

    @property
    def waited_for(self) -> AbstractSet[str]: ...

    @property
    def kept(self) -> AbstractSet[str]: ...

    @property
    def left_to_ask(self) -> AbstractSet[str]: ...

    @property
    def least(self) -> int: ...

    @property
    def evaluating(self) -> bool: ...

    @property
    def recipients(self) -> tuple[str, ...]: ...

    def expects_late(self, device: str, round: int, phase: str, base: bytes) -> bool: ...

    def counts_on(self, device: str) -> bool: ...

    def was_asked(self, device: str) -> bool: ...
