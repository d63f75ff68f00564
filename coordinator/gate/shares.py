"""Whose offers make way where the room for answers is short: no offer may keep another device's answer out.

An offer is a promise: it has its room from when it is made, so that what is fetched never fills the disk. Who
promises and sends nothing yields to anybody, and who promises more than its share to whoever asks for less. An answer
that is here yields to none. So whoever asks for no more than its share has it, whatever others have promised.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Offer:
    """Of an answer that is not here yet."""

    size: int
    silent: bool  # it was asked for again and again and nothing came, or its device has left


def who_yields(size: int, lacking: int, share: int, offers: Mapping[str, Offer]) -> list[str]:
    """So that an offer of this size, which lacks so many bytes, finds room. Nobody, where that would not do."""
    may = [device for device, offer in offers.items() if offer.silent or offer.size > max(share, size)]
    may.sort(key=lambda device: (not offers[device].silent, -offers[device].size, device))
    for number in range(1, len(may) + 1):
        if sum(offers[device].size for device in may[:number]) >= lacking:
            return may[:number]
    return []
