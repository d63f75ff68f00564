"""Which reserved offers are dropped where the space for answers is short: none may keep another device's answer out.

Space is reserved when an answer is offered, so that what is fetched never fills the disk. The offer of a device that
then sends nothing can be dropped for any other; an offer above its device's share, for a smaller one. An answer that
is complete is never dropped. So a device that offers no more than its share always gets it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Offer:
    """An answer that is not complete yet."""

    size: int
    silent: bool  # nothing came however often it was asked for, or its device has left


def offers_to_drop(size: int, lacking: int, share: int, offers: Mapping[str, Offer]) -> list[str]:
    """The devices whose offers make room for one of this size, which lacks so many bytes; none if that is too few."""
    droppable = [device for device, offer in offers.items() if offer.silent or offer.size > max(share, size)]
    droppable.sort(key=lambda device: (not offers[device].silent, -offers[device].size, device))
    for number in range(1, len(droppable) + 1):
        if sum(offers[device].size for device in droppable[:number]) >= lacking:
            return droppable[:number]
    return []
