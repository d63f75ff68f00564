"""Decide whether the sum of one cohort may follow the sum of another cohort of the same run."""

from __future__ import annotations

from collections.abc import Collection


def may_follow(previous: Collection[str], survivors: Collection[str], apart: int) -> bool:
    """Return whether the difference of two sums hides each single device.

    Prototypes change little from round to round. So if two cohorts differ by one device, the difference of their
    sums is nearly the vector of that device. The cohorts must be equal, or differ by at least `apart` devices. There
    is no limit before the first sum, or if `apart` is 0.
    """
    different = len(set(previous) ^ set(survivors))
    return not previous or different == 0 or different >= apart
