"""Gram matrices of features, and the upper triangles in which symmetric matrices are sent.

A triangle is sent row by row, with the diagonal.
"""

from __future__ import annotations

import torch
from torch import Tensor

SHORTEST_ROW = 1e-6  # A row of a head that is shorter than this is divided by this length.


def triangle_size(n: int) -> int:
    """Return how many numbers the upper triangle of a matrix [n, n] has."""
    return n * (n + 1) // 2


def triangle_of(matrix: Tensor) -> Tensor:
    """Return the upper triangle of each matrix, [..., n, n] -> [..., n (n + 1) / 2]."""
    rows, columns = _places(matrix.shape[-1], matrix)
    return matrix[..., rows, columns]


def upper_of(triangle: Tensor, n: int) -> Tensor:
    """Return the matrices [..., n, n] of upper triangles, with zeros below the diagonal."""
    rows, columns = _places(n, triangle)
    found = triangle.new_zeros(*triangle.shape[:-1], n, n)
    found[..., rows, columns] = triangle
    return found


def symmetric_of(triangle: Tensor, n: int) -> Tensor:
    """Return the symmetric matrices [..., n, n] of upper triangles."""
    rows, columns = _places(n, triangle)
    found = upper_of(triangle, n)
    found[..., columns, rows] = triangle
    return found


def _places(n: int, like: Tensor) -> tuple[Tensor, Tensor]:
    rows, columns = torch.triu_indices(n, n, device=like.device)
    return rows, columns


def with_constant(x: Tensor) -> Tensor:
    """Return the features with a constant feature of 1 at the end, [N, D] -> [N, D + 1]."""
    return torch.cat([x, x.new_ones(len(x), 1)], dim=1)


def gram(x: Tensor) -> Tensor:
    """Return the sum of x x' over the samples [N, D], in float64."""
    wide = x.double()
    found: Tensor = wide.T @ wide
    return found


def unit_classes(head: Tensor, width: int) -> Tensor:
    """Return the head [C, n]; each row is divided by the length of its first `width` numbers.

    The bias, which stands behind these numbers, does not count in the length.
    """
    lengths = head[:, :width].norm(dim=1, keepdim=True)
    found: Tensor = head / lengths.clamp(min=SHORTEST_ROW)
    return found
