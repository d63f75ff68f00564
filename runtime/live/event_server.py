"""Serve a live page: the document, the snapshot, streams of server-sent events, logins and commands.

One thread handles all connections. It reads only the ring of events. At most STREAMS streams are open; a further
one is refused. A stream has no queue of its own: it has the number of the last event that it has sent. If a stream
is more than WAITING events behind, it sends the event `gap` in place of these events. A stream whose client reads
nothing for SLOW_SECONDS seconds is closed. Of other connections, at most CONNECTIONS are open: if one more is opened,
the oldest one is closed. A connection counts from its first byte, also while TLS is set up.

A command may wait for the disk, so it runs on a thread of its own. At most COMMANDS commands run at the same time.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

from protofleet.runtime.live.access import PageAccess
from protofleet.runtime.live.document import PROTECTION, Document
from protofleet.runtime.live.event_ring import EVENTS, GAP, EventRing, PageContent, PageEvent
from protofleet.runtime.live.json_body import BodyError, read_json
from protofleet.runtime.loop_thread import served
from protofleet.runtime.metrics_server import CONNECTIONS, MOST_HEAD, HttpRequest, Response, read_request

STREAMS: Final = 16
WAITING: Final = 256
REQUEST_SECONDS: Final = 10.0  # Seconds in which a client must send its request and read a short response.
SLOW_SECONDS: Final = 60.0
COMMENT_SECONDS: Final = 15.0  # Seconds without an event after which a stream sends a comment.
# Seconds between two writes to a stream. The events of this time are sent in one write.
PAUSE_SECONDS: Final = 0.2
BUFFER: Final = 1 << 16  # Bytes that the kernel keeps of a stream whose client does not read.
CLOSE_SECONDS: Final = 1.0  # Seconds that streams and commands have at the end to send their last bytes.
FULL_SECONDS: Final = 1.0  # Seconds until the next try if this process can open no more connections.
COMMAND: Final = ("id", "verb", "run", "reason", "args")  # Keys of a command.
COMMANDS: Final = 4  # Largest number of commands that run at the same time.
JSON: Final = ("Content-Type", "application/json")
METHODS: Final = {"/": "GET", "/now": "GET", "/events": "GET", "/login": "POST", "/command": "POST"}
LOG_IN: Final = "log in with the address that `protofleet page RUN` prints on the coordinator's machine"

# Carry out a command; the arguments are the operator and the command.
Operate = Callable[[str, Mapping[str, Any]], Mapping[str, Any]]

log = logging.getLogger("protofleet")


def no_commands(operator: str, command: Mapping[str, Any]) -> Mapping[str, Any]:
    return {"verdict": "refused", "words": "this page takes no commands"}


@contextlib.contextmanager
def serving_page(
    listening: socket.socket, document: Document, ring: EventRing, access: PageAccess | None = None,
    operate: Operate = no_commands,
) -> Iterator[None]:  # fmt: skip
    """Serve the page on a separate thread while the `with` lasts.

    Without `access`, the page is for the loopback, where everyone may view it.
    """
    server = EventServer(document, ring, access or PageAccess(listening.getsockname()[1]), operate)
    with served(server, listening, "page"):
        try:
            yield
        finally:
            ring.call_when_added(None)


class EventServer:
    def __init__(self, document: Document, ring: EventRing, access: PageAccess, operate: Operate) -> None:
        self._document, self._ring, self._access, self._operate = document, ring, access, operate
        self._open: dict[asyncio.Task[Any], None] = {}  # Connections without a stream, the oldest first.
        self._of_streams: set[asyncio.Task[Any]] = set()
        self._of_commands: set[asyncio.Task[Any]] = set()
        self._streams: set[asyncio.Event] = set()
        self._woken = self._ending = False
        self._free = threading.BoundedSemaphore(COMMANDS)
        self._workers = ThreadPoolExecutor(COMMANDS, "page command")
        # The last snapshot that was read, and its JSON.
        self._encoded: tuple[PageContent | None, bytes] = (None, b"")

    async def begin(self, listening: socket.socket) -> None:
        self._loop = asyncio.get_running_loop()
        listening.setblocking(False)
        self._listening = listening
        self._accepting = self._loop.create_task(self._accept(listening))

    async def end(self) -> None:
        self._accepting.cancel()
        self._listening.close()
        self._ending = True
        self._wake()
        if unfinished := self._of_streams | self._of_commands:
            await asyncio.wait(unfinished, timeout=CLOSE_SECONDS)
        tasks = [self._accepting, *self._open, *self._of_streams]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._workers.shutdown(wait=False, cancel_futures=True)

    def _added(self) -> None:
        """Wake the streams; the publishing thread calls this method."""
        if not self._woken:
            self._woken = True
            with contextlib.suppress(RuntimeError):  # The loop is closed at the end of the process.
                self._loop.call_soon_threadsafe(self._wake)

    def _wake(self) -> None:
        self._woken = False
        for stream in self._streams:
            stream.set()

    async def _accept(self, listening: socket.socket) -> None:
        while True:
            try:
                connection, _ = await self._loop.sock_accept(listening)
            except OSError:
                await asyncio.sleep(FULL_SECONDS)
                continue
            if len(self._open) >= CONNECTIONS:
                oldest = next(iter(self._open))
                del self._open[oldest]
                oldest.cancel()
            self._open[self._loop.create_task(self._connected(connection))] = None
            await asyncio.sleep(
                0
            )  # A task that is cancelled before it begins would not close its connection.

    async def _connected(self, connection: socket.socket) -> None:
        task = asyncio.current_task()
        assert task is not None, "this coroutine runs as a task"
        try:
            reader, writer = await self._begun(connection)
        except (OSError, asyncio.CancelledError):
            connection.close()
            self._open.pop(task, None)
            return
        try:
            request = read_request(await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), REQUEST_SECONDS))
            # With this limit, `drain` waits for all bytes; with TLS, a limit of 0 would make it wait for ever.
            writer.transport.set_write_buffer_limits(1)
            response = await self._answer(request, reader)
            if response is not None:
                await self._write(writer, response.encode(), REQUEST_SECONDS)
            else:
                assert request is not None, "without a request there is a response"
                self._open.pop(task, None)
                self._of_streams.add(task)
                await self._stream(request, reader, writer)
            writer.close()
            await asyncio.wait_for(writer.wait_closed(), CLOSE_SECONDS)  # TLS waits for the client.
        except (OSError, EOFError, asyncio.LimitOverrunError, asyncio.TimeoutError, asyncio.CancelledError):
            writer.transport.abort()
        finally:
            self._open.pop(task, None)
            self._of_streams.discard(task)
            self._of_commands.discard(task)

    async def _begun(self, connection: socket.socket) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Set up TLS if the page has a certificate, and return the streams of a connection."""
        reader = asyncio.StreamReader(limit=MOST_HEAD)
        protocol = asyncio.StreamReaderProtocol(reader)
        seconds = REQUEST_SECONDS if self._access.tls else None
        transport, _ = await self._loop.connect_accepted_socket(
            lambda: protocol, connection, ssl=self._access.tls, ssl_handshake_timeout=seconds
        )
        return reader, asyncio.StreamWriter(transport, protocol, reader, self._loop)

    @staticmethod
    async def _write(writer: asyncio.StreamWriter, data: bytes, seconds: float) -> None:
        writer.write(data)
        await asyncio.wait_for(writer.drain(), seconds)

    async def _answer(self, request: HttpRequest | None, reader: asyncio.StreamReader) -> Response | None:
        """Return the response to a request, or None if the request opens a stream."""
        if request is None:
            return _plain("400 Bad Request")
        if not self._access.knows_host(request):
            return _plain(
                "421 Misdirected Request", f"the Host must be one of {', '.join(self._access.hosts)}"
            )
        if (method := METHODS.get(request.path)) is None:
            return _plain("404 Not Found", f"there are {', '.join(METHODS)}")
        if request.method != method:
            return _plain("405 Method Not Allowed", f"{request.path} takes {method}", ("Allow", method))
        return self._show(request) if method == "GET" else await self._act(request, reader)

    def _show(self, request: HttpRequest) -> Response | None:
        if request.path == "/":  # The document has nothing of the run, and a browser needs it to log in.
            headers = (("Content-Type", "text/html; charset=utf-8"), *PROTECTION)
            policy = ("Content-Security-Policy", self._document.policy)
            return Response("200 OK", (*headers, policy), self._document.html)
        if not self._access.may_view(request):
            return _plain("401 Unauthorized", LOG_IN)
        if request.path == "/now":
            session = self._access.session(request)
            return Response("200 OK", (JSON, *PROTECTION), self._now(session.operator if session else ""))
        if len(self._streams) >= STREAMS:
            return _plain("503 Service Unavailable", f"{STREAMS} pages are open", ("Retry-After", "15"))
        return None

    async def _act(self, request: HttpRequest, reader: asyncio.StreamReader) -> Response:
        """Log in, or carry out a command."""
        if not self._access.is_same_origin(request):
            return _plain("403 Forbidden", "only the page itself may send this request")
        try:
            said = await asyncio.wait_for(read_json(request, reader), REQUEST_SECONDS)
        except BodyError as error:
            return _plain(error.status, str(error))
        return self._log_in(said) if request.path == "/login" else await self._command(request, said)

    def _log_in(self, said: Mapping[str, Any]) -> Response:
        code = said.get("code")
        session = self._access.logins.exchange(code) if isinstance(code, str) else None
        if session is None:
            return _plain("403 Forbidden", "this code was used, or is older than 5 minutes")
        log.info("%s has logged in to the page", session.operator)
        found = {"operator": session.operator, "key": session.key}
        headers = (JSON, *PROTECTION, self._access.set_cookie(session))
        return Response("200 OK", headers, json.dumps(found).encode())

    async def _command(self, request: HttpRequest, said: Mapping[str, Any]) -> Response:
        if (session := self._access.may_command(request)) is None:
            return _plain("401 Unauthorized", LOG_IN)
        if not self._free.acquire(blocking=False):
            return _plain(
                "503 Service Unavailable", f"{COMMANDS} commands are carried out now", ("Retry-After", "5")
            )
        task = asyncio.current_task()
        assert task is not None, "each connection is a task"
        self._of_commands.add(task)
        command = {"reason": "", **{key: said[key] for key in COMMAND if key in said}}
        result = await self._loop.run_in_executor(self._workers, self._carry_out, session.operator, command)
        return Response("200 OK", (JSON, *PROTECTION), json.dumps(result).encode())

    def _carry_out(self, operator: str, command: Mapping[str, Any]) -> Mapping[str, Any]:
        try:
            return self._operate(operator, command)
        except Exception:
            log.exception("a command of the page failed")
            return {"verdict": "failed", "words": "the command failed; see the log of the coordinator"}
        finally:
            self._free.release()

    def _now(self, operator: str) -> bytes:
        """Return the snapshot as JSON, with the number of its newest event and the time of this machine.

        `operator` is who has logged in, or "".
        """
        number, snapshot = self._ring.state
        if self._encoded[0] is not snapshot:
            table = snapshot.table()
            self._encoded = snapshot, json.dumps(table, allow_nan=False, separators=(",", ":")).encode()
        more = f'{{"n":{number},"time":{time.time():.1f},"operator":{json.dumps(operator)},'
        return more.encode() + self._encoded[1][1:]

    async def _stream(
        self, request: HttpRequest, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        """Send events until the client goes away, is too slow, or the server ends."""
        if (connection := writer.get_extra_info("socket")) is not None:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, BUFFER)
        woken = asyncio.Event()
        # A client of a stream sends nothing more, so the read ends when the client goes away.
        gone = asyncio.ensure_future(_until_gone(reader))
        gone.add_done_callback(lambda _: woken.set())
        self._streams.add(woken)
        self._ring.call_when_added(self._added)
        try:
            kind = ("Content-Type", "text/event-stream")
            lines = [
                "HTTP/1.1 200 OK",
                *(f"{k}: {v}" for k, v in (kind, *PROTECTION, ("Connection", "close"))),
            ]
            writer.write("\r\n".join([*lines, "", ""]).encode())
            last, most = _last_event(request), EVENTS
            while not gone.done() and self._access.may_view(request):
                woken.clear()
                last, data = self._events_after(last, most)
                most = WAITING
                await self._write(writer, data or b": still here\n\n", SLOW_SECONDS)
                if self._ending and self._ring.newest == last:
                    return
                await asyncio.sleep(0 if self._ending else PAUSE_SECONDS)
                with contextlib.suppress(asyncio.TimeoutError):
                    await asyncio.wait_for(woken.wait(), COMMENT_SECONDS)
        finally:
            gone.cancel()
            self._streams.discard(woken)
            if not self._streams:
                self._ring.call_when_added(None)

    def _events_after(self, last: int, most: int) -> tuple[int, bytes]:
        """Return the number of the newest event, and the bytes of the events after `last`, or of a gap."""
        events = self._ring.since(last)
        if events is None or len(events) > most:
            gap = PageEvent(self._ring.newest, GAP, {})
            return gap.number, gap.encoded
        return (events[-1].number, b"".join(event.encoded for event in events)) if events else (last, b"")


async def _until_gone(reader: asyncio.StreamReader) -> None:
    with contextlib.suppress(OSError):
        await reader.read(1)


def _last_event(request: HttpRequest) -> int:
    """Return the number that the client has seen last, or -1, which is never the number of an event."""
    said = request.headers.get("last-event-id", "")
    return int(said) if said.isdecimal() and len(said) < 20 else -1


def _plain(status: str, words: str = "", *headers: tuple[str, str]) -> Response:
    return Response(status, (("Content-Type", "text/plain"), *headers, *PROTECTION), f"{words}\n".encode())
