"""Verify that the federation's root has signed a file or a folder.

    verify.py roots NEW HELD               may NEW replace the roots in HELD, or be the first roots?
    verify.py folder FOLDER ROOTS SUBJECT  does FOLDER hold what its manifest lists, and nothing else?
    verify.py release FOLDER ROOTS SUBJECT the same, but files that the manifest does not list are removed

Root runs this program on a host, with the system's Python alone. Before the first release nothing of ours is
installed there, so this program verifies signatures itself, as in RFC 8032 (5.1.7). The form of a statement is
that of `protocol/security/statements.py`. No value here is secret, so no operation has to take constant time.
"""

from __future__ import annotations

import base64
import hashlib
import shutil
import struct
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

P: Final = 2**255 - 19
ORDER: Final = 2**252 + 27742317777372353535851937790883648493
D: Final = -121665 * pow(121666, P - 2, P) % P
ROOT_OF_MINUS_ONE: Final = pow(2, (P - 1) // 4, P)
DOMAIN: Final = b"protofleet/1 statement\x00"
MANIFEST: Final = "manifest"
MAX_BYTES: Final = 1 << 20
PARTIAL: Final = ".rsync-partial"

Point = tuple[int, int, int, int]  # extended coordinates


class ReleaseRefusedError(Exception):
    """The error that a file or a folder is refused. The message gives the reason."""


def body_of(kind: str, path: str, roots: Sequence[bytes] | None) -> bytes:
    """Return the body of a statement that one of these keys has signed; raise RefusedError if none has.

    If `roots` is None, the signature is not checked.
    """
    data = armoured(kind, path)
    start = b"PFS\x01" + bytes([len(kind)]) + kind.encode()
    try:
        count = data[len(start)]
        at = len(start) + 1 + 8 * count
        (length,) = struct.unpack_from("<I", data, at)
        end = at + 4 + length
    except (IndexError, struct.error):
        raise ReleaseRefusedError(f"{path} is no {kind}") from None
    if not data.startswith(start) or not 1 <= count <= 2 or len(data) != end + 64 * count:
        raise ReleaseRefusedError(f"{path} is no {kind}")
    names = [data[len(start) + 1 + 8 * i :][:8] for i in range(count)]
    signatures = [data[end + 64 * i :][:64] for i in range(count)]
    known = {hashlib.sha256(key).digest()[:8]: key for key in roots or ()}
    good = [(known[names[i]], signatures[i]) for i in range(count) if names[i] in known]
    if roots is not None and not good:
        raise ReleaseRefusedError(f"{path} is signed by {names[0].hex()}, which is no root of this device")
    if not all(signed(key, signature, DOMAIN + data[:end]) for key, signature in good):
        raise ReleaseRefusedError(f"{path} was changed after it was signed")
    return data[at + 4 : end]


def armoured(kind: str, path: str) -> bytes:
    try:
        with Path(path).open("rb") as file:
            lines = file.read(2 * MAX_BYTES).split(b"\n")
    except OSError as error:
        raise ReleaseRefusedError(f"{path} cannot be read: {error.strerror}") from None
    label = f"PROTOFLEET {kind.upper()}-----".encode()
    if lines[0] != b"-----BEGIN " + label or lines[-2:] != [b"-----END " + label, b""]:
        raise ReleaseRefusedError(f"{path} is no {kind}")
    try:
        return base64.b64decode(b"".join(lines[1:-2]), validate=True)
    except ValueError:
        raise ReleaseRefusedError(f"{path} is not valid base64: it was damaged in transfer") from None


class StatementFields:
    def __init__(self, body: bytes) -> None:
        self.body, self.at = body, 0

    def number(self, form: str = "<Q") -> int:
        (value,) = struct.unpack_from(form, self.body, self.at)
        self.at += struct.calcsize(form)
        return int(value)

    def blob(self) -> bytes:
        length = self.number("<I")
        self.at += length
        if self.at > len(self.body):
            raise struct.error
        return self.body[self.at - length : self.at]

    def blobs(self) -> list[bytes]:
        return [self.blob() for _ in range(self.number("<I"))]


def roots_of(body: bytes) -> tuple[str, int, list[bytes]]:
    """Return the federation, the version and the keys of roots."""
    fields = StatementFields(body)
    return fields.blob().decode(), fields.number(), fields.blobs()


def check_roots(new: str, held: str) -> None:
    """Raise RefusedError if the new roots may not replace those that are held.

    The first roots need only their own signatures, because the person who deploys has root's rights on the
    host anyway.
    """
    if not Path(held).exists():
        for key in roots_of(body_of("roots", new, None))[2]:
            body_of("roots", new, [key])
        return
    federation, version, keys = roots_of(body_of("roots", held, None))
    way_out = f"; if this device is to join another federation, remove {held} there first"
    try:
        follower = roots_of(body_of("roots", new, keys))
    except ReleaseRefusedError as error:
        raise ReleaseRefusedError(f"{error}{way_out}") from None
    if follower[0] != federation or follower[1] < version:
        raise ReleaseRefusedError(
            f"roots {follower[1]} of {follower[0]} cannot follow roots {version} of {federation}{way_out}"
        )


def check_folder(folder: str, roots: str, subject: str, prune: bool = False) -> None:
    """Raise RefusedError if the folder differs from its signed manifest.

    If `prune` is true, files that the manifest does not list are removed; their content has not been read
    before.
    """
    federation, _, keys = roots_of(body_of("roots", roots, None))
    fields = StatementFields(body_of(MANIFEST, f"{folder}/{MANIFEST}", keys))
    found = (fields.blob().decode(), fields.blob().decode())
    if found != (federation, subject):
        raise ReleaseRefusedError(
            f"{folder}/{MANIFEST} is of {found[1]} in {found[0]}, not of {subject} in {federation}"
        )
    fields.number()
    listed = dict(line.decode().split(" ", 1)[::-1] for line in fields.blobs())
    present = {path.name for path in Path(folder).iterdir()} - {MANIFEST, PARTIAL}
    for name in sorted(present - set(listed)):
        if prune:
            remove(Path(folder) / name)
            continue
        raise ReleaseRefusedError(f"{folder}/{name} is not in the signed manifest; deploy again")
    for name, digest in sorted(listed.items()):
        path = f"{folder}/{name}"
        if name not in present:
            raise ReleaseRefusedError(f"{path} is missing, which the signed manifest lists; deploy again")
        if Path(path).is_symlink() or not Path(path).is_file() or digest_of(path) != digest:
            raise ReleaseRefusedError(f"{path} is not what the signed manifest lists; deploy again")


def remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink()


def digest_of(path: str) -> str:
    total = hashlib.sha256()
    with Path(path).open("rb") as file:
        for piece in iter(lambda: file.read(1 << 20), b""):
            total.update(piece)
    return total.hexdigest()


def signed(key: bytes, signature: bytes, message: bytes) -> bool:
    """Return whether an Ed25519 signature is valid. The equation has no cofactor: S B = R + h A."""
    point, commitment = decompress(key), decompress(signature[:32])
    scalar = int.from_bytes(signature[32:], "little")
    if point is None or commitment is None or scalar >= ORDER:
        return False
    h = int.from_bytes(hashlib.sha512(signature[:32] + key + message).digest(), "little") % ORDER
    left, right = times(scalar, base()), add(commitment, times(h, point))
    return all((left[i] * right[2] - right[i] * left[2]) % P == 0 for i in (0, 1))


def add(p: Point, q: Point) -> Point:
    a, b = (p[1] - p[0]) * (q[1] - q[0]) % P, (p[1] + p[0]) * (q[1] + q[0]) % P
    c, d = 2 * p[3] * q[3] * D % P, 2 * p[2] * q[2] % P
    e, f, g, h = b - a, d - c, d + c, b + a
    return e * f % P, g * h % P, f * g % P, e * h % P


def times(scalar: int, point: Point) -> Point:
    total = (0, 1, 1, 0)
    while scalar:
        if scalar & 1:
            total = add(total, point)
        point, scalar = add(point, point), scalar >> 1
    return total


def decompress(data: bytes) -> Point | None:
    y = int.from_bytes(data, "little")
    sign, y = y >> 255, y & (2**255 - 1)
    if y >= P:
        return None
    square = (y * y - 1) * pow(D * y * y + 1, P - 2, P) % P
    x = pow(square, (P + 3) // 8, P)
    if (x * x - square) % P:
        x = x * ROOT_OF_MINUS_ONE % P
    if (x * x - square) % P or (x == 0 and sign):
        return None
    if x & 1 != sign:
        x = P - x
    return x, y, 1, x * y % P


def base() -> Point:
    found = decompress((4 * pow(5, P - 2, P) % P).to_bytes(32, "little"))
    assert found is not None
    return found


def main(arguments: list[str]) -> None:
    try:
        if arguments[0] == "roots":
            check_roots(arguments[1], arguments[2])
        else:
            check_folder(arguments[1], arguments[2], arguments[3], arguments[0] == "release")
    except ReleaseRefusedError as error:
        sys.exit(str(error))
    except (struct.error, ValueError, IndexError):
        sys.exit(f"what {' '.join(arguments)} names is no statement of ours")


if __name__ == "__main__":
    main(sys.argv[1:])
