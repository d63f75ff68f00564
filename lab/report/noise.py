"""Warn if chance may have decided the choice by validation accuracy."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean
from typing import Final

from protofleet.lab.report.numbers import percent_points

# Fewer validation images than this are too few for a choice. With 50 images, one more correct image already changes
# the accuracy by 2 points, and the points of a grid often differ by 2 points or less.
FEWEST_IMAGES: Final = 50


def noise_in(chosen: Sequence[float], equal: Sequence[str], images: int | None, classes: int) -> str:
    """Return the reasons why chance may have decided the choice; "" if there are no such reasons.

    `chosen` has the accuracies of the chosen point, one for each seed. `equal` has the other points with the
    same mean. `images` is the number of validation images with which the point was chosen.
    """
    found = []
    if equal:
        found.append(f"{' and '.join(equal)} {'has' if len(equal) == 1 else 'have'} the same accuracy")
    if len(chosen) > 1 and max(chosen) == min(chosen):
        found.append(f"all {len(chosen)} seeds have one accuracy")
    if images is not None and images < FEWEST_IMAGES:
        found.append(f"{images} validation samples decide, fewer than {FEWEST_IMAGES}")
    if fmean(chosen) <= 1 / classes:
        chance = f"chance, {percent_points(1 / classes)} % of {classes} classes"
        found.append(f"{percent_points(fmean(chosen))} % is not above {chance}")
    if not found:
        return ""
    return (
        f"the choice may be noise: {'; '.join(found)}. More rounds, data or data.validation tell points apart"
    )
