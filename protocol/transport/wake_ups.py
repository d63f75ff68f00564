"""Let other threads wake the thread that waits at a selector, and tell this thread which keys have work."""

from __future__ import annotations

import contextlib
import socket
import threading
from typing import Generic, TypeVar

K = TypeVar("K")


class WakeUps(Generic[K]):
    """The keys that have work for the waiting thread.

    The file descriptor `fileno()` is readable while a key has work, so a selector can wait for it.

    The first key that is added after a `take` sends one byte. The next keys send none, because each byte makes
    Python switch to the waiting thread.
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

        The byte is read first, and then the keys are taken. In the other order, a key could be added between the
        two steps. Its byte would be read, but the key would not be taken. Then later keys would send no byte, and
        the waiting thread would not wake.
        """
        with contextlib.suppress(OSError):
            self._reader.recv(4096)
        with self._lock:
            due, self._due = self._due, {}
        return list(due)

    def close(self) -> None:
        self._reader.close()
        self._writer.close()
