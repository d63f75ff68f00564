"""Let other threads tell the thread that waits at a selector which keys have work for it."""

from __future__ import annotations

import contextlib
import socket
import threading
from typing import Generic, TypeVar

K = TypeVar("K")


class WakeUps(Generic[K]):
    """The keys that are due for the waiting thread; `fileno` is readable while there is one.

    Only one byte is sent for all keys that are added until the next `take`, because each byte hands the
    interpreter to the other thread.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._due: dict[K, None] = {}
        self._reader, self._writer = socket.socketpair()
        self._reader.setblocking(False)
        self._writer.setblocking(False)

    def fileno(self) -> int:
        return self._reader.fileno()

    def add(self, who: K) -> None:
        with self._lock:
            first = not self._due
            self._due[who] = None
        if first:
            # If the socket is full, it is readable already. If it is closed, no thread waits any more.
            with contextlib.suppress(OSError):
                self._writer.send(b"\0")

    def take(self) -> list[K]:
        """Return all keys that were added since the last call, each once.

        The byte is read first: a key that is added between the two steps sends no byte, and is taken here. In
        the other order, the byte of a key that is not taken yet would be read, and no key that is added later
        would send another byte.
        """
        with contextlib.suppress(OSError):
            self._reader.recv(4096)
        with self._lock:
            due, self._due = self._due, {}
        return list(due)

    def close(self) -> None:
        self._reader.close()
        self._writer.close()
