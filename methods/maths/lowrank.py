"""Messages that carry a matrix, either as the factors of its largest singular values or as a whole.

The whole matrix is sent if it has no more numbers than the factors.

A message is a flat array: U [m, r], s [r] and V [r, n], or the matrix itself with m n numbers. The
length of the array shows whether it holds the factors or the matrix.
"""

from __future__ import annotations

import torch
from torch import Tensor


def rank_of(values: Tensor, energy: float) -> int:
    """Return the smallest rank that keeps the share `energy` of the sum of the squared singular values."""
    kept = values.double().square().cumsum(0)
    return min(int((kept < energy * kept[-1]).sum()) + 1, len(values))


def numbers(rows: int, columns: int, rank: int) -> int:
    """Return how many numbers the message contains."""
    return min(rank * (rows + columns + 1), rows * columns)


def packed(matrix: Tensor, energy: float) -> Tensor:
    """Return the message [n] for a matrix.

    A matrix that is not finite is sent whole, because it has no singular values. The receiver refuses this matrix.
    """
    if not bool(matrix.isfinite().all()):
        return matrix.reshape(-1)
    U, s, V = torch.linalg.svd(matrix, full_matrices=False)
    r = rank_of(s, energy)
    if r * (sum(matrix.shape) + 1) >= matrix.numel():
        return matrix.reshape(-1)
    return torch.cat([U[:, :r].reshape(-1), s[:r], V[:r].reshape(-1)])


def unpacked(message: Tensor, rows: int, columns: int) -> Tensor:
    """Return the matrix [rows, columns] of a message.

    U and V consist of unit vectors. So their numbers are clamped to the range from -1 to 1.
    """
    if len(message) == rows * columns:
        return message.reshape(rows, columns)
    r = len(message) // (rows + columns + 1)
    U, s, V = torch.split(message, [rows * r, r, r * columns])
    return (U.reshape(rows, r).clamp(-1, 1) * s) @ V.reshape(r, columns).clamp(-1, 1)
