"""Import modules, and then fork on request.

The command is `python -m protofleet.runtime.launcher_process SOCKET MODULE ...`. A child runs a module as
`python -m MODULE ARGUMENTS` does, but has all imported modules in memory already. Other threads do not exist in a
child, and a lock that another thread holds during the fork stays locked for ever in the child. So the process
that forks never has a second thread.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import json
import logging
import os
import runpy
import selectors
import signal
import socket
import sys
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NoReturn

from protofleet.runtime import children
from protofleet.runtime.interrupts import held_interrupts
from protofleet.runtime.library_pages import release_library_pages

STREAMS: Final = 3  # Number of handles that are sent with a request: standard input, output and error.
LONGEST: Final = 1 << 16  # Largest number of bytes that are read at once.
LONGEST_NAME: Final = 15  # Largest number of bytes in the name of a process.
# Positions of two fields in /proc/self/stat, counted after the name. The two fields are the addresses at which the
# command line begins and ends in memory.
COMMAND_LINE: Final = slice(45, 47)


@dataclass(frozen=True, slots=True)
class StartRequest:
    """The program that a child has to run, and its standard streams."""

    program: children.Program
    streams: tuple[int, ...]


def main(arguments: Sequence[str]) -> None:
    children.end_with_parent()
    import_all(arguments[1:])
    fork_on_request(socket.socket(fileno=int(arguments[0])))


def import_all(modules: Sequence[str]) -> None:
    gc.disable()  # An import makes many objects and frees few of them, so the search for garbage is useless.
    with held_interrupts():
        for module in modules:
            # If an import fails, the child tries it again, and reports the error in its own log.
            with contextlib.suppress(Exception):
                importlib.import_module(module)
    share_memory()
    gc.enable()
    release_library_pages()


def share_memory() -> None:
    """Prepare the memory before the first fork, so that children write to few shared pages.

    The kernel copies each page to which a child writes.
    """
    gc.collect()
    gc.freeze()  # After this, garbage collection in a child does not write to shared pages.
    if sys.version_info < (3, 12):  # Python 3.12 and later do not count references to names of attributes.
        # When a child looks up an attribute, Python may replace an old entry of the type cache. Python then
        # releases the name in the old entry. This release writes to a shared page.
        sys._clear_type_cache()


def fork_on_request(connection: socket.socket) -> NoReturn:
    """Fork on request until the other end of the connection is closed.

    The children end with this process.
    """
    launcher = os.getpid()
    rename_process("launcher")
    with connection:
        own = Forks(connection).serve()
    if own is None:
        os._exit(0)
    run(own, launcher)


class Forks:
    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._running: set[int] = set()
        self._received, self._streams = b"", list[int]()

    def serve(self) -> StartRequest | None:
        """Serve requests; in each forked child, return the request that the child has to run.

        In the launcher itself, return None when the connection is closed.
        """
        bell, rung = socket.socketpair()
        for end in (bell, rung):
            end.setblocking(False)
        signal.set_wakeup_fd(rung.fileno())
        # Only a signal with a handler writes to the wakeup socket.
        signal.signal(signal.SIGCHLD, lambda number, frame: None)
        with selectors.DefaultSelector() as selector:
            selector.register(self._connection, selectors.EVENT_READ)
            selector.register(bell, selectors.EVENT_READ)
            while True:
                for key, _ in selector.select():
                    if key.fileobj is bell:
                        bell.recv(LONGEST)
                        self._tell_ends()
                        continue
                    if not self._receive():
                        return None
                    while (request := self._next_request()) is not None:
                        if (own := self._perform(request)) is not None:
                            return own

    def _receive(self) -> bool:
        data, handles, _, _ = socket.recv_fds(self._connection, LONGEST, STREAMS)
        self._received += data
        self._streams += handles
        return bool(data)

    def _next_request(self) -> dict[str, Any] | None:
        line, newline, rest = self._received.partition(b"\n")
        if not newline:
            return None
        self._received = rest
        request: dict[str, Any] = json.loads(line)
        return request

    def _perform(self, request: dict[str, Any]) -> StartRequest | None:
        match request:
            case {"signal": int(number), "pid": int(pid)}:
                # This process has not waited for the child yet, so no other process can have the id of the child.
                if pid in self._running:
                    os.kill(pid, number)
                return None
            case {"start": dict(what)}:
                streams, self._streams = tuple(self._streams), []
                return self._fork(StartRequest(children.Program(**what), streams))
        raise ValueError(f"no request: {request}")

    def _fork(self, request: StartRequest) -> StartRequest | None:
        if problem := problem_with_threads():
            self._say({"refused": problem})
            return None
        if (pid := os.fork()) == 0:
            return request
        self._running.add(pid)
        for handle in request.streams:
            os.close(handle)
        self._say({"started": pid})
        return None

    def _tell_ends(self) -> None:
        for pid in list(self._running):
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                self._running.discard(pid)
                self._say({"ended": pid, "code": os.waitstatus_to_exitcode(status)})

    def _say(self, message: dict[str, Any]) -> None:
        with contextlib.suppress(BrokenPipeError):  # The next read notices that the connection is closed.
            self._connection.sendall(json.dumps(message).encode() + b"\n")


def problem_with_threads() -> str:
    if (threads := thread_count()) == 1:
        return ""
    return (
        f"{threads} threads run in the process that forks, it must be 1: no code may start a thread while Python "
        "starts, as a sitecustomize.py or a profiler does"
    )


def thread_count() -> int:
    """Return the number of threads, including threads that a library has started without Python."""
    with contextlib.suppress(OSError):
        return len(list(Path("/proc/self/task").iterdir()))
    return threading.active_count()


def run(request: StartRequest, launcher: int) -> NoReturn:
    """Run a module as an interpreter would, but exit without the interpreter's cleanup.

    The cleanup writes to most of the shared pages, so the kernel would copy them.
    """
    code: object = 0
    try:
        become(request, launcher)
        runpy.run_module(request.program.module, run_name="__main__", alter_sys=True)
    except SystemExit as leaving:
        code = leaving.code
    except BaseException:  # noqa: BLE001 - no exception may reach the launcher's own callers
        sys.excepthook(*sys.exc_info())
        code = 1
    for thread in threading.enumerate():
        if thread is not threading.current_thread() and not thread.daemon:
            thread.join()
    if code is not None and not isinstance(code, int):
        sys.stderr.write(f"{code}\n")
        code = 1
    logging.shutdown()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):  # The reader of the stream may have ended.
            stream.flush()
    os._exit(code or 0)


def become(request: StartRequest, launcher: int) -> None:
    """Make this process like a newly started process. It shares memory with the other children, and nothing else."""
    program = request.program
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    logging.getLogger().handlers.clear()  # These handlers belong to the launcher.
    os.setsid()
    for number, handle in enumerate(request.streams):
        os.dup2(handle, number)
    close_handles(STREAMS)
    os.environ.clear()
    os.environ.update(program.environment)
    os.environ[children.PARENT] = str(launcher)
    children.end_with_parent()
    os.chdir(program.folder)
    # The random generators of Python and OpenSSL get a new seed after a fork. The generator of torch always
    # begins with the same seed. So only NumPy's generator has to be seeded here.
    if "numpy.random" in sys.modules:
        sys.modules["numpy.random"].seed()
    sys.argv[:] = [program.module, *program.arguments]
    rename_process(program.name)
    replace_command_line(sys.argv)


def close_handles(first: int, kept: int = -1) -> None:
    """Close all open handles from `first` on, except `kept`.

    Only open handles are closed, because the limit of handles may be a billion, and trying every number would
    take too long.
    """
    try:
        handles = [int(path.name) for path in Path("/proc/self/fd").iterdir()]
    except OSError:
        handles = list(range(os.sysconf("SC_OPEN_MAX")))
    for handle in handles:
        if handle >= first and handle != kept:
            with contextlib.suppress(OSError):  # The handle for the listing of the folder is already closed.
                os.close(handle)


def rename_process(name: str) -> None:
    """Change the name of this process for `top` and `ps`."""
    with contextlib.suppress(OSError):
        Path("/proc/self/comm").write_bytes(os.fsencode(name)[:LONGEST_NAME])


def replace_command_line(words: Sequence[str]) -> None:
    """Replace the launcher's command line for `ps`; cut the new text if it is longer than the old text."""
    text = b"\0".join(map(os.fsencode, words))
    with contextlib.suppress(OSError, ValueError):
        numbers = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
        begin, end = map(int, numbers[COMMAND_LINE])
        ctypes.memset(begin, 0, end - begin)
        ctypes.memmove(begin, text, min(len(text), end - begin - 1))


if __name__ == "__main__":
    main(sys.argv[1:])
