"""Verify that the federation's root has signed a file or a folder.

    verify.py roots FOLDER ETC           check that the roots in FOLDER may replace the roots in ETC
    verify.py folder FOLDER ETC SUBJECT  check that FOLDER holds the files of its manifest, and no other files
    verify.py release FOLDER ETC SUBJECT check FOLDER as `folder` does, but remove files that are not in the manifest

If ETC has no roots yet, the roots in FOLDER become the first roots. The user root runs this program on a host, and
only with the system's Python. `ssh-keygen -Y verify` verifies the signatures. A file of signatures has one signature
for each root that has signed.
"""

from __future__ import annotations

import hashlib
import re
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Final

ROOTS: Final = "roots"  # The file with the statement of the roots; the programs of a release read this file.
SIGNERS: Final = "allowed_signers"  # The roots of the statement, in the form that ssh-keygen reads.
HELD_SIGNERS: Final = "held_signers"
MANIFEST: Final = "manifest"
ENDING: Final = ".sig"
SIGNATURE: Final = re.compile(
    rb"-----BEGIN SSH SIGNATURE-----\n.*?\n-----END SSH SIGNATURE-----\n", re.DOTALL
)
HEAD: Final = re.compile(r"# roots of (\S+), version (\d+), SHA-256 of their statement: ([0-9a-f]{64})")
MAX_BYTES: Final = 1 << 20
PARTIAL: Final = ".rsync-partial"
INSTALL: Final = "`apt-get install openssh-client`"


class ReleaseRefusedError(Exception):
    """The error for a file or a folder that is refused. The message gives the reason."""


@dataclass
class Signers:
    """The roots of a federation, from a file of allowed signers."""

    federation: str
    version: int
    statement: str  # SHA-256 of the statement that lists these roots.
    lines: list[str]


def check_roots(folder: str, etc: str) -> None:
    """Raise ReleaseRefusedError if the host must keep its present roots and refuse the new roots.

    The first roots of a host need only their own signatures. A person who deploys to a new host is root on this
    host, so a check of the first roots could not stop this person.
    """
    path = f"{folder}/{SIGNERS}"
    new = read_signers(path)
    if digest_of(f"{folder}/{ROOTS}") != new.statement:
        raise ReleaseRefusedError(
            f"{folder}/{ROOTS} is not the statement whose SHA-256 is in {path}; deploy again"
        )
    if not Path(etc, ROOTS).exists():
        for line in new.lines:
            check_signature(path, "protofleet-roots", new.federation, [line])
        return
    held = held_signers(etc, f"{folder}/{HELD_SIGNERS}")
    way_out = f"; if this host is to join another federation, first remove {etc}/{ROOTS} on this host"
    try:
        check_signature(path, "protofleet-roots", held.federation, held.lines)
    except ReleaseRefusedError as error:
        raise ReleaseRefusedError(f"{error}{way_out}") from None
    if new.federation != held.federation or new.version < held.version:
        raise ReleaseRefusedError(
            f"version {new.version} of the roots of {new.federation} cannot replace version {held.version} of the "
            f"roots of {held.federation}{way_out}"
        )


def held_signers(etc: str, *sent: str) -> Signers:
    """Return the roots that this host holds.

    With an earlier release, a host has only the statement of the roots, and no file of allowed signers. Then the
    operator's machine sends a file of allowed signers, and `sent` has the path of this file.
    """
    statement = digest_of(f"{etc}/{ROOTS}")
    for path in (f"{etc}/{SIGNERS}", *sent):
        if Path(path).exists() and (found := read_signers(path)).statement == statement:
            return found
    raise ReleaseRefusedError(
        f"this host has no file {etc}/{SIGNERS} with the roots of {etc}/{ROOTS}; deploy again, and if the error "
        f"occurs again, first remove {etc}/{ROOTS} on this host"
    )


def read_signers(path: str) -> Signers:
    lines = read(path).decode().splitlines() or [""]
    found = HEAD.fullmatch(lines[0])
    if found is None or not lines[1:]:
        raise ReleaseRefusedError(f"{path} is not a file of allowed signers; deploy again")
    return Signers(found[1], int(found[2]), found[3], lines[1:])


def check_folder(folder: str, etc: str, subject: str, prune: bool = False) -> None:
    """Raise ReleaseRefusedError if the folder differs from its signed manifest.

    If `prune` is true, files that the manifest does not list are removed. Their content is never read.
    """
    signers, path = held_signers(etc), f"{folder}/{MANIFEST}"
    lines = check_signature(path, "protofleet-manifest", signers.federation, signers.lines).splitlines()
    wanted, found = f"# {subject} in {signers.federation}", lines.pop(0)
    if found != wanted:
        raise ReleaseRefusedError(f"{path} is for {found[2:]}, and not for {wanted[2:]}")
    listed = dict(line.split("  ", 1)[::-1] for line in lines if not line.startswith("#"))
    present = {one.name for one in Path(folder).iterdir()} - {MANIFEST, MANIFEST + ENDING, PARTIAL}
    for name in sorted(present - set(listed)):
        if not prune:
            raise ReleaseRefusedError(f"{folder}/{name} is not in the signed manifest; deploy again")
        remove(Path(folder) / name)
    for name, digest in sorted(listed.items()):
        path = f"{folder}/{name}"
        if name not in present:
            raise ReleaseRefusedError(f"{path} is missing, but the signed manifest lists it; deploy again")
        if Path(path).is_symlink() or not Path(path).is_file() or digest_of(path) != digest:
            raise ReleaseRefusedError(
                f"{path} differs from the file that the signed manifest lists; deploy again"
            )


def check_signature(path: str, namespace: str, federation: str, lines: list[str]) -> str:
    """Return the text of a file if a root in one of these lines has signed it, or raise ReleaseRefusedError."""
    data, answer = read(path), "there is no signature"
    with tempfile.TemporaryDirectory() as folder:
        allowed, one = Path(folder, SIGNERS), Path(folder, "signature")
        allowed.write_text("\n".join([*lines, ""]))
        words = ["ssh-keygen", "-Y", "verify", "-f", str(allowed), "-I", federation, "-n", namespace]
        for signature in SIGNATURE.findall(read(path + ENDING)):
            one.write_bytes(signature)
            try:
                done = subprocess.run([*words, "-s", str(one)], input=data, capture_output=True, check=False)
            except FileNotFoundError:
                raise ReleaseRefusedError(
                    f"the program ssh-keygen, which verifies signatures, is missing; install it with {INSTALL}"
                ) from None
            if done.returncode == 0:
                return data.decode()
            answer = (done.stderr + done.stdout).decode(errors="replace").strip()
            if "usage:" in answer:
                raise ReleaseRefusedError(
                    f"ssh-keygen is older than OpenSSH 8.2 and cannot verify signatures; update it with {INSTALL}"
                )
    raise ReleaseRefusedError(
        f"no root of this host has signed {path} in its present form: {answer.partition(chr(10))[0]}"
    )


def read(path: str) -> bytes:
    try:
        with Path(path).open("rb") as file:
            return file.read(MAX_BYTES)
    except OSError as error:
        raise ReleaseRefusedError(f"{path} cannot be read: {error.strerror}") from None


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


def main(arguments: list[str]) -> None:
    try:
        if arguments[0] == "roots":
            check_roots(arguments[1], arguments[2])
        else:
            check_folder(arguments[1], arguments[2], arguments[3], arguments[0] == "release")
    except ReleaseRefusedError as error:
        sys.exit(str(error))
    except (OSError, ValueError) as error:
        sys.exit(f"{' '.join(arguments)}: {error}; deploy again")


if __name__ == "__main__":
    main(sys.argv[1:])
