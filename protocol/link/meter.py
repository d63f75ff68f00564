"""Count bytes by direction and kind, and messages by result.

`payload` counts the raw bytes of the arrays that the method declares, each array once. `wire` counts every
byte of every PUBLISH packet, including repeats. The bytes of arrays are counted under their kind. All other
bytes (headers, tables, signatures, topics) are counted under "control".
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from protofleet.protocol.wire.kinds import CONTROL
from protofleet.protocol.wire.reasons import Reason

UP: Final = "up"  # device -> coordinator
DOWN: Final = "down"


@dataclass
class Meter:
    payload: Counter[tuple[str, str]] = field(default_factory=Counter)  # (direction, kind)
    wire: Counter[tuple[str, str]] = field(default_factory=Counter)
    messages: Counter[tuple[str, str, str]] = field(default_factory=Counter)  # (direction, kind, result)
    frames: Counter[str] = field(default_factory=Counter)  # direction -> bytes handed to the transport
    # Reason -> number of rejected frames. A good frame with rejected content counts too.
    rejected: Counter[Reason] = field(default_factory=Counter)
    # The bytes of `wire` by (device, direction, kind). Only a coordinator counts them, and a snapshot does
    # not contain them.
    by_device: Counter[tuple[str, str, str]] = field(default_factory=Counter)

    def count_packet(
        self, direction: str, packet: int, frame: int, tensors: Mapping[str, int], fresh: bool, held: int = 0,
        device: str | None = None,
    ) -> None:  # fmt: skip
        """Count one PUBLISH packet of `packet` bytes with a frame of `frame` bytes; `tensors` are bytes by kind.

        `held` bytes of the packet are not counted here: they belong to a block, and the caller passes them to
        `count_bytes`. `device` is the receiver or the sender of the packet. It is "" if there is no single device,
        and None if bytes are not counted by device.
        """
        self.count_bytes(direction, packet - held, tensors, fresh, device)
        self.frames[direction] += frame

    def count_bytes(
        self, direction: str, size: int, tensors: Mapping[str, int], fresh: bool, device: str | None = None
    ) -> None:
        """Count `size` bytes of packets.

        The bytes in `tensors` are counted by kind, and all other bytes as control.
        """
        declared = {kind: n for kind, n in tensors.items() if kind != CONTROL}
        for kind, n in declared.items():
            self._count_wire(device, direction, kind, n)
            if fresh:
                self.payload[direction, kind] += n
        self._count_wire(device, direction, CONTROL, size - sum(declared.values()))

    def _count_wire(self, device: str | None, direction: str, kind: str, size: int) -> None:
        self.wire[direction, kind] += size
        if device is not None:
            self.by_device[device, direction, kind] += size

    def count_message(self, direction: str, kind: str, result: str) -> None:
        self.messages[direction, kind, result] += 1

    def snapshot(self) -> Meter:
        return Meter(
            Counter(self.payload),
            Counter(self.wire),
            Counter(self.messages),
            Counter(self.frames),
            Counter(self.rejected),
        )

    def since(self, earlier: Meter) -> Meter:
        return Meter(
            self.payload - earlier.payload,
            self.wire - earlier.wire,
            self.messages - earlier.messages,
            self.frames - earlier.frames,
            self.rejected - earlier.rejected,
        )


def human_bytes(size: float) -> str:
    """Return a number of bytes as text in B, kB, MB or GB."""
    for unit in ("B", "kB", "MB"):
        if size < 1000:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.2f} GB"
