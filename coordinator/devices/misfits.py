"""The devices that cannot take part in a run, for example because their images have another size."""

from __future__ import annotations

from protofleet.protocol.wire.name_list import first_names
from protofleet.protocol.wire.printable import printable
from protofleet.protocol.wire.reasons import DisconnectReason, disconnect_reason_of

MOST_NAMED, MOST_LETTERS = 3, 300


class Misfits:
    def __init__(self) -> None:
        # Device -> its boot, and the reason. A device that was started again may have other settings.
        self._reasons: dict[str, tuple[int, str]] = {}

    def note(self, device: str, boot: int, reason: str) -> None:
        self._reasons[device] = boot, reason

    def left(self, device: str, boot: int, reason: str) -> None:
        """Note a device that leaves because it cannot follow the plan of the run."""
        if disconnect_reason_of(reason) is DisconnectReason.CANNOT_FOLLOW:
            self.note(device, boot, reason)

    def fits(self, device: str) -> None:
        self._reasons.pop(device, None)

    def has(self, device: str, boot: int) -> bool:
        """Return whether this process of the device cannot take part in the run."""
        return device in self._reasons and self._reasons[device][0] == boot

    @property
    def words(self) -> str:
        """Return the names of these devices and the reason of the first; "" if there are none."""
        if not self._reasons:
            return ""
        names = sorted(self._reasons)
        reason = printable(self._reasons[names[0]][1])[:MOST_LETTERS]
        return f"{first_names(names, MOST_NAMED)} cannot take part: {reason}"
