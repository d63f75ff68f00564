"""The MQTT wills of devices: a will makes its device suspect for a while, but does not remove the device.

A device signs its will in advance, so a hostile broker could publish the will at any time and keep the device
out of every round. Therefore a suspect device keeps its place in the roster. The coordinator sends it a
welcome, and a connected device replies to the welcome. If no new message of the device arrives within
`seconds`, the device counts as left.

If a new message arrives, there are two cases. In the first case, the device was connected all the time, and
its will was false. In the second case, the device was away and has come back. The coordinator recognises the second
case in two ways: the boot number of the device is higher, or the birth message of the new connection arrives within
BIRTH_SECONDS. A birth message may arrive a little after other messages of the same connection.
"""

from __future__ import annotations

import logging
from collections import Counter
from dataclasses import dataclass, field
from typing import Final

log = logging.getLogger("protofleet.coordinator")

LEFT: Final = "left"
RETURNED: Final = "returned"
REFUTED: Final = "refuted"
OUTCOMES: Final = {
    LEFT: "the device sent nothing after that",
    RETURNED: "the device had lost its connection and came back",
    REFUTED: "the device was there all the time",
}

# A birth message may arrive up to this many seconds after other messages of the same connection.
BIRTH_SECONDS: Final = 2.0

Mark = tuple[int, int]  # Boot number of a device, and the newest sequence number of its messages.


@dataclass
class LastWills:
    seconds: float  # A suspect device counts as left if it sends no message for this many seconds.
    counted: Counter[tuple[str, str]] = field(default_factory=Counter)  # (device, outcome) -> number of wills
    # Suspect device -> time when the device became suspect, and the mark of its newest message at that time.
    _suspects: dict[str, tuple[float, Mark]] = field(default_factory=dict)
    # Device that was suspect -> time at which the device sent a message again. The birth message of the device may
    # still arrive.
    _awaiting_birth: dict[str, float] = field(default_factory=dict)
    # Devices whose MQTT wills were false. `take_refuted` empties this list.
    _refuted: list[str] = field(default_factory=list)

    @property
    def wake_at(self) -> float:
        left = min((since for since, _ in self._suspects.values()), default=float("inf")) + self.seconds
        if self._refuted:
            return 0.0
        return min(left, min(self._awaiting_birth.values(), default=float("inf")) + BIRTH_SECONDS)

    def __len__(self) -> int:
        return len(self._suspects)

    def received(self, device: str, heard: Mark, now: float) -> bool:
        """Record an MQTT will; return True if its device becomes suspect now, False if it was suspect before."""
        if device in self._suspects:
            return False
        # If this is a second will, and no birth message has arrived since the first will, the first will was
        # false.
        if device in self._awaiting_birth:
            self._refute(device)
        self._suspects[device] = (now, heard)
        return True

    def heard_from(self, device: str, heard: Mark, now: float) -> None:
        """Stop suspecting a device that has sent a new message."""
        if device not in self._suspects or heard <= self._suspects[device][1]:
            return
        _, (boot, _) = self._suspects[device]
        if heard[0] > boot:
            self.resolve(device, RETURNED)
        else:
            del self._suspects[device]
            self._awaiting_birth[device] = now

    def take_refuted(self, now: float) -> list[str]:
        """Return the devices whose MQTT wills were false.

        Such a device sent messages after its MQTT will, but no birth message.
        """
        found = [device for device, since in self._awaiting_birth.items() if now >= since + BIRTH_SECONDS]
        for device in found:
            self._refute(device)
        refuted, self._refuted = self._refuted, []
        return refuted

    def _refute(self, device: str) -> None:
        del self._awaiting_birth[device]
        self.counted[device, REFUTED] += 1
        self._refuted.append(device)

    def resolve(self, device: str, outcome: str) -> float | None:
        """Record the outcome of an MQTT will.

        Return the time at which the device became suspect, or None if the device was not suspect.
        """
        if self._awaiting_birth.pop(device, None) is not None:
            self.counted[device, outcome] += 1
        if (suspect := self._suspects.pop(device, None)) is None:
            return None
        self.counted[device, outcome] += 1
        return suspect[0]

    def timed_out(self, now: float) -> dict[str, float]:
        """Return the suspect devices that sent nothing for too long, each with the time when it became suspect."""
        gone = {device: since for device, (since, _) in self._suspects.items() if now >= since + self.seconds}
        for device in gone:
            self.resolve(device, LEFT)
        return gone
