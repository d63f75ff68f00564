"""Define the interface of the part that decides which updates are fetched, and the error for an unusable update."""

from __future__ import annotations

from typing import Final, Protocol

from protofleet.protocol.wire.messages import Update
from protofleet.protocol.wire.reasons import Reason, Rejected

# After one of these faults, the device may later send the same update in a usable form. For example, the device
# may seal the update to the coordinator's new key, or the software of one side may have been updated.
NOT_FINAL: Final = frozenset({Reason.NOT_FOR_US, Reason.VERSION})


class AdmissionController(Protocol):
    """The part that decides which updates are fetched, and that receives the faults of unusable updates."""

    def is_expected(self, update: Update) -> bool: ...

    def admit(self, update: Update, size: int, name: bytes) -> bool: ...

    def unusable(self, update: Update, fault: Rejected) -> None: ...


class AdmitNothing:
    """The admission controller that is used while no task is open."""

    def is_expected(self, update: Update) -> bool:
        return False

    def admit(self, update: Update, size: int, name: bytes) -> bool:
        return False

    def unusable(self, update: Update, fault: Rejected) -> None:
        """Do nothing, because no update is expected."""


class UnusableAnswer(Rejected):
    """The error for an update that belongs to the open task but cannot be used.

    The coordinator sends the reason to the device, and does not wait for this device any longer.
    """

    def __init__(self, update: Update, fault: Rejected) -> None:
        super().__init__(fault.reason, fault.detail)
        self.update = update
