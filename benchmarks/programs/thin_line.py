"""A 1 MB update over a slow, long, lossy line: 250 kbit/s, 300 ms for each round trip, 2 of 100 packets lost.

A proxy between the device and the broker delays the bytes. It cannot lose a packet of a TCP stream that it forwards,
so it imitates the effect of a loss on the stream. A lost segment arrives one round trip and 200 ms later. The
segments behind a lost segment do not arrive before it. A real system sends a lost segment twice, so the proxy lets
the segment use the line twice. Congestion control would lower the rate after a loss. The proxy does not lower the
rate, so a real line with many losses is slower.
"""

from __future__ import annotations

import contextlib
import queue
import random
import socket
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path

from benchmarks.programs.keys import make_keys
from benchmarks.programs.transfer import timed
from protofleet.federation.brokers.local import LocalBroker
from protofleet.protocol.transport.address import BrokerAddress
from protofleet.protocol.wire.names import COORDINATOR

SIZE = 1_000_000
SEGMENT = 1448
RETRANSMIT_SECONDS = 0.2  # Seconds that a retransmission takes, in addition to a round trip.
BUFFER_SECONDS = (
    0.5  # The line accepts data this many seconds before it can send the data, like a send buffer.
)


@dataclass(frozen=True)
class Line:
    bits_per_second: float = 250_000.0
    round_trip_seconds: float = 0.3
    loss: float = 0.02
    seed: int = 1


class Direction:
    """One direction of the line. The method `arrival` returns the arrival time of bytes that are read now."""

    def __init__(self, line: Line, seed: int) -> None:
        self._line, self._random = line, random.Random(seed)
        self.free_at = self._arrives = 0.0

    def arrival(self, size: int, now: float) -> float:
        lost = self._random.random() < self._line.loss
        self.free_at = max(now, self.free_at) + (2 if lost else 1) * 8 * size / self._line.bits_per_second
        extra = self._line.round_trip_seconds + RETRANSMIT_SECONDS if lost else 0.0
        arrives = self.free_at + self._line.round_trip_seconds / 2 + extra
        self._arrives = max(self._arrives, arrives)
        return self._arrives


class ThinLine:
    """A port of this machine. During the `with` block, connections to this port go over the line to another port."""

    def __init__(self, target: int, line: Line) -> None:
        self._target, self._line = target, line
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])

    def __enter__(self) -> ThinLine:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *error: object) -> None:
        self._listener.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):  # The listener is closed when the block ends.
            while True:
                near, _ = self._listener.accept()
                far = socket.create_connection(("127.0.0.1", self._target))
                for number, ends in enumerate(((near, far), (far, near))):
                    for end in ends:
                        end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                    on_their_way: queue.SimpleQueue[tuple[float, bytes]] = queue.SimpleQueue()
                    direction = Direction(self._line, self._line.seed + number)
                    threading.Thread(
                        target=take, args=(ends[0], direction, on_their_way), daemon=True
                    ).start()
                    threading.Thread(target=give, args=(ends[1], on_their_way), daemon=True).start()


def take(
    source: socket.socket, direction: Direction, on_their_way: queue.SimpleQueue[tuple[float, bytes]]
) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(SEGMENT):
            now = time.monotonic()
            on_their_way.put((direction.arrival(len(data), now), data))
            time.sleep(max(0.0, direction.free_at - now - BUFFER_SECONDS))
    on_their_way.put((time.monotonic(), b""))


def give(sink: socket.socket, on_their_way: queue.SimpleQueue[tuple[float, bytes]]) -> None:
    with contextlib.suppress(OSError):
        while True:
            arrives, data = on_their_way.get()
            time.sleep(max(0.0, arrives - time.monotonic()))
            if not data:
                sink.shutdown(socket.SHUT_WR)
                return
            sink.sendall(data)


def measure(size: int = SIZE, bits_per_second: float = 250_000.0) -> dict[str, float]:
    line = Line(bits_per_second)
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        for name in (COORDINATOR, "a"):
            make_keys(folder / "keys", name)
        with (
            LocalBroker(folder / "broker", "mosquitto") as broker,
            ThinLine(int(broker.address.port or 0), line) as thin,
        ):
            seconds = timed(folder, broker.address, "ours", size, BrokerAddress(port=thin.port))
    return {"seconds": seconds, "seconds over size / rate": seconds / (8 * size / bits_per_second)}
