"""Ports that are free now and are still free when a program listens there later."""

import socket
import subprocess
import sys

from protofleet.deploy.brokers.ports import CONNECTIONS, LOOPBACK, free_port

NEXT = """
import random, sys
from unittest.mock import patch
from protofleet.deploy.brokers.ports import free_port
drawn, free_draw = [int(word) for word in sys.argv[1:]], random.SystemRandom().randrange
with patch.object(random.SystemRandom, "randrange", lambda _, *limits: drawn.pop() if drawn else free_draw(*limits)):
    print(free_port())
"""


def next_free(*drawn: int) -> int:
    """Of another process, which draws this first."""
    command = [sys.executable, "-c", NEXT, *map(str, drawn)]
    return int(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def test_a_port_that_was_given_is_given_to_no_other_process_though_nobody_listens_there_yet():
    mine = free_port()
    assert next_free(mine) != mine


def test_a_port_on_which_somebody_listens_is_not_given():
    with socket.create_server((LOOPBACK, 0)) as listening:
        taken = listening.getsockname()[1]
        assert next_free(taken) != taken


def test_a_port_is_free_again_once_the_process_that_it_was_given_has_ended():
    port = next_free()
    assert next_free(port) == port


def test_no_connection_is_given_such_a_port():
    first, last = map(int, CONNECTIONS.read_text().split())
    assert all(not first <= free_port() <= last for _ in range(50))
