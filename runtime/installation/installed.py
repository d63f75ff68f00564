"""Rebuild the wheel of an installed protofleet from its own files.

The file RECORD of the distribution lists these files and their hashes. A missing or changed file is an error,
because nobody could explain the problems that such a file may cause on a device.
"""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import re
import zipfile
from collections.abc import Iterator
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path, PurePosixPath
from typing import Final

from protofleet.runtime.command.errors import RunError

NAME: Final = "protofleet"
# Files that an installer writes, and that are not part of the wheel.
OF_INSTALLERS: Final = frozenset({"INSTALLER", "REQUESTED", "RECORD", "direct_url.json", "uv_cache.json"})
REINSTALL: Final = f"pip install --force-reinstall --no-deps {NAME} puts it right"
LONG_AGO: Final = (1980, 1, 1, 0, 0, 0)  # A fixed date, so that the same files give the same wheel.


def installed_wheel(folder: Path) -> Path:
    """Write the wheel into the folder, and return its path.

    Raise RunError if the files of the wheel cannot be verified.
    """
    try:
        found = distribution(NAME)
    except PackageNotFoundError:
        raise RunError(f"{NAME} is not installed as a package; run pip install {NAME}") from None
    files = dict(checked_files(found))
    info = next((name.partition("/")[0] for name in files if name.endswith(".dist-info/WHEEL")), "")
    if not info:
        raise RunError(f"the installed {NAME} has no list of its files (RECORD); {REINSTALL}")
    tag = re.findall(r"(?m)^Tag: (\S+)", files[f"{info}/WHEEL"].decode())[0]
    path = folder / f"{info.removesuffix('.dist-info')}-{tag}.whl"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as wheel:
        for name, content in (*sorted(files.items()), (f"{info}/RECORD", record(files, info))):
            entry = zipfile.ZipInfo(name, LONG_AGO)
            entry.external_attr = 0o644 << 16
            wheel.writestr(entry, content, zipfile.ZIP_DEFLATED)
    return path


def checked_files(found: Distribution) -> Iterator[tuple[str, bytes]]:
    """Yield the name and content of each file of the wheel; raise RunError for a missing or changed file."""
    for file in found.files or ():
        if not is_of_the_wheel(PurePosixPath(file)):
            continue
        path = Path(str(file.locate()))
        try:
            content = path.read_bytes()
        except OSError as error:
            raise RunError(f"{path} of the installed {NAME}: {error.strerror}; {REINSTALL}") from None
        if file.hash is None or file.hash.mode != "sha256" or digest(content) != file.hash.value:
            raise RunError(
                f"{path} is not as it was installed (its hash differs from that in RECORD); {REINSTALL}"
            )
        yield PurePosixPath(file).as_posix(), content


def is_of_the_wheel(path: PurePosixPath) -> bool:
    """Return whether the file is part of the wheel.

    These files are not part of it: commands (they are in another folder), compiled files, and files of
    installers.
    """
    in_place = path.parts[0] == NAME or path.parts[0].endswith(".dist-info")
    return in_place and "__pycache__" not in path.parts and path.name not in OF_INSTALLERS


def record(files: dict[str, bytes], info: str) -> bytes:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    for name, content in sorted(files.items()):
        writer.writerow([name, f"sha256={digest(content)}", len(content)])
    writer.writerow([f"{info}/RECORD", "", ""])
    return text.getvalue().encode()


def digest(content: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()


def requirements() -> list[str]:
    """Return the requirements of protofleet, without the requirements of its extras."""
    return [line for line in distribution(NAME).requires or () if "extra ==" not in line]
