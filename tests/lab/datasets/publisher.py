"""A publisher of data sets: a real HTTP server that can lack ranges, break off a response or have wrong files."""

from __future__ import annotations

import contextlib
import re
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@dataclass
class Publisher:
    files: dict[str, bytes] = field(default_factory=dict)  # path -> content
    ranges: bool = True
    lengths: bool = True  # it tells the length of its files
    breaks: list[int] = field(default_factory=list)  # bytes after which each answer breaks off
    busy: list[int] = field(default_factory=list)  # status codes of the first answers
    asked: list[tuple[str, str]] = field(default_factory=list)  # path, range
    sent: int = 0
    address: str = ""

    def answer(self, request: BaseHTTPRequestHandler) -> None:
        wanted = request.headers.get("Range") or ""
        self.asked.append((request.path, wanted))
        if self.busy:
            request.send_error(self.busy.pop(0))
            return
        if request.path not in self.files:
            request.send_error(404)
            return
        content, begin = self.files[request.path], 0
        if wanted and self.ranges:
            begin = int(re.fullmatch(r"bytes=(\d+)-", wanted)[1])
            if begin >= len(content):
                request.send_error(416)
                return
            request.send_response(206)
            request.send_header("Content-Range", f"bytes {begin}-{len(content) - 1}/{len(content)}")
        else:
            request.send_response(200)
        body = content[begin:]
        if self.lengths:
            request.send_header("Content-Length", str(len(body)))
        request.end_headers()
        if self.breaks:
            body = body[: self.breaks.pop(0)]
        self.sent += len(body)  # counted before the client has all bytes and looks
        with contextlib.suppress(ConnectionError):  # the client has gone
            request.wfile.write(body)


@contextlib.contextmanager
def publishing(**files: bytes) -> Iterator[Publisher]:
    publisher = Publisher({f"/{name.replace('__', '.')}": content for name, content in files.items()})

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            publisher.answer(self)

        def log_message(self, *words: object) -> None:
            """Log nothing, as the server keeps the requests itself."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=lambda: server.serve_forever(poll_interval=0.02))
    thread.start()
    publisher.address = f"http://127.0.0.1:{server.server_address[1]}/"
    try:
        yield publisher
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
