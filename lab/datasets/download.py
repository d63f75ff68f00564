"""Download one file over HTTP, completely or not at all.

If the connection breaks, the received bytes are kept, and the next try continues after them. The file is
called <name>.part until its checksum is right. Therefore no reader uses an incomplete file.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import http.client
import re
import socket
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Final

from protofleet.lab.datasets.torchvision_lists import RemoteFile
from protofleet.protocol.link.meter import human_bytes
from protofleet.protocol.storage.disk import is_full
from protofleet.runtime.command.errors import RunError, StoppedError

PIECE: Final = 1 << 16
# A connection counts as broken if the server has sent nothing for this number of seconds.
SILENT_SECONDS: Final = 30.0
SHOWN_SECONDS: Final = 5.0
PASSING: Final = frozenset(
    {408, 425, 429, 500, 502, 503, 504}
)  # HTTP status codes after which a later request may succeed.
# Largest number of tries at one address. A try that receives new bytes resets the count.
TRIES: Final = 4
# Maximum bytes of one file. The largest known file has less than a tenth of this.
MOST_BYTES: Final = 8 << 30
CONTENT_RANGE: Final = re.compile(r"bytes (\d+)-\d+/(\d+|\*)")
# The name that is sent to servers, because some servers refuse clients without a name.
AGENT: Final = "protofleet (+urllib)"
BROKEN: Final = (OSError, http.client.HTTPException)

Say = Callable[[str], None]


class RequestRefusedError(Exception):
    """The error for a request that the server has refused. Do not repeat the request."""


@dataclass(frozen=True)
class Downloader:
    say: Say
    pause: Callable[[float], None] = time.sleep
    clock: Callable[[], float] = time.monotonic

    def fetch(self, file: RemoteFile, folder: Path) -> Path:
        """Download the file if it is missing, check its checksum, and return its path.

        If the download fails, a RunError is raised, and its message says what to do.
        """
        target = folder / file.name
        if target.is_file() and md5_of(target) == file.md5:
            self.say(f"{file.name}: {human_bytes(target.stat().st_size)} are there already")
            return target
        part = target.with_name(f"{file.name}.part")
        problems = []
        for address in file.addresses:
            try:
                self._fetch_from(address, part)
                require_checksum(part, file, address)
            except (RequestRefusedError, *BROKEN) as error:
                # The disk of this machine has failed, and not the network.
                if isinstance(error, OSError) and error.filename:
                    raise disk_error(error, part) from None
                problems.append(f"{address}: {words_of(error)}")
            except KeyboardInterrupt:
                raise StoppedError(f"stopped; {kept(part, target)}") from None
            else:
                part.replace(target)
                self.say(f"{file.name}: {human_bytes(target.stat().st_size)}, its checksum is right")
                return target
        raise RunError(f"{file.name} cannot be fetched ({'; '.join(problems)}); {kept(part, target)}")

    def _fetch_from(self, address: str, part: Path) -> None:
        """Receive bytes until the file is complete.

        If the connection breaks, a new connection requests only the bytes that are still missing.
        """
        failed, at_first = 0, size_of(part)
        while True:
            before = size_of(part)
            try:
                if self._receive(address, part):
                    return
                error: Exception = ConnectionError("the connection ended too early")
            except urllib.error.HTTPError as refused:
                error = ConnectionError(f"the server says {refused.code} {refused.reason}")
                if refused.code not in PASSING:
                    raise RequestRefusedError(str(error)) from None
            except BROKEN as broken:
                if isinstance(broken, OSError) and broken.filename:
                    raise
                error = broken
            failed = 1 if size_of(part) > before else failed + 1
            if failed >= TRIES or (is_unknown(error) and size_of(part) == at_first):
                raise error
            self.say(f"{address}: {words_of(error)}; {human_bytes(size_of(part))} are there, trying again")
            self.pause(2.0 ** (failed - 1))

    def _receive(self, address: str, part: Path) -> bool:
        """Receive bytes, and return whether the file is complete after that."""
        have = size_of(part)
        headers = {"User-Agent": AGENT, **({"Range": f"bytes={have}-"} if have else {})}
        request = urllib.request.Request(address, headers=headers)
        try:
            answer = urllib.request.urlopen(request, timeout=SILENT_SECONDS)
        except urllib.error.HTTPError as error:
            if have and error.code == http.HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
                return True  # The server has no more bytes. The checksum will show whether the file is right.
            raise
        with answer:
            begins, total = place_of(answer, have)
            if begins != have:
                have = 0  # The server cannot send a part of a file, so it sends the whole file.
            self.say(f"{address}: {amount(total)}{f', from {human_bytes(have)} on' if have else ''}")
            with own_file(part) as file:
                file.truncate(have)
                for piece in self._shown(iter(lambda: answer.read(PIECE), b""), have, total):
                    have += len(piece)
                    if have > MOST_BYTES:
                        raise RequestRefusedError(f"the server sends more than {human_bytes(MOST_BYTES)}")
                    file.write(piece)
        return total is None or have >= total

    def _shown(self, pieces: Iterable[bytes], have: int, total: int | None) -> Iterator[bytes]:
        """Yield the pieces, and print the progress every few seconds."""
        shown_at = self.clock()
        for piece in pieces:
            yield piece
            have += len(piece)
            if self.clock() - shown_at >= SHOWN_SECONDS:
                shown_at = self.clock()
                self.say(f"{human_bytes(have)} of {amount(total)}")


@contextlib.contextmanager
def own_file(part: Path) -> Iterator[BinaryIO]:
    """Open a file to append to, and lock it against other commands that fetch the same file."""
    with part.open("ab") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise RunError(
                f"another command is fetching {part} now; wait until that command has finished, or stop it"
            ) from None
        yield file


def place_of(answer: http.client.HTTPResponse, asked: int) -> tuple[int, int | None]:
    """Return the position in the file at which the body begins, and the length of the file.

    The length is None if the server does not send it.
    """
    found = CONTENT_RANGE.fullmatch(answer.headers.get("Content-Range") or "")
    if answer.status == http.HTTPStatus.PARTIAL_CONTENT and found:
        return int(found[1]), None if found[2] == "*" else int(found[2])
    length = answer.headers.get("Content-Length") or ""
    return 0, int(length) if length.isascii() and length.isdigit() else None


def require_checksum(part: Path, file: RemoteFile, address: str) -> None:
    """Delete the file and raise an error if its checksum is wrong.

    The checksum does not show which part of the file is wrong, so a new try must begin at the start.
    """
    if (found := md5_of(part)) == file.md5:
        return
    size = human_bytes(size_of(part))
    part.unlink()
    raise RequestRefusedError(
        f"the received file ({size}) has the MD5 {found}, not {file.md5}: the server has another file, or the bytes "
        "were changed on the way; the file is deleted"
    )


def md5_of(path: Path) -> str:
    """Return the MD5 of a file. The publishers of the data sets list MD5 checksums.

    MD5 finds a damaged file. It does not protect against an attacker.
    """
    digest = hashlib.md5(usedforsecurity=False)
    with path.open("rb") as file:
        while piece := file.read(1 << 20):
            digest.update(piece)
    return digest.hexdigest()


def size_of(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def amount(total: int | None) -> str:
    return "of unknown length" if total is None else human_bytes(total)


def kept(part: Path, target: Path) -> str:
    size = size_of(part)
    if not size:
        return (
            f"run the same command again, or put the file there by hand, as {target.absolute()}: docs/data.md"
        )
    return f"{human_bytes(size)} of it are kept in {part}, and the same command continues the download"


def is_unknown(error: BaseException) -> bool:
    """Return whether the error says that the host name has no address.

    The usual reason is that there is no network, and another try some seconds later would fail too.
    """
    return isinstance(error, urllib.error.URLError) and isinstance(error.reason, socket.gaierror)


def words_of(error: BaseException) -> str:
    if isinstance(error, urllib.error.URLError):
        return str(error.reason)
    return str(error) or type(error).__name__


def disk_error(error: OSError, part: Path) -> Exception:
    if is_full(error):
        return error  # The error of a full disk has its own message.
    return RunError(f"{part} cannot be written: {error.strerror}; --root names another folder")
