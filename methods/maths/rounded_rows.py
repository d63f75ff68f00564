"""Rows of numbers in 8 bits, with a scale for each row and random rounding that is right on average."""

from __future__ import annotations

import torch
from torch import Tensor

LEVELS = 127  # Numbers are rounded to whole multiples, -127 to 127, of the row's scale divided by 127.
ZERO = 128  # The code of 0. The code 0 is not used.


def rounded_rows(rows: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Return the codes [R, W] in uint8 and the scales [R] in float32 of rows [R, W].

    The scale is the largest number of a row. A number between two levels goes to the upper one with a chance in
    proportion to its distance from the lower one.
    """
    scales = rows.abs().amax(dim=1).float()
    divisors = torch.where(scales > 0, scales, 1.0).double().unsqueeze(1)
    chances = torch.rand(rows.shape, generator=generator, dtype=torch.float64).to(rows.device)
    levels = (rows.double() / divisors * LEVELS + chances).floor().clamp(-LEVELS, LEVELS)
    return (levels + ZERO).to(torch.uint8), scales


def rows_of(codes: Tensor, scales: Tensor) -> Tensor:
    """Return the rows [R, W] in float64 that the codes and the scales stand for."""
    return (codes.double() - ZERO) * (scales.double() / LEVELS).unsqueeze(1)


def room(width: int) -> float:
    """Return the factor by which rounding may make the norm of a row of this width larger.

    A number changes by less than a level, that is by less than the norm of its row divided by 127.
    """
    return float(1 + width**0.5 / LEVELS)
