"""The files that are copied to a device, by hash: a statement by the federation's root, verified there (`verify.py`).

    body := federation | subject | u64 issued | each file: "SHA-256 name"

Subjects are `release NAME` and `device NAME`: wheels or an image; settings and unit.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from protofleet.deploy.fleet.software import file_digest
from protofleet.protocol.security.statements import Writer, armoured, sign_statement

MANIFEST: Final = "manifest"  # the kind of statement, and the file's name in the folder that it is about


def issue_manifest(
    federation: str, subject: str, files: Mapping[str, str], keys: Sequence[Ed25519PrivateKey]
) -> str:
    """`files`: name to SHA-256."""
    lines = [f"{digest} {name}".encode() for name, digest in sorted(files.items())]
    body = Writer().text(federation).text(subject).number(int(time.time())).blobs(lines).done()
    return armoured(MANIFEST, sign_statement(MANIFEST, body, keys))


def files_of(folder: Path) -> dict[str, str]:
    return {path.name: file_digest(path) for path in sorted(folder.iterdir()) if path.name != MANIFEST}
