"""How other threads tell the one that waits at a selector who has something to do for it."""

from __future__ import annotations

import contextlib
import socket
import threading
from typing import Generic, TypeVar

K = TypeVar("K")


class WakeUps(Generic[K]):
    """`fileno` is readable while somebody is due.

    One byte is sent for all who are added until the next `take`, as each hands the interpreter to the other thread.
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
            # Full: it is readable already. Closed: nobody waits any more.
            with contextlib.suppress(OSError):
                self._writer.send(b"\0")

    def take(self) -> list[K]:
        """All who were added since, each once.

        The byte is read first: whoever is added between the two sends none, and is taken here. The other way round
        the byte of one who is not taken yet would be read, and nobody added after it would send another.
        """
        with contextlib.suppress(OSError):
            self._reader.recv(4096)
        with self._lock:
            due, self._due = self._due, {}
        return list(due)

    def close(self) -> None:
        self._reader.close()
        self._writer.close()
