"""A Unix socket on which the programs of this machine send commands to a running process.

A request is one line of JSON, and so is its response. The kernel tells which user has sent the request. Only
users who may open the folder of the socket can connect.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import pwd
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

CONTROL_SOCKET: Final = "control.sock"
CONNECTIONS: Final = 16  # Largest number of connections that are served at the same time.
SECONDS: Final = 10.0  # Seconds in which a client must send its request and read the response.
LAST_SECONDS: Final = 1.0  # Seconds that a process waits at its end until its clients have their responses.
MOST_BYTES: Final = 65_536  # Largest number of bytes of a request, unless a process takes longer requests.
MOST_RESPONSE: Final = 4 << 20  # Largest number of bytes of a response.

# The arguments are the user and the request.
Handler = Callable[[str, Mapping[str, Any]], Mapping[str, Any]]

log = logging.getLogger("protofleet")


class NobodyListensError(RuntimeError):
    """The error raised if no process listens on the socket of a folder."""


class NoResponseError(NobodyListensError):
    """The error raised if a process has the request and does not respond; the request may have had an effect."""


@contextlib.contextmanager
def listening(folder: Path, handle: Handler, most: int = MOST_BYTES) -> Iterator[None]:
    """Answer requests of at most `most` bytes on a socket in `folder` while the `with` lasts.

    If the file system has no Unix sockets, log a warning and answer nothing.
    """
    with contextlib.ExitStack() as stack:
        short = stack.enter_context(_short_path(folder))
        try:
            made = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
            (folder / CONTROL_SOCKET).unlink(missing_ok=True)  # An earlier process was killed.
            made.bind(short)
            made.listen(CONNECTIONS)
        except OSError as error:
            log.warning(
                "%s cannot be made (%s): commands for this process are not heard",
                folder / CONTROL_SOCKET,
                error,
            )
            yield
            return
        mine = Path(short).stat().st_ino
        stack.callback(_remove, short, mine)
        server = ControlServer(made, handle, most)
        threading.Thread(target=server.serve, name="control", daemon=True).start()
        stack.callback(server.stop)
        yield


@contextlib.contextmanager
def _short_path(folder: Path) -> Iterator[str]:
    """Yield a short path of the socket, because the path of a Unix socket has at most 107 bytes."""
    number = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{number}/{CONTROL_SOCKET}"
    finally:
        os.close(number)


def _remove(path: str, mine: int) -> None:
    """Delete the socket, unless a later process has replaced it."""
    with contextlib.suppress(OSError):
        if Path(path).stat().st_ino == mine:
            Path(path).unlink()


class ControlServer:
    def __init__(self, listening: socket.socket, handle: Handler, most: int) -> None:
        self._listening, self._handle, self._most = listening, handle, most
        self._free = threading.BoundedSemaphore(CONNECTIONS)

    def serve(self) -> None:
        while True:
            try:
                connection, _ = self._listening.accept()
            except OSError:  # The socket was closed.
                return
            if not self._free.acquire(blocking=False):
                connection.close()
                continue
            threading.Thread(target=self._serve_one, args=(connection,), name="control", daemon=True).start()

    def stop(self) -> None:
        """Stop listening, and wait a moment for the responses that are being sent."""
        with contextlib.suppress(OSError):
            self._listening.shutdown(socket.SHUT_RDWR)
        deadline = time.monotonic() + LAST_SECONDS
        for _ in range(CONNECTIONS):
            if not self._free.acquire(timeout=max(0.0, deadline - time.monotonic())):
                return

    def _serve_one(self, connection: socket.socket) -> None:
        try:
            with connection, contextlib.suppress(OSError):
                connection.settimeout(SECONDS)
                response = self._answer(connection)
                connection.sendall(json.dumps(response).encode() + b"\n")
        finally:
            self._free.release()

    def _answer(self, connection: socket.socket) -> Mapping[str, Any]:
        try:
            request = json.loads(_line(connection, self._most))
        except (ValueError, RecursionError):
            request = None
        if not isinstance(request, dict):
            return {"verdict": "refused", "words": "the request is not one line with a JSON object"}
        try:
            return self._handle(_user_of(connection), request)
        except Exception:
            log.exception("a command on the control socket failed")
            return {"verdict": "failed", "words": "the command failed; see the log of the process"}


def _user_of(connection: socket.socket) -> str:
    """Return the user at the other end of the socket; the kernel reports its number."""
    size = struct.calcsize("3i")
    _, user, _ = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size))
    try:
        return f"local:{pwd.getpwuid(user).pw_name}"
    except KeyError:  # A container may have no name for the user of its host.
        return f"local:{user}"


def _line(connection: socket.socket, most: int) -> bytes:
    found = bytearray()
    while not found.endswith(b"\n"):
        part = connection.recv(4096)
        found += part
        if len(found) > most:
            raise ValueError(f"the line has more than {most} bytes")
        if not part:
            break
    return bytes(found)


def send(folder: Path, request: Mapping[str, Any], seconds: float = 2 * SECONDS) -> dict[str, Any]:
    """Send a request to the process that listens in `folder`, and return its response."""
    is_sent = False
    try:
        with _short_path(folder) as short, socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.settimeout(seconds)
            connection.connect(short)
            is_sent = True
            connection.sendall(json.dumps(request).encode() + b"\n")
            response = json.loads(_line(connection, MOST_RESPONSE))
    except (FileNotFoundError, ConnectionRefusedError):
        raise NobodyListensError("") from None
    except (OSError, ValueError) as error:
        words = error.strerror or str(error) if isinstance(error, OSError) else str(error)
        raise (NoResponseError if is_sent else NobodyListensError)(words) from None
    if not isinstance(response, dict):
        raise NoResponseError("the response is not a JSON object")
    return response
