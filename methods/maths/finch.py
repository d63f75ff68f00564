"""FINCH (Sarfraz et al., CVPR 2019) and FedPLCC's FINCH*, which carries weights (eqs. 9 to 11).

Each row is joined with its nearest other row by cosine; what hangs together is a cluster; clusters' means, of the
original rows, are joined in turn. Prototypes are the means of the coarsest level that still had two clusters or
more, or of the first level where that has one.

finch-clust joins and averages; the nearest rows are ours. It finds them in a full table of distances, and above
some thousand rows by an approximation from another package. Ours are exact on any number of rows, in blocks.
Its default, ensure_early_exit=True, is another algorithm: 162 of 306 partitions differ.
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

BLOCK: Final = 2048  # rows: a block of cosines is 16 MB
SEGMENT: Final = 128  # columns that are searched together for candidates
# Of a block's segments, or of a row: with candidates in more, all of it is computed exactly.
DENSE: Final = 1 / 16
DIGITS: Final = 12  # cosines that agree so far are a tie; the lowest index wins, however rows are blocked
MOST_ROWS: Final = 16_384  # clustered at once where others send them: the time is quadratic in them


def partition(x: Tensor) -> Tensor:
    """Labels [n], counted by first members. Rows that are no numbers are one cluster: whoever gets it refuses it."""
    rows: Rows = x.detach().cpu().double().numpy()
    if len(rows) < 2 or not np.isfinite(rows).all():
        return torch.zeros(len(rows), dtype=torch.int64)
    *_, last = levels(rows)
    return torch.from_numpy(by_first_member(last))


def levels(rows: Rows) -> Iterator[Indices]:
    """Partitions from fine to coarse, as long as they shrink and have two clusters; the first in any case."""
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
    with warnings.catch_warnings():  # it says that a package for approximations is missing
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
    """The nearest other row of each by cosine; a row of zeros is at right angles to all."""
    return _Search(rows, block).run()


def _slices(rows: Indices, columns: Indices) -> Iterator[tuple[Indices, Indices]]:
    for k in range(0, len(rows), BLOCK):
        report_progress()
        yield rows[k : k + BLOCK], columns[k : k + BLOCK]


def padded(n: int) -> int:
    return -(-n // SEGMENT) * SEGMENT


class _Search:
    """Rough cosines (float32) of every pair of blocks, once; exact ones (float64) of those that may be nearest."""

    def __init__(self, rows: Rows, block: int) -> None:
        self.block = block
        norms = np.linalg.norm(rows, axis=1, keepdims=True)
        self.units = rows / np.where(norms > 0, norms, 1)
        self.rough = self.units.astype(np.float32)
        self.slack = np.float32((rows.shape[1] + 4) * 2.0**-23)  # twice what rounding can do to a cosine
        self.noise = (rows.shape[1] + 4) * 2.0**-52 * 10.0**DIGITS  # of an exact one, in its last digit
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
        """Padded to whole segments with what is never nearest."""
        a, b = self.rough[self._block(i)], self.rough[self._block(j)]
        cosines = np.empty((padded(len(a)), padded(len(b))), np.float32)
        cosines[len(a) :], cosines[:, len(b) :] = -np.inf, -np.inf
        np.matmul(a, b.T, out=cosines[: len(a), : len(b)])
        if i == j:
            np.fill_diagonal(cosines, -np.inf)
        return cosines

    def _look(self, cosines: NDArray[np.float32], peaks: NDArray[np.float32], i: int, j: int) -> None:
        """Rows from i on meet rows from j on; `peaks` are the highest cosines of each row's segments."""
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
            order = np.lexsort((c, -values, r))  # by row; the best first, of equals the lowest column
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
        """The last digits of a product of matrices depend on its size and on threads. Where rounding would show
        that, and near the highest of the row, a cosine is computed again, in an order that is always the same."""
        scaled = values * 10.0**DIGITS
        doubtful = np.abs(scaled - np.floor(scaled) - 0.5) <= self.noise
        doubtful &= values >= values.max(axis=1, keepdims=True) - 2 * 10.0**-DIGITS
        crowded = doubtful.mean(axis=1) > DENSE
        for row in crowded.nonzero()[0].tolist():  # without a copy of each pair: 15 times as fast
            exact = self._row(row + i, slice(j, j + values.shape[1]))
            values[row] = np.where(doubtful[row], exact, values[row])
        doubtful[crowded] = False
        for r, c in _slices(*np.nonzero(doubtful)):
            values[r, c] = self._products(r + i, c + j)

    def _products(self, rows: Indices, columns: Indices) -> Rows:
        """Cosines of pairs [n]; each is summed in the same order, whatever else is asked for."""
        products: Rows = np.einsum("nd,nd->n", self.units[rows], self.units[columns])
        return products

    def _row(self, row: int, columns: slice) -> Rows:
        """The same numbers, of one row with many."""
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
    """FINCH* of however many rows, in time that is linear in them beyond `most`; up to it, finch_star itself.

    More rows are clustered in parts of `most`, and what comes of them together, as the devices' own clusters are
    (eq. 10). A part of two rows or more at least halves, so there is an end.
    """
    while len(x) > most:
        parts = zip(torch.split(x, most), torch.split(weights, most), strict=True)
        found = [finch_star(rows, part, weighted_centroid=weighted_centroid) for rows, part in parts]
        x, weights = (torch.cat(side) for side in zip(*found, strict=True))
    return finch_star(x, weights, weighted_centroid=weighted_centroid)


def finch_star(x: Tensor, weights: Tensor, *, weighted_centroid: bool = False) -> tuple[Tensor, Tensor]:
    """FINCH*: means [J, D] of x's clusters [n, D] and the sums of their weights [J], eqs. 9 and 10.

    The paper does not say how a cluster of weighted members is averaged: each counts once, unless
    `weighted_centroid`, where members that are means themselves give the mean of all samples.
    """
    labels = partition(x).to(x.device)
    clusters = int(labels.max()) + 1 if len(labels) else 0
    each = weights.double() if weighted_centroid else torch.ones_like(weights, dtype=torch.float64)
    shares = each.new_zeros(clusters).index_add_(0, labels, each)
    sums = each.new_zeros(clusters, x.shape[1]).index_add_(0, labels, x.double() * each.unsqueeze(1))
    total = weights.new_zeros(clusters).index_add_(0, labels, weights)
    return (sums / shares.unsqueeze(1)).to(x.dtype), total
