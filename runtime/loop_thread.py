"""Run a server of asyncio on a thread of its own."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from collections.abc import Iterator
from typing import Final, Protocol

END_SECONDS: Final = 10.0  # Seconds for which the caller waits at the end for the thread.


class LoopServer(Protocol):
    async def begin(self, listening: socket.socket) -> None:
        """Begin to serve the connections of this socket."""

    async def end(self) -> None:
        """Close all connections."""


@contextlib.contextmanager
def served(server: LoopServer, listening: socket.socket, name: str) -> Iterator[None]:
    """Serve on a thread of this name while the `with` lasts."""
    loop, begun = asyncio.new_event_loop(), threading.Event()

    def run() -> None:
        loop.run_until_complete(server.begin(listening))
        begun.set()
        loop.run_forever()
        loop.run_until_complete(server.end())
        loop.close()

    thread = threading.Thread(target=run, name=name, daemon=True)
    thread.start()
    begun.wait()
    try:
        yield
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join(END_SECONDS)
