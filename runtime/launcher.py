"""Start processes fast, by forking a process that has already imported the needed modules.

The classes of forked processes have some methods with the same names as in subprocess.Popen.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import IO, Any, Final, NoReturn

from protofleet.protocol.user_error import UserError
from protofleet.runtime import children
from protofleet.runtime.launcher_process import (
    STREAMS,
    close_handles,
    fork_on_request,
    import_all,
    problem_with_threads,
)

CAN_FORK: Final = sys.platform.startswith("linux")  # On other systems a fork without exec is not safe.
PROGRAM: Final = "protofleet.runtime.launcher_process"
TURN_SECONDS: Final = 0.1  # Longest wait of one thread for a message; then another thread may wait.
STANDARD_INPUT, STANDARD_ERROR = 0, 2
ROOM: Final = " " * 400  # Space in the command line, which a child overwrites with its own command line.
# At a fork the process must have only one thread, but an imported OpenBLAS would start more threads.
ONE_THREAD: Final = {"OPENBLAS_NUM_THREADS": "1"}


class LauncherError(UserError, RuntimeError):
    """The error if the forking process cannot fork or has ended."""


class ForkedChild:
    """A child that the forking process made; it ends together with the forking process."""

    def __init__(self, launcher: Launcher, stdout: IO[str] | None) -> None:
        self._launcher, self.stdout = launcher, stdout
        self.pid = 0
        self.returncode: int | None = None

    def poll(self) -> int | None:
        if self.returncode is None:
            self._launcher.listen(0.0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        deadline = time.monotonic() + timeout if timeout is not None else float("inf")
        while self.poll() is None:
            if (left := deadline - time.monotonic()) <= 0:
                raise subprocess.TimeoutExpired([f"process {self.pid}"], timeout or 0.0)
            self._launcher.listen(min(left, TURN_SECONDS))
        assert self.returncode is not None
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            self._launcher.send_signal(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class ForkOfThis:
    """A direct child of this process, with the methods `poll` and `wait` of subprocess.Popen."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._code: int | None = None

    def poll(self) -> int | None:
        return self._wait(os.WNOHANG)

    def wait(self) -> int:
        code = self._wait(0)
        assert code is not None
        return code

    def kill(self) -> None:
        if self.poll() is None:
            os.kill(self.pid, signal.SIGKILL)

    def _wait(self, how: int) -> int | None:
        if self._code is None:
            ended, status = os.waitpid(self.pid, how)
            self._code = os.waitstatus_to_exitcode(status) if ended else None
        return self._code


# The handle of the forking process. The process that started it holds this handle.
Process = subprocess.Popen[bytes] | ForkOfThis | ForkedChild


def be_launcher(theirs: socket.socket, environment: Mapping[str, str]) -> NoReturn:
    """Turn this fork into a forking process, which is as independent as a new interpreter, and serve requests."""
    try:
        os.setsid()
        children.end_with_parent(environment)
        with Path(os.devnull).open("r+b") as nothing:
            os.dup2(nothing.fileno(), 0)
            os.dup2(nothing.fileno(), 1)
        close_handles(STREAMS, kept=theirs.fileno())
        fork_on_request(theirs)
    finally:
        os._exit(1)


class Launcher:
    """An object that controls a forking process; if that process has ended, `start` starts it again.

    Normally the forking process is a new interpreter, which imports `modules` while this process continues. Use
    `here` if this process needs the modules too: this process imports them and then forks the forking process,
    so both processes share the memory of the modules.
    """

    def __init__(self, modules: Sequence[str], here: bool = False) -> None:
        self._modules, self._here = modules, here
        self._lock = threading.RLock()
        self._running: dict[int, ForkedChild] = {}
        self._starting: ForkedChild | None = None
        self._refused = self._received = ""
        self._begin()

    def _begin(self) -> None:
        self._received = ""
        self.problem = ""  # The reason why the forking process and all its children have ended, or "".
        self._socket, theirs = socket.socketpair()
        with theirs:
            self._process = self._start_process(theirs)

    def _start_process(self, theirs: socket.socket) -> Process:
        if self._here:
            self._here = (
                False  # Fork only once: later this process may have threads, and then a fork is not safe.
            )
            return self._fork(theirs)
        return subprocess.Popen(
            children.command(PROGRAM, str(theirs.fileno()), *self._modules, ROOM),
            pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
            start_new_session=True, env={**children.environment_of_child(), **ONE_THREAD},
        )  # fmt: skip

    def _fork(self, theirs: socket.socket) -> ForkOfThis:
        before = dict(os.environ)
        os.environ.update(ONE_THREAD)
        import_all(self._modules)
        os.environ.clear()
        os.environ.update(before)
        if problem := problem_with_threads():
            raise LauncherError(problem)
        sys.stdout.flush()
        sys.stderr.flush()
        environment = children.environment_of_child()
        if (pid := os.fork()) == 0:
            be_launcher(theirs, environment)
        return ForkOfThis(pid)

    def __enter__(self) -> Launcher:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """End the forking process and all its children."""
        with self._lock:
            self._socket.close()
            self._process.kill()
            self._process.wait()
            self._ended("it is closed")

    @property
    def pid(self) -> int:
        return self._process.pid

    def start(
        self, program: children.Program, stdout: int, stderr: int, stdin: int | None = None
    ) -> ForkedChild:
        with self._lock, contextlib.ExitStack() as handles:
            reads = None
            if stdout == subprocess.PIPE:
                reading, stdout = os.pipe()
                handles.callback(os.close, stdout)
                reads = os.fdopen(reading)
            if stdin is None:
                stdin = handles.enter_context(Path(os.devnull).open("rb")).fileno()
            child = self._starting = ForkedChild(self, reads)
            if self._process.poll() is not None:
                self._begin()
            self._ask({"start": asdict(program)}, [stdin, stdout, stderr])
            while self._starting is not None:
                self.listen(TURN_SECONDS)
            if child.pid == 0:
                raise LauncherError(self._refused)
        return child

    def send_signal(self, pid: int, number: int) -> None:
        with self._lock:
            self._ask({"signal": int(number), "pid": pid})

    def listen(self, seconds: float) -> None:
        """Wait up to `seconds` for a message of the forking process, and handle it."""
        with self._lock, selectors.DefaultSelector() as selector:
            if not self._running and self._starting is None:
                return
            selector.register(self._socket, selectors.EVENT_READ)
            if selector.select(seconds):
                self._receive()

    def _ask(self, request: dict[str, Any], handles: Sequence[int] = ()) -> None:
        """Send a request; ignore an error if the process has ended, because `listen` notices the end."""
        data = json.dumps(request).encode() + b"\n"
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            sent = socket.send_fds(self._socket, [data], handles) if handles else 0
            self._socket.sendall(data[sent:])

    def _receive(self) -> None:
        try:
            data = self._socket.recv(1 << 16)
        except ConnectionResetError:
            data = b""
        if not data:
            self._process.kill()
            self.problem = f"the process that forks ended with exit code {self._process.wait()}"
            self._ended(self.problem)
        *lines, self._received = (self._received + data.decode()).split("\n")
        for line in lines:
            self._take(json.loads(line))

    def _take(self, message: dict[str, Any]) -> None:
        match message:
            case {"started": int(pid)}:
                assert self._starting is not None
                self._starting.pid, self._running[pid] = pid, self._starting
                self._starting = None
            case {"ended": int(pid), "code": int(code)}:
                self._running.pop(pid).returncode = code
            case {"refused": str(why)}:
                self._refused, self._starting = why, None

    def _ended(self, why: str) -> None:
        """Record that all children have ended: the kernel ended them when the forking process ended."""
        self._refused, self._starting = why, None
        for child in self._running.values():
            child.returncode = -signal.SIGKILL
        self._running.clear()


class ForkedLauncher(Launcher):
    """A launcher with a forking process that another launcher has started.

    The forking process first runs a module, and its children share the memory of the module's data. If the
    forking process cannot fork because a library has started a thread, the other launcher starts the child instead.
    """

    def __init__(self, parent: Launcher, program: children.Program) -> None:
        """Start the program that becomes the forking process.

        The standard input of the program is a socket. When its module has run, the program must pass this socket
        to `fork_on_request`.
        """
        self._parent, self._program = parent, program
        super().__init__(())

    def _start_process(self, theirs: socket.socket) -> ForkedChild:
        with Path(os.devnull).open("r+b") as nothing:
            program = replace(self._program, environment={**self._program.environment, **ONE_THREAD})
            return self._parent.start(program, nothing.fileno(), STANDARD_ERROR, stdin=theirs.fileno())

    def start(
        self, program: children.Program, stdout: int, stderr: int, stdin: int | None = None
    ) -> ForkedChild:
        try:
            return super().start(program, stdout, stderr, stdin)
        except LauncherError:
            return self._parent.start(program, stdout, stderr, stdin)
