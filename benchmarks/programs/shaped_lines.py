"""Lines with a rate, a delay and a loss between pairs of TUN devices, for kernels that have no `tc netem`.

A packet waits until the line is free, takes the time of its bytes, and arrives after the delay, as with `netem`.
The program runs until its standard input ends. Its devices vanish with it. It needs root.
"""

from __future__ import annotations

import fcntl
import heapq
import json
import os
import random
import select
import struct
import sys
import time
from dataclasses import dataclass, field
from itertools import count

TUNSETIFF = 0x400454CA
TUN_WITHOUT_HEADER = 0x1001  # IFF_TUN | IFF_NO_PI
ETHERNET = 14  # Bytes of an Ethernet header, which a TUN device has not.
MOST_PACKETS = 10_000  # Packets that wait in one direction.


def opened(name: str) -> int:
    """Make a TUN device, and return its file."""
    file = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(file, TUNSETIFF, struct.pack("16sH22x", name.encode(), TUN_WITHOUT_HEADER))
    return file


@dataclass
class Direction:
    """One direction of a line: packets that are read from one device and written to another."""

    source: int
    target: int
    rate: float  # Bytes per second.
    delay: float
    loss: float
    rng: random.Random
    busy_until: float = 0.0
    waiting: int = 0


@dataclass
class Shaper:
    directions: dict[int, Direction]
    due: list[tuple[float, int, Direction, bytes]] = field(default_factory=list)
    order: count[int] = field(default_factory=count)

    def run(self) -> None:
        with select.epoll() as poll:
            for file in (*self.directions, sys.stdin.fileno()):
                poll.register(file, select.EPOLLIN)
            while True:
                wait = max(0.0, self.due[0][0] - time.monotonic()) if self.due else 1.0
                for file, _ in poll.poll(wait):
                    if file not in self.directions:
                        return
                    self.take(self.directions[file])
                self.deliver()

    def take(self, way: Direction) -> None:
        """Read the packets that wait at a device."""
        while True:
            try:
                packet = os.read(way.source, 65_536)
            except BlockingIOError:
                return
            if way.waiting >= MOST_PACKETS or (way.loss and way.rng.random() < way.loss):
                continue
            begun = max(time.monotonic(), way.busy_until)
            way.busy_until = begun + (len(packet) + ETHERNET) / way.rate
            way.waiting += 1
            heapq.heappush(self.due, (way.busy_until + way.delay, next(self.order), way, packet))

    def deliver(self) -> None:
        now = time.monotonic()
        while self.due and self.due[0][0] <= now:
            _, _, way, packet = heapq.heappop(self.due)
            way.waiting -= 1
            try:
                os.write(way.target, packet)
            except OSError:  # The device is not up.
                continue


def main(given: str) -> None:
    """Make the lines of `pairs`; each pair has the names of two devices."""
    wish = json.loads(given)
    rate, delay, loss = wish["mbits"] * 1e6 / 8, wish["delay"], wish["loss"]
    directions = {}
    for i, (one, other) in enumerate(wish["pairs"]):
        files = opened(one), opened(other)
        for source, target in (files, files[::-1]):
            directions[source] = Direction(source, target, rate, delay, loss, random.Random(f"{i} {source}"))
    os.nice(-10)  # A late packet would count as a slow line.
    print("ready", flush=True)
    Shaper(directions).run()


if __name__ == "__main__":
    main(sys.argv[1])
