"""`python -m tests.soak.page_cost` measures what ten streams of the live page cost a coordinator of two runs.

Six real devices take part in both runs, about one round of each run in two seconds. The streams are open in each
second window, so both kinds of windows have the same load.

The result is the difference of the coordinator's CPU time, as a share of one core.
"""

from __future__ import annotations

import contextlib
import os
import socket
import statistics
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Final

from protofleet.cli.queue_socket import ask_queue
from protofleet.protocol.settings.reader import SettingsError
from protofleet.runtime.command.errors import RunError
from tests.hostile.federation import CLASSES, SIZE, Federation

STREAMS: Final = 10
WINDOWS: Final = 8  # Pairs of windows without and with streams.
SECONDS: Final = 10.0
NAMES: Final = tuple(f"board-{i}" for i in range(6))
EXPERIMENT: Final = f"""
rounds = 10000
classes = {CLASSES}
size = {SIZE}

[network]
name = "mlp"

[method]
name = "fedavg"
lr = 0.02

[policy]
quorum = {len(NAMES)}
gather = {len(NAMES)}
patience_seconds = 600
pause_seconds = 2.0
"""
RUNS: Final = ("red", "blue")


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def read(stream: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while stream.recv(1 << 16):
            pass


def share(pid: int) -> float:
    """Return the CPU time of a process in one window, as a share of one core."""
    before, began = cpu_seconds(pid), time.monotonic()
    time.sleep(SECONDS)  # The window in which the CPU time is measured.
    return (cpu_seconds(pid) - before) / (time.monotonic() - began)


def with_streams(pid: int, port: int) -> float:
    with contextlib.ExitStack() as streams:
        for _ in range(STREAMS):
            stream = streams.enter_context(socket.create_connection(("127.0.0.1", port)))
            stream.sendall(f"GET /events HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n\r\n".encode())
            threading.Thread(target=read, args=(stream,), daemon=True).start()
        return share(pid)


def asked(runs: Path, verb: str, run: str = "", **more: object) -> dict[str, object]:
    """Ask the coordinator; return {} while it does not answer."""
    with contextlib.suppress(RunError, SettingsError):
        return ask_queue(runs, {"verb": verb, "run": run, **more})
    return {}


def rounds_of(runs: Path) -> list[int]:
    return [int(str(asked(runs, "show", name).get("round", 0))) for name in RUNS]


def main() -> int:
    with tempfile.TemporaryDirectory() as folder, Federation(Path(folder), *NAMES, forked=False) as f:
        service, runs = f.service(), Path(folder) / "runs"
        f.wait_until(lambda: asked(runs, "runs"), "the coordinator")
        for name in RUNS:
            asked(runs, "submit", name, experiment=EXPERIMENT, after="", priority=0)
        f.forked = True  # The devices share their memory.
        for name in NAMES:
            f.device(name, stays=True)
        f.wait_until(lambda: min(rounds_of(runs)) > 3, "three rounds of both runs", 300)
        assert service.child is not None
        pid, before = service.child.pid, rounds_of(runs)
        port = int(str(asked(runs, "page")["url"]).split(":")[2].split("/")[0])
        pairs = [(share(pid), with_streams(pid, port)) for _ in range(WINDOWS)]
        done = [after - first for first, after in zip(before, rounds_of(runs), strict=True)]
    for without, streams in pairs:
        sys.stdout.write(f"without {without:.2%}, with {STREAMS} streams {streams:.2%} of a core\n")
    more = [streams - without for without, streams in pairs]
    sys.stdout.write(
        f"{done} rounds; {STREAMS} streams cost {statistics.median(more):.2%} of a core (median)\n"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
