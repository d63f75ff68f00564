"""Processes that can be found, measured and ended together, and a proxy that counts the bytes that they send."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import socketserver
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import FrameType, TracebackType

LOOPBACK = "127.0.0.1"
MARK = "PROTOFLEET_BENCHMARK"
MB = 1e6
KILL_SECONDS, SETTLE_SECONDS = 10.0, 90.0


class Family:
    """All processes whose environment names the same folder. Children inherit the environment.

    A process group would not be enough, because Flower's superlink starts its helper in its own session.
    """

    def __init__(self, folder: Path, extra: dict[str, str] | None = None) -> None:
        self.folder = folder
        self.environment = {**os.environ, **(extra or {}), MARK: str(folder)}
        self.started: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Family:
        self._before = signal.signal(signal.SIGTERM, _leave)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        signal.signal(signal.SIGTERM, self._before)
        deadline = time.monotonic() + KILL_SECONDS
        # The loop is repeated, because a new process may have started in the meantime.
        while alive := self.members():
            for process in alive:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process, signal.SIGKILL)
            if time.monotonic() > deadline:
                raise RuntimeError(f"processes {alive} have not ended after they were killed")
            time.sleep(0.05)
        for child in self.started:
            child.wait(KILL_SECONDS)

    def start(self, name: str, *command: str, more: Mapping[str, str] = {}) -> Path:
        """Start a process and return the path of its log."""
        log = self.folder / f"{name}.log"
        with log.open("wb") as out:
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=out, stderr=out,
                env={**self.environment, **more}, start_new_session=True,
                # The process must not import anything from a checkout in the current folder.
                cwd=self.folder,
            )  # fmt: skip
        self.started.append(process)
        return log

    def finish(self, name: str, seconds: float, *command: str) -> str:
        """Run a process until it ends, and return its output."""
        said = self.start(name, *command)
        self.wait(name, seconds)
        return said.read_text()

    def wait(self, name: str, seconds: float) -> None:
        """Wait for the process that was started last."""
        try:
            code = self.started[-1].wait(seconds)
        except subprocess.TimeoutExpired:
            code = -1
        if code != 0:
            raise RuntimeError(f"{name} failed or took more than {seconds:.0f} s; {self.last_words()}")

    def members(self) -> list[int]:
        mark = f"{MARK}={self.folder}".encode()
        return [int(p.parent.name) for p in Path("/proc").glob("[0-9]*/environ") if mark in _variables(p)]

    def settled_memory(self) -> dict[str, float]:
        """Return the memory of all processes after the memory has stopped growing."""
        deadline = time.monotonic() + SETTLE_SECONDS
        before, now = self.memory(), self.memory()
        while time.monotonic() < deadline:
            time.sleep(4.0)
            before, now = now, self.memory()
            if before["processes"] == now["processes"] and abs(now["pss_MB"] / before["pss_MB"] - 1) < 0.005:
                break
        return now

    def memory(self) -> dict[str, float]:
        return held(self.members())

    def cpu_seconds(self) -> float:
        """Return the CPU seconds of all running processes and of their children that have ended.

        A child counts after its parent has waited for it.
        """
        return sum(cpu_seconds(p) for p in self.members())

    def last_words(self) -> str:
        ends = [(log.name, log.read_text(errors="replace")[-600:]) for log in self.folder.glob("*.log")]
        return "\n".join(
            f"{name} ends with:\n{end}" for name, end in sorted(ends) if "supernode-" not in name
        )


def _leave(number: int, frame: FrameType | None) -> None:
    sys.exit(128 + number)  # The exit leaves every `with` block, and these blocks end the processes.


def _variables(environ: Path) -> list[bytes]:
    with contextlib.suppress(OSError):  # The process has ended, or belongs to another user.
        return environ.read_bytes().split(b"\0")
    return []


def held(processes: Iterable[int]) -> dict[str, float]:
    """Return the memory of those processes that still exist."""
    rollups = [text for p in processes if (text := _rollup(p))]
    return {
        "processes": len(rollups),
        "rss_MB": round(sum(_field(text, "Rss:") for text in rollups), 1),
        "pss_MB": round(sum(_field(text, "Pss:") for text in rollups), 1),
    }


def _rollup(process: int) -> str:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{process}/smaps_rollup").read_text()
    return ""


def _field(rollup: str, name: str) -> float:
    return sum(int(line.split()[1]) * 1024 / MB for line in rollup.splitlines() if line.startswith(name))


def cpu_seconds(process: int) -> float:
    """Return the CPU seconds of a process and of its ended children, in user and system mode.

    The result is 0 if the process has ended.
    """
    with contextlib.suppress(OSError):
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
        return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")
    return 0.0


@dataclass(frozen=True, slots=True)
class Counters:
    """The kernel's counters of a running process, summed over all its threads."""

    cpu_ns: int
    # Bytes that the process has written to the page cache. Bytes that were deleted before they reached the disk are
    # not counted.
    written: int

    def __sub__(self, before: Counters) -> Counters:
        return Counters(self.cpu_ns - before.cpu_ns, self.written - before.written)


def counters(process: int) -> Counters:
    lines = dict(line.split(": ") for line in Path(f"/proc/{process}/io").read_text().splitlines())
    return Counters(cpu_ns(process), int(lines["write_bytes"]) - int(lines["cancelled_write_bytes"]))


def cpu_ns(process: int) -> int:
    """Return the CPU time of all threads that the process has now, in nanoseconds."""
    return sum(int(p.read_text().split()[0]) for p in Path(f"/proc/{process}").glob("task/*/schedstat"))


def resident_megabytes(field: str, process: object = "self") -> float:
    """Return a number from the kernel's status of a process, in megabytes.

    VmHWM is the highest resident memory so far. VmRSS is the present resident memory.
    """
    for line in Path(f"/proc/{process}/status").read_text().splitlines():
        if line.startswith(field):
            return int(line.split()[1]) * 1024 / MB
    raise LookupError(f"no field {field} in the kernel's status of process {process}")


def listens(port: int) -> bool:
    with socket.socket() as sock:
        sock.settimeout(1.0)
        return sock.connect_ex((LOOPBACK, port)) == 0


class CountingProxy(socketserver.ThreadingTCPServer):
    """A proxy that forwards TCP streams to a port of this machine, and counts the bytes in both directions."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, target: int) -> None:
        super().__init__((LOOPBACK, 0), _Hop)
        self.target, self.bytes = target, 0
        self.port = int(self.server_address[1])
        self._lock = threading.Lock()

    def __enter__(self) -> CountingProxy:
        threading.Thread(target=self.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *error: object) -> None:
        self.shutdown()
        self.server_close()

    def pump(self, source: socket.socket, sink: socket.socket) -> None:
        # One of the two connections is closed, and the other one will be closed soon.
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 18):
                with self._lock:
                    self.bytes += len(data)
                sink.sendall(data)
        with contextlib.suppress(OSError):
            sink.shutdown(socket.SHUT_WR)


class _Hop(socketserver.BaseRequestHandler):
    def handle(self) -> None:
        proxy = self.server
        assert isinstance(proxy, CountingProxy)
        with contextlib.suppress(ConnectionError), socket.create_connection((LOOPBACK, proxy.target)) as far:
            for end in (self.request, far):
                end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            back = threading.Thread(target=proxy.pump, args=(far, self.request), daemon=True)
            back.start()
            proxy.pump(self.request, far)
            back.join()
