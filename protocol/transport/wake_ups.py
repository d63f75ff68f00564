"""Let other threads wake the thread that waits at a selector, and pass the keys that have work to it."""

from __future__ import annotations

import contextlib
import socket
import threading
from typing import Generic, TypeVar

K = TypeVar("K")


class WakeUps(Generic[K]):
    """The keys that have work for the waiting thread.

    While there is such a key, a selector reports the file descriptor `fileno()` as readable.

    Only one byte is sent for all keys that are added before the next `take`, because each byte makes Python
    switch to the other thread.
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
            # If the socket is full, it is readable already. If the socket is closed, no thread waits for it.
            with contextlib.suppress(OSError):
                self._writer.send(b"\0")

    def take(self) -> list[K]:
        """Return all keys that were added since the last call, each once.

        The byte is read before the keys are taken. A key that is added between these two steps is taken too.
        If the keys were taken first, this method could read the byte of a key that it has not taken. Then
        later keys would send no byte, and the waiting thread would not wake.
        """
        with contextlib.suppress(OSError):
            self._reader.recv(4096)
        with self._lock:
            due, self._due = self._due, {}
        return list(due)

    def close(self) -> None:
        self._reader.close()
        self._writer.close()
