"""Choose the offers that are dropped when space for updates is short.

Space is reserved when an update is offered, so fetched updates never fill the disk. But no offer may prevent
the update of another device:
- If a device sends nothing after its offer, its offer can be dropped for any other offer.
- An offer above the share of its device can be dropped for a smaller offer.
- A complete update is never dropped.

So a device that offers no more than its share always gets space.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Offer:
    """An offered update that is not complete yet."""

    size: int
    silent: bool  # True if requested bytes do not arrive, or if the device has left.


def offers_to_drop(size: int, lacking: int, share: int, offers: Mapping[str, Offer]) -> list[str]:
    """Return the devices whose offers must be dropped to free `lacking` bytes for an offer of this size.

    Return an empty list if dropping all droppable offers would free too little.
    """
    droppable = [device for device, offer in offers.items() if offer.silent or offer.size > max(share, size)]
    droppable.sort(key=lambda device: (not offers[device].silent, -offers[device].size, device))
    for number in range(1, len(droppable) + 1):
        if sum(offers[device].size for device in droppable[:number]) >= lacking:
            return droppable[:number]
    return []
