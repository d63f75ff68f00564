"""Sign the hashes of the files that are copied to a host.

The manifest is a text that the federation's root signs. `verify.py` verifies the manifest on the host:

    # SUBJECT in FEDERATION
    # signed: SECONDS since 1970
    SHA-256, two spaces and the name, in a line for each file

The subject `release NAME` is for wheels or an image. The subject `ROLE NAME`, such as `device board-1`, is for the
settings and the unit. The subject `keys NAME` is for the keys of a broker.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from protofleet.deploy.fleet.device.verify import ENDING, MANIFEST
from protofleet.deploy.fleet.software import file_digest
from protofleet.federation.enrol.ssh_signatures import MANIFEST_NAMESPACE, sign
from protofleet.protocol.settings.reader import SettingsError

MANIFEST_FILES: Final = (MANIFEST, MANIFEST + ENDING)  # The names of a manifest and of its signatures.


def issue_manifest(
    federation: str, subject: str, files: Mapping[str, str], keys: Sequence[Ed25519PrivateKey]
) -> dict[str, str]:
    """Return the texts of a manifest and of its signatures, by file name. `files` maps file names to SHA-256s."""
    if broken := [name for name in files if not name.isprintable()]:
        raise SettingsError(f"{broken[0]!r} cannot be shipped: its name must be printable; rename the file")
    lines = [f"{digest}  {name}" for name, digest in sorted(files.items())]
    text = "\n".join([f"# {subject} in {federation}", f"# signed: {time.time():.0f}", *lines, ""])
    return {MANIFEST: text, MANIFEST + ENDING: sign(MANIFEST_NAMESPACE, text.encode(), keys)}


def files_of(folder: Path) -> dict[str, str]:
    """Return the SHA-256 of each file in the folder, except the files of a manifest."""
    return {
        path.name: file_digest(path) for path in sorted(folder.iterdir()) if path.name not in MANIFEST_FILES
    }
