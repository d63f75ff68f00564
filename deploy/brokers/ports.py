"""A port of this machine that nobody else will take."""

from __future__ import annotations

import contextlib
import random
import socket
import sys
from pathlib import Path

LOOPBACK = "127.0.0.1"
FIRST = 12_000
USUAL_END = 30_000  # where a machine does not say which ports it gives to connections
CONNECTIONS = Path("/proc/sys/net/ipv4/ip_local_port_range")


def free_port() -> int:
    """Below the ports that the machine gives to connections, and reserved until this process ends.

    A port that was only seen free is taken, now and then, before its program listens: by a connection of
    any process, or by another process that looks for a port. A reservation is known to all who call this.
    """
    end = _first_of_connections()
    while True:
        port = random.SystemRandom().randrange(FIRST, end)
        with contextlib.suppress(OSError), socket.create_server((LOOPBACK, port)):
            _reserve(port)
            return port


def _first_of_connections() -> int:
    try:
        first = int(CONNECTIONS.read_text().split()[0])
    except (OSError, ValueError):
        return USUAL_END
    return first if first > 2 * FIRST else USUAL_END


def _reserve(port: int) -> None:
    """Raises OSError if another holds it. The kernel ends a reservation with its process, however that ends."""
    if sys.platform != "linux":
        return  # no names of sockets outside of the file system
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    try:
        sock.bind(f"\0protofleet-port-{port}")
    except OSError:
        sock.close()
        raise
    sock.detach()  # stays open: what will listen is started later, often by another process
