"""Whether what validation has chosen could as well have been drawn by lot."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean
from typing import Final

from protofleet.deploy.report.numbers import percent_points

FEWEST_IMAGES: Final = 50  # one more right of 50 is 2 points, which is what grids are searched for


def noise_in(chosen: Sequence[float], equal: Sequence[str], images: int | None, classes: int) -> str:
    """Of the accuracies of the chosen point's seeds, the points that have the same mean, and the number of validation
    images that have decided; "" where nothing speaks for it."""
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
