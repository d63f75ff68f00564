"""Features that were mixed with a known row of their class and masked: find the share and the mask, and undo both.

A device sends r = mask * (a z + (1 - a) G[y]). The coordinator knows G and y, and the mean c[k] of z over each class
k, because the device has sent it. The mean of r over class k is mask * (a c[k] + (1 - a) G[k]), so a is a quotient.
A masked column is 0 in all rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

Numbers: TypeAlias = NDArray[np.float64]
Labels: TypeAlias = NDArray[np.int64]
Mask: TypeAlias = NDArray[np.bool_]

SMALLEST: Final = 1e-12


@dataclass(frozen=True)
class Unmixed:
    """The features that were recovered from mixed rows."""

    features: Numbers  # [N, D]; a masked column has the mean of the row's class.
    share: float  # The share a of the device's own feature.
    kept: Mask  # [D]: columns that the mask keeps.
    residual: (
        float  # Relative error of the class means of the rows under this share; near 0 if the share is right.
    )


def unmixed(rows: Numbers, labels: Labels, common: Numbers, known: Mask, means: Numbers) -> Unmixed:
    """Undo the mixing of rows [N, D] with the rows `common` [C, D] of the known classes; `means` [C, D] are c.

    A row of a class without a common row was not mixed.
    """
    kept = np.abs(rows).max(0) > 0
    held = np.array([k for k in np.unique(labels) if known[k]], dtype=np.int64)
    share, residual = 1.0, 0.0
    if len(held):
        seen = np.stack([rows[labels == k].mean(0) for k in held])[:, kept]
        base, own = common[held][:, kept], means[held][:, kept]
        step = own - base
        share = float((step * (seen - base)).sum() / max(float(np.square(step).sum()), SMALLEST))
        rest = seen - (share * own + (1 - share) * base)
        residual = float(np.linalg.norm(rest) / max(float(np.linalg.norm(seen)), SMALLEST))
    return Unmixed(_undone(rows, labels, common, known, means, kept, share), share, kept, residual)


def _undone(
    rows: Numbers, labels: Labels, common: Numbers, known: Mask, means: Numbers, kept: Mask, share: float
) -> Numbers:
    whole = share if abs(share) > SMALLEST else 1.0  # A share of 0 leaves nothing of the feature.
    undone = np.where(known[labels][:, None], (rows - (1 - share) * common[labels]) / whole, rows)
    found: Numbers = np.where(kept[None, :], undone, means[labels])
    return found
