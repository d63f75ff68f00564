"""Sign the hashes of the files that are copied to a host.

The manifest is a statement by the federation's root, and `verify.py` verifies it on the host.

    body := federation | subject | u64 issued | each file: "SHA-256 name"

The subject `release NAME` is for wheels or an image, and `ROLE NAME`, such as `device NAME`, for the settings and
the unit. `keys NAME` is for the keys of a broker.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from protofleet.deploy.fleet.software import file_digest
from protofleet.protocol.security.statements import Writer, armoured, sign_statement

# the kind of the statement, and the name of its file in the folder that it describes
MANIFEST: Final = "manifest"


def issue_manifest(
    federation: str, subject: str, files: Mapping[str, str], keys: Sequence[Ed25519PrivateKey]
) -> str:
    """Sign a manifest. `files` maps the names of files to their SHA-256."""
    lines = [f"{digest} {name}".encode() for name, digest in sorted(files.items())]
    body = Writer().text(federation).text(subject).number(int(time.time())).blobs(lines).done()
    return armoured(MANIFEST, sign_statement(MANIFEST, body, keys))


def files_of(folder: Path) -> dict[str, str]:
    return {path.name: file_digest(path) for path in sorted(folder.iterdir()) if path.name != MANIFEST}
