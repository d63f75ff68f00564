"""The enrolments under which devices have sent the answers that the server half keeps.

A kept answer belongs to an enrolment and not to a name. A revoked device may be enrolled again under the same name
before the next round begins. Its kept answer is deleted all the same, and the device is asked again.
"""

from __future__ import annotations

from collections.abc import Collection

from protofleet.coordinator.spool.spool import Spool
from protofleet.protocol.link.coordinator import CoordinatorLink
from protofleet.protocol.security.keys import has_ended


class AnswerEnrolments:
    """The holder of each answer, by device and round. A replay of a round uses the holders of earlier rounds."""

    def __init__(self, spool: Spool, link: CoordinatorLink, keeps_answers: bool) -> None:
        self._spool, self._link, self._keeps_answers = spool, link, keeps_answers
        self._offered: dict[str, str] = {}  # Device -> holder of its name when it offered its last update.

    def offered(self, device: str) -> None:
        if self._keeps_answers:
            self._offered[device] = self._link.holder_of(device)

    def accepted(self, device: str, round: int) -> None:
        """Store the holder together with the update that was accepted."""
        if self._keeps_answers:
            self._spool.note_holder(device, round, self._offered[device])

    def valid(self, devices: Collection[str], before: int) -> frozenset[str]:
        """Return those of the devices whose answers to the rounds before the round `before` may be kept."""
        if not devices:  # Then the index need not be read. This is so in each step of most methods.
            return frozenset()
        holders = self._spool.holders(before)
        return frozenset(device for device in devices if not self.has_ended(device, holders.get(device, "")))

    def has_ended(self, device: str, holder: str) -> bool:
        """Return whether the enrolment of the holder of a device's name has ended."""
        return has_ended(self._link.keyring, device, holder)
