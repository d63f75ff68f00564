"""A line between a party and the broker that can be slow, silent or broken."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
import time

PIECE = 1 << 16


class Proxy:
    """A proxy between a party and the broker; bytes pass in both directions until a fault stops them."""

    def __init__(self, host: str, target: tuple[str, int], port: int = 0) -> None:
        self._target = target
        self._server = socket.create_server((host, port))
        self.port: int = self._server.getsockname()[1]
        self.seconds = 0.0  # Seconds that every piece waits: a delay, and a rate of 64 KiB in that time.
        self._open = threading.Event()
        self._open.set()
        self._refusing = False
        self._lines: set[socket.socket] = set()
        threading.Thread(target=self._accept, daemon=True).start()

    def hush(self) -> None:
        """Hold all bytes; neither end gets an error."""
        self._open.clear()

    def resume(self) -> None:
        self._refusing = False
        self._open.set()

    def reset(self) -> None:
        """Break every connection now, and accept no new one."""
        self._refusing = True
        for line in list(self._lines):
            hang_up(line)

    def close(self) -> None:
        self.reset()
        self._server.close()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._server.accept()
            except OSError:
                return
            try:
                self._open.wait()
                if self._refusing:
                    raise ConnectionRefusedError
                far = socket.create_connection(self._target, timeout=5)
            except OSError:
                hang_up(near)
                continue
            for line in (near, far):
                line.settimeout(None)
                line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._lines |= {near, far}
            for a, b in ((near, far), (far, near)):
                threading.Thread(target=self._pass, args=(a, b), daemon=True).start()

    def _pass(self, source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(PIECE):
                if self.seconds:
                    time.sleep(self.seconds)
                self._open.wait()
                sink.sendall(data)
        for line in (source, sink):
            self._lines.discard(line)
            hang_up(line, softly=True)


def hang_up(line: socket.socket, softly: bool = False) -> None:
    with contextlib.suppress(OSError):
        if not softly:
            line.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        line.shutdown(socket.SHUT_RDWR)
    line.close()
