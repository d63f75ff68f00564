"""Matrices as the factors of their largest singular values, where these are fewer numbers than the matrix has.

A message is laid flat: U [m, r], s [r] and V [r, n], or the matrix itself, of m n numbers. Its length says which.
"""

from __future__ import annotations

import torch
from torch import Tensor


def rank_of(values: Tensor, energy: float) -> int:
    """The smallest r >= 1 so that the first r singular values have this share of the squares of all."""
    kept = values.double().square().cumsum(0)
    return min(int((kept < energy * kept[-1]).sum()) + 1, len(values))


def numbers(rows: int, columns: int, rank: int) -> int:
    """Those of the message."""
    return min(rank * (rows + columns + 1), rows * columns)


def packed(matrix: Tensor, energy: float) -> Tensor:
    """[n]. What is no number has no singular values, and is refused where it arrives."""
    if not bool(matrix.isfinite().all()):
        return matrix.reshape(-1)
    U, s, V = torch.linalg.svd(matrix, full_matrices=False)
    r = rank_of(s, energy)
    if r * (sum(matrix.shape) + 1) >= matrix.numel():
        return matrix.reshape(-1)
    return torch.cat([U[:, :r].reshape(-1), s[:r], V[:r].reshape(-1)])


def unpacked(message: Tensor, rows: int, columns: int) -> Tensor:
    """[rows, columns]. No number of a unit vector is beyond 1, whatever has been sent."""
    if len(message) == rows * columns:
        return message.reshape(rows, columns)
    r = len(message) // (rows + columns + 1)
    U, s, V = torch.split(message, [rows * r, r, r * columns])
    return (U.reshape(rows, r).clamp(-1, 1) * s) @ V.reshape(r, columns).clamp(-1, 1)
