"""The budget of blocks in flight from all devices together, and the part of it that is given as credit."""

from __future__ import annotations

from typing import Final

from protofleet.protocol.link.base import INLINE, WINDOW

# Blocks in flight from all devices together: 16 MiB, which is below the queue limit of any broker.
BUDGET: Final = 256
MOST_CREDIT: Final = BUDGET // 2  # blocks of the budget that are asked for in advance


def is_used_up(in_flight: int) -> bool:
    return in_flight >= BUDGET


def blocks_allowed(own: int, in_flight: int) -> int:
    """Return the number of blocks that one fetch may have in flight.

    `own` is the number that it has, and `in_flight` is the number of all fetches together.
    """
    return max(0, min(WINDOW, BUDGET - (in_flight - own)))


class Credit:
    """The devices that were asked for the only block of their answer together with the task.

    The block counts as in flight until the device answers.
    """

    def __init__(self) -> None:
        self._devices: set[str] = set()
        self._is_given = False

    @property
    def blocks(self) -> int:
        """Return the number of blocks that were asked for in this way and whose devices have not answered."""
        return len(self._devices)

    def renew(self, size: int, devices: int) -> None:
        """Withdraw all credit, and decide whether the tasks of a new broadcast give any.

        `size` is the size of the broadcast. An answer to a small broadcast is most often small too, and then
        travels inside its message.
        """
        self.withdraw_all()
        self._is_given = size > INLINE and devices <= MOST_CREDIT

    def give(self, device: str) -> int:
        """Return the number of blocks that the device may send without a request."""
        if not self._is_given:
            return 0
        self._devices.add(device)
        return 1

    def use(self, device: str) -> bool:
        """Withdraw the credit of a device that answers, and return whether it had any."""
        had = device in self._devices
        self.withdraw(device)
        return had

    def withdraw(self, device: str) -> None:
        self._devices.discard(device)

    def withdraw_all(self) -> None:
        self._devices.clear()
