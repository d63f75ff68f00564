"""FINCH (Sarfraz et al., CVPR 2019), and FedPLCC's FINCH*, which carries weights (eqs. 9 to 11).

Each row is joined with its nearest other row by cosine. Rows that are connected form a cluster. Then the
means of the clusters, taken over the original rows, are joined in the same way. The prototypes are the means
of the coarsest level that still has two clusters or more. If the first level has one cluster, its mean is the
only prototype.

The package finch-clust joins rows and computes means. The search for the nearest rows is in this module.
finch-clust itself makes a full table of distances. If there are some thousand rows or more, it uses an
approximation from another package instead. The search here works in blocks, so it is exact for any number of rows.
The option ensure_early_exit=True, which is the default of finch-clust, changes the algorithm. With this option, 162
of 306 partitions in a comparison were different.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from types import ModuleType
from typing import Final, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from protofleet.methods.contract.liveness import report_progress

Rows: TypeAlias = NDArray[np.float64]  # [n, D]
Indices: TypeAlias = NDArray[np.int64]  # [n]

BLOCK: Final = 2048  # Rows of a block; the cosines of two blocks take 16 MB.
SEGMENT: Final = 128  # Number of columns of a segment. Only a segment with a high enough cosine is searched.
# Some segments of a block must be computed exactly. If their share is above DENSE, the whole block is computed
# exactly. The same rule applies to the cosines of a row.
DENSE: Final = 1 / 16
# Cosines are rounded to this number of digits. If several rounded cosines are equal, the lowest index wins.
# So the result does not depend on the size of the blocks.
DIGITS: Final = 12
# The largest number of received rows that are clustered together; the time is quadratic in this number.
MOST_ROWS: Final = 16_384


def partition(x: Tensor) -> Tensor:
    """Return the labels [n], numbered in the order of each cluster's first member.

    If a row is not finite, all rows are one cluster. The receiver then refuses the result.
    """
    rows: Rows = x.detach().cpu().double().numpy()
    if len(rows) < 2 or not np.isfinite(rows).all():
        return torch.zeros(len(rows), dtype=torch.int64)
    *_, last = levels(rows)
    return torch.from_numpy(by_first_member(last))


def levels(rows: Rows) -> Iterator[Indices]:
    """Yield the partitions from fine to coarse, while the number of clusters falls and is two or more.

    The first partition is always yielded.
    """
    finch = _finch()
    labels = np.empty(0, np.int64)
    means, before = rows, len(rows)
    while True:
        joined, _, _, _ = finch.clust_rank(means, initial_rank=first_neighbours(means))
        groups, clusters = finch.get_clust(joined, [])
        if before < len(rows) and not 1 < clusters < before:
            return
        labels, means = finch.get_merge(labels, groups, rows)
        yield labels
        if clusters == 1:
            return
        before = clusters


def _finch() -> ModuleType:
    with warnings.catch_warnings():  # finch warns that a package for approximations is missing.
        warnings.simplefilter("ignore")
        from finch import finch
    module: ModuleType = finch
    return module


def by_first_member(labels: Indices) -> Indices:
    _, first, inverse = np.unique(labels, return_index=True, return_inverse=True)
    number = np.empty(len(first), np.int64)
    number[np.argsort(first)] = np.arange(len(first))
    found: Indices = number[inverse]
    return found


def first_neighbours(rows: Rows, block: int = BLOCK) -> Indices:
    """Return, for each row, the other row with the highest cosine; a row of zeros has only cosines of 0."""
    return _Search(rows, block).run()


def _slices(rows: Indices, columns: Indices) -> Iterator[tuple[Indices, Indices]]:
    for k in range(0, len(rows), BLOCK):
        report_progress()
        yield rows[k : k + BLOCK], columns[k : k + BLOCK]


def padded(n: int) -> int:
    return -(-n // SEGMENT) * SEGMENT


class _Search:
    """A search for the nearest rows.

    The search computes rough cosines (float32) of every pair of blocks once. For pairs of rows that may be
    nearest, it computes exact cosines (float64).
    """

    def __init__(self, rows: Rows, block: int) -> None:
        self.block = block
        norms = np.linalg.norm(rows, axis=1, keepdims=True)
        self.units = rows / np.where(norms > 0, norms, 1)
        self.rough = self.units.astype(np.float32)
        self.slack = np.float32((rows.shape[1] + 4) * 2.0**-23)  # Twice the rounding error of a cosine.
        # Rounding error of an exact cosine, in units of the last of its DIGITS digits.
        self.noise = (rows.shape[1] + 4) * 2.0**-52 * 10.0**DIGITS
        self.bound = np.full(len(rows), -np.inf, np.float32)
        self.best = np.full(len(rows), -np.inf)
        self.nearest = np.zeros(len(rows), np.int64)

    def run(self) -> Indices:
        starts = range(0, len(self.units), self.block)
        for i in starts:
            for j in (start for start in starts if start >= i):
                report_progress()
                cosines = self._rough_block(i, j)
                wide, high = cosines.shape[0] // SEGMENT, cosines.shape[1] // SEGMENT
                self._look(cosines, cosines.reshape(-1, high, SEGMENT).max(axis=2), i, j)
                if i != j:
                    peaks = cosines.reshape(wide, SEGMENT, -1).max(axis=1)
                    self._look(cosines.T, peaks.T, j, i)
        return self.nearest

    def _rough_block(self, i: int, j: int) -> NDArray[np.float32]:
        """Return rough cosines of two blocks, padded to whole segments with -inf, which is never the maximum."""
        a, b = self.rough[self._block(i)], self.rough[self._block(j)]
        cosines = np.empty((padded(len(a)), padded(len(b))), np.float32)
        cosines[len(a) :], cosines[:, len(b) :] = -np.inf, -np.inf
        np.matmul(a, b.T, out=cosines[: len(a), : len(b)])
        if i == j:
            np.fill_diagonal(cosines, -np.inf)
        return cosines

    def _look(self, cosines: NDArray[np.float32], peaks: NDArray[np.float32], i: int, j: int) -> None:
        """Search the block at j for the nearest row of each row in the block at i.

        `cosines` are the rough cosines of these two blocks. `peaks` has the highest cosine for each row and segment.
        """
        here = self._block(i)
        peaks = peaks[: here.stop - i]
        self.bound[here] = np.maximum(self.bound[here], peaks.max(axis=1))
        least = self.bound[here] - self.slack
        r, segment = np.nonzero(peaks >= least[:, None])
        if len(r) > DENSE * peaks.size:
            self._exact_block(i, j)
            return
        columns = (segment * SEGMENT)[:, None] + np.arange(SEGMENT)
        which, place = np.nonzero(cosines[r[:, None], columns] >= least[r, None])
        self._exact_pairs(r[which] + i, columns[which, place] + j)

    def _block(self, start: int) -> slice:
        return slice(start, min(start + self.block, len(self.units)))

    def _exact_pairs(self, rows: Indices, columns: Indices) -> None:
        for r, c in _slices(rows, columns):
            values = self._products(r, c).round(DIGITS)
            # Sort by row. In a row, the best value is first. Of equal values, the lowest column is first.
            order = np.lexsort((c, -values, r))
            rows_once, first = np.unique(r[order], return_index=True)
            self._improve(rows_once, values[order][first], c[order][first])

    def _exact_block(self, i: int, j: int) -> None:
        rows = self._block(i)
        for start in range(rows.start, rows.stop, SEGMENT):
            report_progress()
            self._exact_stripe(slice(start, min(start + SEGMENT, rows.stop)), self._block(j))

    def _exact_stripe(self, rows: slice, columns: slice) -> None:
        values = self.units[rows] @ self.units[columns].T
        here = np.arange(rows.start, rows.stop)
        own = here[(here >= columns.start) & (here < columns.stop)]
        values[own - rows.start, own - columns.start] = -2
        self._settle(values, rows.start, columns.start)
        values = values.round(DIGITS)
        self._improve(here, values.max(axis=1), values.argmax(axis=1) + columns.start)

    def _settle(self, values: Rows, i: int, j: int) -> None:
        """Compute doubtful cosines again, with a fixed order of the operations.

        The last digits of a matrix product depend on its size and on the number of threads. A cosine is
        doubtful if its last digits could change its rounded value, and if the cosine is near the highest
        cosine of its row.
        """
        scaled = values * 10.0**DIGITS
        doubtful = np.abs(scaled - np.floor(scaled) - 0.5) <= self.noise
        doubtful &= values >= values.max(axis=1, keepdims=True) - 2 * 10.0**-DIGITS
        crowded = doubtful.mean(axis=1) > DENSE
        # A row with many doubtful cosines is computed as a whole. This is 15 times as fast: it copies no pairs.
        for row in crowded.nonzero()[0].tolist():
            exact = self._row(row + i, slice(j, j + values.shape[1]))
            values[row] = np.where(doubtful[row], exact, values[row])
        doubtful[crowded] = False
        for r, c in _slices(*np.nonzero(doubtful)):
            values[r, c] = self._products(r + i, c + j)

    def _products(self, rows: Indices, columns: Indices) -> Rows:
        """Return the cosines of pairs [n].

        Each cosine is summed in the same order, for any selection of pairs.
        """
        products: Rows = np.einsum("nd,nd->n", self.units[rows], self.units[columns])
        return products

    def _row(self, row: int, columns: slice) -> Rows:
        """Return the cosines between one row and many rows. They have the same bits as the cosines of `_products`."""
        others = self.units[columns]
        products: Rows = np.einsum("nd,nd->n", np.broadcast_to(self.units[row], others.shape), others)
        return products

    def _improve(self, rows: Indices, values: NDArray[np.float64], columns: Indices) -> None:
        old, held = self.best[rows], self.nearest[rows]
        better = (values > old) | ((values == old) & (columns < held))
        self.best[rows[better]], self.nearest[rows[better]] = values[better], columns[better]


def finch_star_in_parts(
    x: Tensor, weights: Tensor, *, weighted_centroid: bool = False, most: int = MOST_ROWS
) -> tuple[Tensor, Tensor]:
    """Return FINCH* of any number of rows; for at most `most` rows, this is the result of `finch_star`.

    More rows are clustered in parts of `most` rows, and then the results are clustered together, in the same way
    as the devices' clusters on the server (eq. 10). So the time is linear in the number of rows. A part of two rows
    or more becomes at most half as large, so the loop ends.
    """
    while len(x) > most:
        parts = zip(torch.split(x, most), torch.split(weights, most), strict=True)
        found = [finch_star(rows, part, weighted_centroid=weighted_centroid) for rows, part in parts]
        x, weights = (torch.cat(side) for side in zip(*found, strict=True))
    return finch_star(x, weights, weighted_centroid=weighted_centroid)


def finch_star(x: Tensor, weights: Tensor, *, weighted_centroid: bool = False) -> tuple[Tensor, Tensor]:
    """Return the means [J, D] of the clusters of x [n, D] and the sums of their weights [J], eqs. 9 and 10.

    The paper does not state how a cluster of weighted members is averaged. Here each member counts once. With
    `weighted_centroid`, each member counts by its weight; if members are means of samples, the result is the
    mean of all samples.
    """
    labels = partition(x).to(x.device)
    clusters = int(labels.max()) + 1 if len(labels) else 0
    each = weights.double() if weighted_centroid else torch.ones_like(weights, dtype=torch.float64)
    shares = each.new_zeros(clusters).index_add_(0, labels, each)
    sums = each.new_zeros(clusters, x.shape[1]).index_add_(0, labels, x.double() * each.unsqueeze(1))
    total = weights.new_zeros(clusters).index_add_(0, labels, weights)
    return (sums / shares.unsqueeze(1)).to(x.dtype), total
