"""The decision which answers are fetched, and the faults that make an answer unusable."""

from __future__ import annotations

from typing import Final, Protocol

from protofleet.protocol.wire.messages import Update
from protofleet.protocol.wire.reasons import Reason, Rejected

# After these faults the device may send the same answer in a usable form: sealed to the coordinator's newer
# key, or after an update of either end.
NOT_FINAL: Final = frozenset({Reason.NOT_FOR_US, Reason.VERSION})


class AdmissionController(Protocol):
    """The part that decides which answers are fetched, and that is told of unusable answers."""

    def is_expected(self, update: Update) -> bool: ...

    def admit(self, update: Update, size: int, name: bytes) -> bool: ...

    def unusable(self, update: Update, fault: Rejected) -> None: ...


class AdmitNothing:
    """An admission controller for the time while no question is open."""

    def is_expected(self, update: Update) -> bool:
        return False

    def admit(self, update: Update, size: int, name: bytes) -> bool:
        return False

    def unusable(self, update: Update, fault: Rejected) -> None:
        """Do nothing, because no answer is waited for."""


class UnusableAnswer(Rejected):
    """The fault that makes an answer to the open question unusable.

    Its device is told of the fault, and the coordinator does not wait for the device any longer.
    """

    def __init__(self, update: Update, fault: Rejected) -> None:
        super().__init__(fault.reason, fault.detail)
        self.update = update
