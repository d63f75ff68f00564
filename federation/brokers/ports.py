"""Find a free port of this machine that other programs are unlikely to take."""

from __future__ import annotations

import errno
import fcntl
import os
import random
import socket
import stat
import tempfile
from pathlib import Path

LOOPBACK = "127.0.0.1"
FIRST = 12_000
# If the machine does not report the ports that it gives to connections, `free_port` returns only ports below this
# number.
USUAL_END = 30_000
CONNECTIONS = Path("/proc/sys/net/ipv4/ip_local_port_range")
DRAWS = 1 << 30
TAKEN = (errno.EADDRINUSE, errno.EACCES)  # Errors of a port that another process uses or may use.


def free_port(host: str = LOOPBACK) -> int:
    """Return a free port of this machine's address `host`; try the next port in each call.

    The port is below the ports that the machine gives to connections. OSError is raised if this machine does not
    have the address.

    Before the caller's program listens on the port, a connection of any process may take the port. Another process
    that also looks for a port may take it too. Because the ports are used in turn, the processes of a user get
    the same port again only after thousands of other ports.
    """
    span = _first_of_connections() - FIRST
    while True:
        port = FIRST + _turn() % span
        try:
            with socket.create_server((host, port)):
                return port
        except OSError as error:
            if error.errno not in TAKEN:  # For example, this machine does not have the address.
                raise


def _first_of_connections() -> int:
    try:
        first = int(CONNECTIONS.read_text().split()[0])
    except (OSError, ValueError):
        return USUAL_END
    return first if first > 2 * FIRST else USUAL_END


def _turn() -> int:
    """Return the next number of a counter, which all processes of this user share in a file.

    If the file cannot be used, return a random number.
    """
    drawn = random.SystemRandom().randrange(DRAWS)
    try:
        return _next_in(Path(tempfile.gettempdir()) / f"protofleet-ports-{os.getuid()}", drawn)
    except OSError:
        return drawn


def _next_in(path: Path, first: int) -> int:
    with os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600), "r+b", buffering=0) as file:
        found = os.fstat(file.fileno())
        if found.st_uid != os.getuid() or not stat.S_ISREG(found.st_mode):
            # Do not use this file. Another user could lock it for ever. A pipe or a device file cannot store a
            # number.
            return first
        fcntl.flock(file, fcntl.LOCK_EX)  # The lock ends with the process, even if the process is killed.
        text = file.read(20)
        turn = int(text) + 1 if text.isdigit() else first
        file.seek(0)
        file.truncate()
        file.write(str(turn).encode())
    return turn
