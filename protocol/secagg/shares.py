"""Split a secret of 32 bytes into shares, of which any `needed` give the secret back, and fewer say nothing of it.

This is Shamir's scheme over the first prime above 2^256. A share is the value of the polynomial at the point of its
holder, in 33 bytes.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Sequence
from typing import Final

from protofleet.protocol.secagg.faults import SecaggError, SecaggFault

SECRET: Final = 32
PRIME: Final = 2**256 + 297
SHARE: Final = 33
NO_SHARE: Final = b"\xff" * SHARE  # larger than the prime, so it is never a share


def split(secret: bytes, points: Iterable[int], needed: int) -> dict[int, bytes]:
    """Return a share for each point; the points must be different and not 0."""
    drawn = [secrets.randbelow(PRIME) for _ in range(needed - 1)]
    terms = [int.from_bytes(secret, "little"), *drawn]
    return {point: polynomial(terms, point).to_bytes(SHARE, "little") for point in points}


def secret_of(value: int) -> bytes:
    """Return the secret that a polynomial has at 0, or raise SecaggError if it is none."""
    if value >= 1 << (8 * SECRET):
        raise SecaggError(SecaggFault.BAD_SHARES, "the shares give no secret of 32 bytes")
    return value.to_bytes(SECRET, "little")


def share_value(share: bytes) -> int:
    """Return the number of a share, or raise SecaggError."""
    value = int.from_bytes(share, "little")
    if len(share) != SHARE or value >= PRIME:
        raise SecaggError(SecaggFault.MALFORMED, f"{len(share)} bytes that are not a share")
    return value


def polynomial(terms: Sequence[int], point: int) -> int:
    """Return the value of a polynomial at a point, modulo the prime; the constant term is first."""
    value = 0
    for term in reversed(terms):
        value = (value * point + term) % PRIME
    return value


def coefficients(points: Sequence[int], place: int) -> list[int]:
    """Return Lagrange's coefficients: the value at `place` is the sum of coefficient times value at each point."""
    found = []
    for point in points:
        top = bottom = 1
        for other in points:
            if other != point:
                top, bottom = top * (place - other) % PRIME, bottom * (point - other) % PRIME
        found.append(top * pow(bottom, -1, PRIME) % PRIME)
    return found


def weighted(shares: Sequence[bytes], weights: Sequence[int]) -> int:
    """Return the sum of weight times share, modulo the prime."""
    return sum(weight * share_value(share) for weight, share in zip(weights, shares, strict=True)) % PRIME
