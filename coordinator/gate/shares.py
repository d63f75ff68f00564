"""The choice of reserved offers to drop when space for answers is short.

No offer may keep another device's answer out. Space is reserved when an answer is offered, so that fetched
answers never fill the disk. If a device sends nothing after its offer, the offer can be dropped for any
other offer. An offer above its device's share can be dropped for a smaller one. A complete answer is never
dropped. So a device that offers no more than its share always gets its space.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Offer:
    """An answer that is not complete yet."""

    size: int
    silent: bool  # nothing came, however often it was asked for; or its device has left


def offers_to_drop(size: int, lacking: int, share: int, offers: Mapping[str, Offer]) -> list[str]:
    """Return the devices whose offers make room for an offer of this size that lacks `lacking` bytes.

    Return no device if all droppable offers together are too small.
    """
    droppable = [device for device, offer in offers.items() if offer.silent or offer.size > max(share, size)]
    droppable.sort(key=lambda device: (not offers[device].silent, -offers[device].size, device))
    for number in range(1, len(droppable) + 1):
        if sum(offers[device].size for device in droppable[:number]) >= lacking:
            return droppable[:number]
    return []
