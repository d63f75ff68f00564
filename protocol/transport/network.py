"""Run all connections of a process on one thread.

A selector waits for all connections, and a heap contains the time when each connection is due. Opening a
connection may take seconds (DNS, TCP, TLS). So a second thread opens connections, one after the other. The
second thread runs only while there is a connection to open.
"""

from __future__ import annotations

import selectors
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum, auto
from functools import partial
from typing import Final, Protocol

from protofleet.protocol.transport.timers import NEVER, Timers
from protofleet.protocol.transport.wake_ups import WakeUps

READ_BYTES: Final = 256 << 10  # bytes read from a socket at a time
# Seconds between two checks of a silent connection; MQTT allows a delay of half a keepalive.
CHECK_SECONDS: Final = 5.0


class Socket(Protocol):
    """A socket, with or without TLS."""

    def fileno(self) -> int: ...


class Connection(Protocol):
    """The methods of a connection that the network threads call.

    The methods raise no exception, and at most one method is called at a time.
    """

    def open(self) -> Socket | None:
        """Open the connection, which may take seconds, and return its socket; return None if this fails."""

    def step(self) -> bool:
        """Do all work that needs no waiting, and return whether the connection still exists."""

    def wants_write(self) -> bool: ...

    def has_decrypted(self) -> bool:
        """Return whether TLS has decrypted bytes that are not read yet.

        TLS decrypts whole records, and the selector does not see such bytes.
        """

    def end(self) -> float:
        """Clean up after a connection that could not be opened or that has ended.

        Return the seconds until the next try, or inf for no further try.
        """


class Phase(Enum):
    PAUSING = auto()  # the connection waits before the next try
    OPENING = auto()  # another thread opens the connection
    # Another thread has opened the connection, and the network thread has not registered the connection yet.
    OPENED = auto()
    STANDING = auto()
    OVER = auto()


@dataclass(eq=False)
class ConnectionEntry:
    """A connection with the state that the network threads keep about it."""

    connection: Connection
    phase: Phase = Phase.PAUSING
    socket: Socket | None = None
    events: int = 0  # events that the selector waits for
    try_at: float = 0.0  # time of the next try, in the phase PAUSING
    leaving: bool = False
    over: threading.Event = field(default_factory=threading.Event)


class NetworkThreads:
    """The threads for all connections of a process.

    The threads start with the first connection and end with the last connection.
    """

    def __init__(self, name: str) -> None:
        self._name, self._lock = name, threading.Lock()
        # All connections share this buffer, because only one connection reads at a time.
        self.buffer = memoryview(bytearray(READ_BYTES))
        self._entries: set[ConnectionEntry] = set()
        self._thread: threading.Thread | None = None
        self._opener: threading.Thread | None = None
        self._is_opening = (
            # True while the opener takes more connections. `is_alive` does not show this, because the thread is still
            # alive for a moment after it has stopped work.
            False
        )
        self._to_open: deque[ConnectionEntry] = deque()
        self._wake_ups: WakeUps[ConnectionEntry] | None = None

    def add(self, connection: Connection, pause: float = 0.0) -> ConnectionEntry:
        """Open a connection after a pause of some seconds."""
        entry = ConnectionEntry(connection, try_at=time.monotonic() + pause)
        with self._lock:
            self._entries.add(entry)
            if self._wake_ups is None:
                self._wake_ups = WakeUps()
                run = partial(self._run, self._wake_ups)
                self._thread = _start(f"mqtt-{self._name}", run, before=self._thread)
        self.wake(entry)
        return entry

    def wake(self, entry: ConnectionEntry) -> None:
        """Give the connection a turn soon; any thread may call this."""
        if (wake_ups := self._wake_ups) is not None:
            wake_ups.add(entry)

    def leave(self, entry: ConnectionEntry) -> None:
        """Do not open the connection again; the present connection ends when its next `step` returns False."""
        entry.leaving = True
        self.wake(entry)

    def join(self, entry: ConnectionEntry, seconds: float) -> bool:
        """Wait up to `seconds` until the connection is over, and return whether it is over.

        After the last connection, also wait for the threads to end.
        """
        deadline = time.monotonic() + seconds
        entry.over.wait(seconds)
        with self._lock:
            ending = [] if self._entries else [self._thread, self._opener]
        for thread in filter(None, ending):
            thread.join(max(0.0, deadline - time.monotonic()))
        return entry.over.is_set()

    def _run(self, wake_ups: WakeUps[ConnectionEntry]) -> None:
        with selectors.DefaultSelector() as selector:
            selector.register(wake_ups, selectors.EVENT_READ)
            loop = _Loop(selector, wake_ups, self._open_soon, self._is_over)
            while self._goes_on(wake_ups):
                loop.turn()

    def _goes_on(self, wake_ups: WakeUps[ConnectionEntry]) -> bool:
        with self._lock:
            if self._entries:
                return True
            self._wake_ups = None
        wake_ups.close()
        return False

    def _is_over(self, entry: ConnectionEntry) -> None:
        with self._lock:
            self._entries.discard(entry)
        entry.over.set()

    def _open_soon(self, entry: ConnectionEntry) -> None:
        with self._lock:
            self._to_open.append(entry)
            if not self._is_opening:
                self._opener = _start(f"connecting-{self._name}", self._open_all, before=self._opener)
                self._is_opening = True

    def _open_all(self) -> None:
        while True:
            with self._lock:
                if not self._to_open:
                    self._is_opening = False
                    return
                entry = self._to_open.popleft()
            entry.socket = entry.connection.open()
            entry.phase = Phase.OPENED
            self.wake(entry)


def _start(name: str, work: Callable[[], None], before: threading.Thread | None) -> threading.Thread:
    """Start a thread that does its work after the thread `before` has ended.

    So a caller that waits for the newest thread also waits for all earlier threads.
    """

    def run() -> None:
        if before is not None:
            before.join()
        work()

    thread = threading.Thread(target=run, name=name, daemon=True)
    thread.start()
    return thread


class _Loop:
    """The loop of the network thread."""

    def __init__(
        self, selector: selectors.BaseSelector, wake_ups: WakeUps[ConnectionEntry],
        open_soon: Callable[[ConnectionEntry], None], is_over: Callable[[ConnectionEntry], None],
    ) -> None:  # fmt: skip
        self._selector, self._wake_ups = selector, wake_ups
        self._open_soon, self._is_over = open_soon, is_over
        self._timers = Timers[ConnectionEntry]()
        # Connections whose TLS layer has decrypted bytes that are not read yet. The selector may not report them.
        self._decrypted: list[ConnectionEntry] = []

    def turn(self) -> None:
        ready = [key.data for key, _ in self._selector.select(self._wait_seconds()) if key.data is not None]
        again, self._decrypted = self._decrypted, []
        for entry in dict.fromkeys(
            [*self._wake_ups.take(), *ready, *again, *self._timers.take_due(time.monotonic())]
        ):
            self._advance(entry)

    def _wait_seconds(self) -> float | None:
        if self._decrypted:
            return 0.0
        at = self._timers.next_at
        return None if at == NEVER else max(0.0, at - time.monotonic())

    def _advance(self, entry: ConnectionEntry) -> None:
        match entry.phase:
            case Phase.PAUSING if entry.leaving:
                self._finish(entry)
            case Phase.PAUSING if entry.try_at <= time.monotonic():
                entry.phase = Phase.OPENING
                self._open_soon(entry)
            case Phase.PAUSING:
                self._timers.set(entry, entry.try_at)
            case Phase.OPENED:
                self._take_over(entry)
            case Phase.STANDING:
                self._step(entry)

    def _take_over(self, entry: ConnectionEntry) -> None:
        if entry.socket is None:
            self._end(entry)
            return
        entry.phase, entry.events = Phase.STANDING, selectors.EVENT_READ
        self._selector.register(entry.socket, entry.events, entry)
        self._step(entry)

    def _step(self, entry: ConnectionEntry) -> None:
        connection, sock = entry.connection, entry.socket
        assert sock is not None
        if not connection.step():
            self._selector.unregister(sock)
            self._end(entry)
            return
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if connection.wants_write() else 0)
        if events != entry.events:
            entry.events = events
            self._selector.modify(sock, events, entry)
        if connection.has_decrypted():
            self._decrypted.append(entry)
        self._timers.set(entry, time.monotonic() + CHECK_SECONDS)

    def _end(self, entry: ConnectionEntry) -> None:
        entry.socket, pause = None, entry.connection.end()
        if entry.leaving or pause == NEVER:
            self._finish(entry)
            return
        entry.phase, entry.try_at = Phase.PAUSING, time.monotonic() + pause
        self._timers.set(entry, entry.try_at)

    def _finish(self, entry: ConnectionEntry) -> None:
        entry.phase = Phase.OVER
        self._timers.forget(entry)
        self._is_over(entry)
