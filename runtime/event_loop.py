"""Run the event loop that both programs share.

One thread owns all state, and receives every event as an item of a queue.
"""

from __future__ import annotations

import contextlib
import contextvars
import logging
import queue
import signal
import threading
from collections.abc import Callable
from functools import partial
from typing import Protocol, TypeVar

from protofleet.protocol.transport.base import Done, Item, StopRequest
from protofleet.protocol.wire.reasons import DisconnectReason
from protofleet.runtime.faults import as_authors
from protofleet.runtime.health import Heartbeats

log = logging.getLogger("protofleet")

T = TypeVar("T")
I_contra = TypeVar("I_contra", contravariant=True)
IDLE_SECONDS = 5.0  # Seconds between two heartbeats of a loop that has nothing to do.
TURN_ITEMS = 256  # Largest number of items that are taken in one turn.
TURN_SECONDS = 0.02


class EventLoopApp(Protocol[I_contra]):
    """The app that the event loop runs; the loop passes each item and the time to it.

    The app itself does not read a clock or a queue. It may get several items in one turn. If output must be stored on
    the disk before it is sent, the app sends it at the end of the turn, in `end_turn`.
    """

    @property
    def wake_at(self) -> float: ...
    @property
    def finished(self) -> bool: ...
    def take(self, item: I_contra, now: float) -> None: ...
    def wake(self, now: float) -> None: ...
    def end_turn(self, now: float) -> None: ...


class Worker(Protocol):
    """A worker that does long work outside the event loop.

    `then` is called on the event loop's thread with the result, or with the error. Both functions run with the
    caller's context variables.
    """

    def submit(self, work: Callable[[], T], then: Callable[[T | Exception], None]) -> None: ...


class EndedWorkError(RuntimeError):
    """The error for work outside of plug-ins that has tried to end the process."""


class WorkThread:
    """A thread that does one piece of work at a time, in the order of submission.

    The thread first calls the function `begin`.
    """

    def __init__(self, heartbeats: Heartbeats | None = None) -> None:
        self._heartbeats = heartbeats or Heartbeats()
        self._jobs: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()

    def start(self, begin: Callable[[], None] = lambda: None) -> None:
        threading.Thread(target=lambda: self._run(begin), name="worker", daemon=True).start()

    def put(self, job: Callable[[], None]) -> None:
        """Add a job that raises no exception; it runs with the caller's context variables."""
        self._jobs.put(partial(contextvars.copy_context().run, job))

    def _run(self, begin: Callable[[], None]) -> None:
        begin()
        while True:
            job = self._jobs.get()
            self._heartbeats.beat("work")
            job()
            del (
                job
            )  # Otherwise an idle thread keeps the objects of its last job, with their memory and open files.
            self._heartbeats.stop("work")


class ThreadWorker:
    """A worker that puts the result of the work into the receive queue of its owner.

    Without the argument `thread`, it starts its own thread.
    """

    def __init__(
        self, receive_queue: queue.SimpleQueue[Item], heartbeats: Heartbeats | None = None,
        begin: Callable[[], None] = lambda: None, thread: WorkThread | None = None,
    ) -> None:  # fmt: skip
        self._receive_queue, self._thread = receive_queue, thread or WorkThread(heartbeats)
        if thread is None:
            self._thread.start(begin)

    def submit(self, work: Callable[[], T], then: Callable[[T | Exception], None]) -> None:
        self._thread.put(partial(self._do, work, then))

    def _do(self, work: Callable[[], T], then: Callable[[T | Exception], None]) -> None:
        result: T | Exception
        try:
            result = work()
        except BaseException as error:  # noqa: BLE001 - `then` gets the error, on the owner's thread
            result = as_exception(error)
        self._receive_queue.put(Done(partial(contextvars.copy_context().run, then, result)))


def as_exception(error: BaseException) -> Exception:
    """Return the exception that replaces this error for the owner of a thread.

    A SystemExit is replaced, because it would end the thread silently. An error of a plug-in is logged with
    its traceback for the plug-in's author, and is replaced by an exception with one line.
    """
    if (found := as_authors(error)) is not None:
        log.error("%s", found, exc_info=error)
        return found
    if isinstance(error, Exception):
        return error
    return EndedWorkError(f"the work was ended by {type(error).__name__}: {error}")


def stop_on_signals(put: Callable[[Item], None]) -> Callable[[], bool]:
    """Make SIGINT and SIGTERM stop an app in an orderly way.

    Return a function that returns whether there was a signal, for code that waits without taking items. The
    handler uses a list and not a threading.Event, because an Event has a lock. The interrupted main thread
    could hold this lock, and the handler would wait for ever.
    """
    numbers: list[int] = []

    def stop(number: int, frame: object) -> None:
        numbers.append(number)
        put(StopRequest(f"{DisconnectReason.SIGNAL.value}: {signal.Signals(number).name}"))

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, stop)
    return lambda: bool(numbers)


def end_on_signals() -> None:
    """Make SIGINT and SIGTERM end the process at once again, for the time in which no app takes items."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)


def serve(
    app: EventLoopApp[T],
    receive_queue: queue.SimpleQueue[T],
    clock: Callable[[], float],
    heartbeats: Heartbeats | None = None,
) -> None:
    """Run the event loop of an app until the app has finished.

    In one turn, the app takes the items that are in the queue and does the work that is due.
    """
    heartbeats = heartbeats or Heartbeats()
    while not app.finished:
        heartbeats.beat("loop")
        wait = app.wake_at - clock()
        with contextlib.suppress(queue.Empty):
            app.take(receive_queue.get(timeout=max(0.0, min(wait, IDLE_SECONDS))), clock())
            _take_what_is_there(app, receive_queue, clock)
        if app.wake_at <= clock():
            app.wake(clock())
        app.end_turn(clock())
    heartbeats.stop("loop")


def _take_what_is_there(
    app: EventLoopApp[T], receive_queue: queue.SimpleQueue[T], clock: Callable[[], float]
) -> None:
    """Take the items that wait in the queue; stop after a short time, so that deadlines are checked in time."""
    end = clock() + TURN_SECONDS
    for _ in range(TURN_ITEMS - 1):
        if app.finished or clock() >= end:
            return
        app.take(receive_queue.get(block=False), clock())
