"""Serve metrics and health over HTTP, so that a slow or silent client does not delay other clients.

One thread handles all connections. Each path has one more thread, which makes the responses one after the
other. At most CONNECTIONS connections are open: if one more is opened, the oldest connection is closed. A
connection can make one request, and is closed after SECONDS seconds.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import socket
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from protofleet.runtime.loop_thread import served

CONNECTIONS: Final = 64
SECONDS: Final = 10.0  # Seconds in which a client must send its request and read the response.
MOST_HEAD: Final = 8192  # Largest number of bytes of a request, which has no body.
FREEBIND: Final = 15  # IP_FREEBIND of Linux; Python does not define it

log = logging.getLogger("protofleet")


@dataclass(frozen=True, slots=True)
class HttpRequest:
    method: str
    path: str
    query: str
    headers: Mapping[str, str]  # The values of the headers; the names are in lower case.

    def environ(self) -> dict[str, str]:
        """Return the request as a WSGI environment."""
        told = {f"HTTP_{name.upper().replace('-', '_')}": value for name, value in self.headers.items()}
        return {
            **told,
            "REQUEST_METHOD": "GET",
            "PATH_INFO": self.path,
            "QUERY_STRING": self.query,
        }


@dataclass(frozen=True, slots=True)
class Response:
    status: str
    headers: tuple[tuple[str, str], ...] = ()
    body: bytes = b""

    def encode(self) -> bytes:
        headers = (*self.headers, ("Content-Length", str(len(self.body))), ("Connection", "close"))
        lines = [f"HTTP/1.1 {self.status}", *(f"{name}: {value}" for name, value in headers)]
        return "\r\n".join([*lines, "", ""]).encode("latin-1") + self.body


Listener: TypeAlias = socket.socket
Page = Callable[[HttpRequest], Response]
# The arguments are the request, and the time on the monotonic clock when its response was begun.
Answered = Callable[[HttpRequest, float], None]


def bound(host: str, port: int, setting: str = "metrics_host") -> socket.socket:
    """Return a listening socket.

    If this machine does not have the address yet, for example before DHCP, log a warning and bind to it anyway.
    `setting` is the setting that names the host.
    """
    family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    made = socket.socket(family, socket.SOCK_STREAM)
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            # Then "::" stands for all IPv4 and all IPv6 addresses.
            made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        _bind(made, host, address, setting)
        made.listen(CONNECTIONS)
    except OSError:
        made.close()
        raise
    return made


def _bind(made: socket.socket, host: str, address: Any, setting: str) -> None:
    try:
        made.bind(address)
    except OSError as error:
        if error.errno != errno.EADDRNOTAVAIL:
            raise
        made.setsockopt(socket.IPPROTO_IP, FREEBIND, 1)
        made.bind(address)
        log.warning(
            "%s is %s, but this machine does not have this address now; the %s can be read as soon as the "
            "machine has the address",
            setting,
            host,
            "metrics" if setting == "metrics_host" else "page",
        )


def serving(
    listening: socket.socket, pages: Mapping[str, Page], answered: Answered = lambda request, began: None
) -> contextlib.AbstractContextManager[None]:
    """Serve pages on a separate thread while the `with` lasts, and call `answered` after each response."""
    return served(MetricsServer(pages, answered), listening, "metrics")


class MetricsServer:
    def __init__(self, pages: Mapping[str, Page], answered: Answered) -> None:
        self._pages, self._answered = pages, answered
        self._workers = {path: ThreadPoolExecutor(1, f"metrics {path}") for path in pages}
        self._open: dict[asyncio.Task[Any], None] = {}  # The open connections in order, the oldest first.

    async def begin(self, listening: socket.socket) -> None:
        self._server = await asyncio.start_server(self._connected, sock=listening, limit=MOST_HEAD)

    async def end(self) -> None:
        self._server.close()
        for task in [*self._open]:
            task.cancel()
        await asyncio.gather(*self._open, return_exceptions=True)
        for worker in self._workers.values():
            worker.shutdown(wait=False, cancel_futures=True)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None, "start_server makes a task of each connection"
        if len(self._open) >= CONNECTIONS:
            oldest = next(iter(self._open))
            del self._open[oldest]
            oldest.cancel()
        self._open[task] = None
        try:
            await asyncio.wait_for(self._talk(reader, writer), SECONDS)
            writer.close()
        except (OSError, EOFError, asyncio.LimitOverrunError, asyncio.TimeoutError, asyncio.CancelledError):
            writer.transport.abort()  # Do not wait for a client that may never read the remaining bytes.
        finally:
            self._open.pop(task, None)

    async def _talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        request = read_request(await reader.readuntil(b"\r\n\r\n"))
        writer.transport.set_write_buffer_limits(0)  # With this limit, `drain` waits for all bytes.
        began = time.monotonic()
        writer.write((await self._answer(request)).encode())
        await writer.drain()
        if request is not None:
            self._answered(request, began)

    async def _answer(self, request: HttpRequest | None) -> Response:
        if request is None:
            return Response("400 Bad Request")
        if request.path not in self._pages:
            return Response("404 Not Found", body=f"there are {', '.join(self._pages)}\n".encode())
        if request.method != "GET":
            return Response("405 Method Not Allowed", (("Allow", "GET"),))
        page, worker = self._pages[request.path], self._workers[request.path]
        try:
            return await asyncio.get_running_loop().run_in_executor(worker, page, request)
        except Exception:
            log.exception("the page %s could not be made, so the response was an error", request.path)
            return Response("500 Internal Server Error")


def read_request(head: bytes) -> HttpRequest | None:
    """Return the HTTP request that `head` contains, or None if `head` is not HTTP."""
    first, *lines = head.decode("latin-1").split("\r\n")
    message = first.split(" ")
    if len(message) != 3 or not message[2].startswith("HTTP/1."):
        return None
    path, _, query = message[1].partition("?")
    pairs = (line.partition(":") for line in lines if line)
    return HttpRequest(
        message[0], path, query, {name.strip().lower(): value.strip() for name, _, value in pairs}
    )
