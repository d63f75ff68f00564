"""Every byte of every PUBLISH packet, in both directions."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Traffic:
    """What was given to the connection and what came out of it, packet headers included."""

    packets_out: int = 0
    bytes_out: int = 0
    packets_in: int = 0
    bytes_in: int = 0

    def sent(self, size: int) -> Traffic:
        return Traffic(self.packets_out + 1, self.bytes_out + size, self.packets_in, self.bytes_in)

    def received(self, size: int) -> Traffic:
        return Traffic(self.packets_out, self.bytes_out, self.packets_in + 1, self.bytes_in + size)
