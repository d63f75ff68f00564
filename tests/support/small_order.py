"""Every encoding of every point of small order, computed by plain arithmetic on the curves."""

from __future__ import annotations

import struct

from protofleet.protocol.security import statements

P = 2**255 - 19
D = -121665 * pow(121666, -1, P) % P
I = pow(2, (P - 1) // 4, P)  # noqa: E741 - a square root of -1
IDENTITY = (0, 1)


def root(square: int) -> int | None:
    for found in (r := pow(square, (P + 3) // 8, P), r * I % P):
        if found * found % P == square % P:
            return found
    return None


def add(a: tuple[int, int], b: tuple[int, int]) -> tuple[int, int]:
    """Add two points on the twisted Edwards curve of Ed25519 (RFC 8032, section 5.1)."""
    (x1, y1), (x2, y2) = a, b
    t = D * x1 * x2 * y1 * y2 % P
    x = (x1 * y2 + x2 * y1) * pow(1 + t, -1, P) % P
    return x, (y1 * y2 + x1 * x2) * pow(1 - t, -1, P) % P


def times(count: int, point: tuple[int, int]) -> tuple[int, int]:
    made = IDENTITY
    for bit in f"{count:b}":
        made = add(made, made)
        made = add(made, point) if bit == "1" else made
    return made


def torsion() -> list[tuple[int, int]]:
    """Return the eight points whose product with 8 is the identity: the multiples of a point of order eight."""
    order = 2**252 + 27742317777372353535851937790883648493
    for y in range(2, 100):
        x = root((y * y - 1) * pow(D * y * y + 1, P - 2, P))
        if x is not None and times(4, rest := times(order, (x, y))) != IDENTITY:
            return [times(i, rest) for i in range(8)]
    raise AssertionError("there is one among so many")


def encodings(values: set[int]) -> list[bytes]:
    """Return the 32-byte encodings of these values, each reduced or not, and with the highest bit or without it."""
    whole = {n for v in values for n in (v, v + P) if n < 2**255}
    return [(n + high).to_bytes(32, "little") for n in sorted(whole) for high in (0, 2**255)]


SIGN = encodings({y for _, y in torsion()})
# RFC 7748 maps y to u = (1 + y) / (1 - y). P - 1 is the point of order four on the twist, to which no
# Ed25519 point is mapped.
RECEIVE = encodings({(1 + y) * pow(1 - y, P - 2, P) % P for _, y in torsion()} | {P - 1})


def signed_by_nobody(kind: str, body: bytes, public: bytes) -> bytes:
    """Return a statement under a key of small order, whose signature is R = the identity and S = 0.

    Under the key that is the identity, this signature is valid for every message; under the other keys of small
    order it is valid for some messages.
    """
    label = kind.encode()
    head = statements.MAGIC + bytes([len(label)]) + label + b"\x01" + statements.signer(public)
    return head + struct.pack("<I", len(body)) + body + (1).to_bytes(32, "little") + bytes(32)
