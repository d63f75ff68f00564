"""The budget of blocks in flight from all devices together, and the part of this budget that is given as credit."""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from typing import Final, Protocol

from protofleet.protocol.link.base import INLINE, WINDOW
from protofleet.protocol.link.fetch import ObjectFetch

# Largest number of blocks in flight from all devices together. These blocks have 16 MiB, which is below the queue
# limit of any broker.
BUDGET: Final = 256
MOST_CREDIT: Final = BUDGET // 2  # largest number of blocks that may be requested in advance


class Fetcher(Protocol):
    """The fetches of one run, which share the budget with the fetches of all other runs."""

    def in_flight(self, now: float) -> int:
        """Return the number of blocks that this run has in flight, including the blocks requested in advance."""

    def waiting_order(self) -> Iterator[tuple[int, str, ObjectFetch]]:
        """Yield a number, the device and the fetch. The numbers grow; they are 0 for a fetch that has begun."""

    def fill(self, device: str, fetch: ObjectFetch, blocks: int, now: float) -> None:
        """Request more blocks of a fetch, so that at most `blocks` of its blocks are in flight."""


class BlockBudget:
    """The budget of blocks in flight, which all runs of a coordinator share."""

    def __init__(self) -> None:
        self._fetchers: list[Fetcher] = []
        self._offers = 0

    def join(self, fetcher: Fetcher) -> None:
        self._fetchers.append(fetcher)

    def leave(self, fetcher: Fetcher) -> None:
        self._fetchers.remove(fetcher)

    def next_offer(self) -> int:
        """Return the number of the next offer. Fetches that have not begun wait in the order of these numbers."""
        self._offers += 1
        return self._offers

    def in_flight(self, now: float) -> int:
        return sum(fetcher.in_flight(now) for fetcher in self._fetchers)

    def share(self, now: float) -> None:
        """Share the budget among the fetches in the order of the offers.

        A fetch begins only when the budget has room for all of its blocks or for half a window. A request
        costs both ends as much work as a block, so requests for a few blocks would be wasteful.
        """
        in_flight = self.in_flight(now)
        if in_flight >= BUDGET:
            return
        for _, fetcher, device, fetch in self._in_order():
            before = fetch.in_flight(now)
            capacity = blocks_allowed(before, in_flight)
            if not fetch.begun and capacity < min(fetch.unasked, WINDOW // 2):
                return
            fetcher.fill(device, fetch, capacity, now)
            in_flight += fetch.in_flight(now) - before

    def _in_order(self) -> Iterator[tuple[int, Fetcher, str, ObjectFetch]]:
        def of(fetcher: Fetcher) -> Iterator[tuple[int, Fetcher, str, ObjectFetch]]:
            # The list is made first, because the loop of the caller may change the fetches.
            return iter([(n, fetcher, device, fetch) for n, device, fetch in fetcher.waiting_order()])

        return heapq.merge(*map(of, self._fetchers), key=lambda one: one[0])


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
