"""The budget of blocks in flight from all devices together, and the part of this budget that is given as credit."""

from __future__ import annotations

from typing import Final

from protofleet.protocol.link.base import INLINE, WINDOW

# Largest number of blocks in flight from all devices together. These blocks have 16 MiB, which is below the queue
# limit of any broker.
BUDGET: Final = 256
MOST_CREDIT: Final = BUDGET // 2  # largest number of blocks that may be requested in advance


def is_used_up(in_flight: int) -> bool:
    return in_flight >= BUDGET


def blocks_allowed(own: int, in_flight: int) -> int:
    """Return the number of blocks that one fetch may have in flight.

    `own` is the number of blocks that this fetch has in flight, and `in_flight` is the sum over all fetches.
    """
    return max(0, min(WINDOW, BUDGET - (in_flight - own)))


class Credit:
    """The devices whose tasks have requested the only block of an update in advance.

    Each such block counts as in flight until the device sends its update.
    """

    def __init__(self) -> None:
        self._devices: set[str] = set()
        self._is_given = False

    @property
    def blocks(self) -> int:
        """Return the number of blocks that were requested in advance from devices whose update has not arrived."""
        return len(self._devices)

    def renew(self, size: int, devices: int) -> None:
        """Withdraw all credit, and decide whether the tasks of a new broadcast give credit.

        `size` is the size of the broadcast. No credit is needed after a small broadcast: the updates are
        usually small too, and are sent inside their messages.
        """
        self.withdraw_all()
        self._is_given = size > INLINE and devices <= MOST_CREDIT

    def give(self, device: str) -> int:
        """Give credit to a device, and return how many blocks the device may send without a request."""
        if not self._is_given:
            return 0
        self._devices.add(device)
        return 1

    def use(self, device: str) -> bool:
        """Withdraw the credit of a device that sends its update, and return whether the device had credit."""
        had = device in self._devices
        self.withdraw(device)
        return had

    def withdraw(self, device: str) -> None:
        self._devices.discard(device)

    def withdraw_all(self) -> None:
        self._devices.clear()
