"""`python -m tests.soak.page_cost` measures what ten streams of the live page cost the coordinator of a real run.

Six devices answer at once, about one round in a second. The streams are open in each second window, so both kinds of
windows have the same load. The result is the difference of the coordinator's CPU time, as a share of one core.
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

from protofleet.coordinator.round.policy import Policy
from protofleet.federation.brokers.ports import free_port
from tests.hostile.device import honest
from tests.hostile.federation import Federation

STREAMS: Final = 10
WINDOWS: Final = 8  # Pairs of windows without and with streams.
SECONDS: Final = 10.0
NAMES: Final = tuple(f"board-{i}" for i in range(6))


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


def main() -> int:
    port = free_port()
    policy = Policy(quorum=len(NAMES), gather=len(NAMES), patience_seconds=600, pause_seconds=1.0)
    with (
        tempfile.TemporaryDirectory() as folder,
        Federation(Path(folder), *NAMES, rounds=10_000, policy=policy, page_port=port, forked=False) as f,
    ):
        coordinator = f.coordinator()
        for name in NAMES:
            f.raw(name, honest)
        f.wait_until(lambda: len(f.rounds()) > 2, "three rounds")
        assert coordinator.child is not None
        pid, rounds = coordinator.child.pid, len(f.rounds())
        pairs = [(share(pid), with_streams(pid, port)) for _ in range(WINDOWS)]
        rounds = len(f.rounds()) - rounds
    for without, streams in pairs:
        sys.stdout.write(f"without {without:.2%}, with {STREAMS} streams {streams:.2%} of a core\n")
    more = [streams - without for without, streams in pairs]
    sys.stdout.write(
        f"{rounds} rounds; {STREAMS} streams cost {statistics.median(more):.2%} of a core (median)\n"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
