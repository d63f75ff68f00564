"""A port from `free_port` is still free when a program listens there later."""

import fcntl
import os
import socket
import subprocess
import sys

import pytest

from protofleet.federation.brokers.ports import CONNECTIONS, FIRST, LOOPBACK, free_port

NEXT = "from protofleet.federation.brokers.ports import free_port\nprint(*(free_port() for _ in range(20)))"
FILES_OF_FIFTY = """
import os
from protofleet.federation.brokers.ports import free_port
before = len(os.listdir("/proc/self/fd"))
ports = [free_port() for _ in range(50)]
print(before, len(os.listdir("/proc/self/fd")), *ports)
"""
ON_A_FULL_DISK = """
import resource
from protofleet.federation.brokers.ports import free_port
resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))  # no file can grow
print(*(free_port() for _ in range(20)))
"""


@pytest.fixture(autouse=True)
def turns(tmp_path, monkeypatch):
    """Return a folder of turns for this test alone, as other tests take ports at the same time."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    return tmp_path / f"protofleet-ports-{os.getuid()}"


def taken_by_others(processes=3):
    """Return the ports that several processes take at the same time."""
    started = [
        subprocess.Popen([sys.executable, "-c", NEXT], stdout=subprocess.PIPE, text=True)
        for _ in range(processes)
    ]
    return [int(port) for process in started for port in process.communicate()[0].split()]


def test_a_port_is_given_to_only_one_process_even_before_the_process_listens():
    mine = [free_port() for _ in range(20)]
    all_ports = [*mine, *taken_by_others()]
    assert len(all_ports) == 80 and len(set(all_ports)) == 80


def test_a_port_in_use_is_skipped(turns):
    port = free_port()
    with socket.create_server((LOOPBACK, port)):
        turns.write_text(str(port - FIRST - 1))  # the port that would be next
        assert free_port() != port


def test_an_address_that_this_machine_lacks_is_refused_at_once():
    with pytest.raises(OSError, match="Cannot assign requested address"):
        free_port("192.0.2.1")  # of the addresses for examples


def test_free_port_leaves_no_file_open_and_avoids_the_ephemeral_port_range():
    """It runs in a separate process, because threads of other tests open and close files in this one."""
    done = subprocess.run([sys.executable, "-c", FILES_OF_FIFTY], capture_output=True, text=True)
    before, after, *ports = map(int, done.stdout.split())
    first, last = map(int, CONNECTIONS.read_text().split())
    assert len(ports) == 50 and not any(first <= port <= last for port in ports), done.stderr
    assert after == before


@pytest.mark.parametrize("text", [b"", b"nonsense", b"-1", b"\xff\xfe", "\u0661".encode()])
def test_a_damaged_turn_file_is_replaced(turns, text):
    turns.write_bytes(text)
    port = free_port()
    assert turns.read_text().isdecimal() and free_port() != port


def test_a_port_is_random_if_the_turn_file_is_a_symlink(turns):
    turns.symlink_to(turns.parent / "elsewhere")  # any user may put a link there, and it is not followed
    assert 0 < free_port() < 65536 and not (turns.parent / "elsewhere").exists()


def test_free_port_does_not_wait_for_a_pipe_in_place_of_the_turn_file(turns):
    os.mkfifo(turns)
    assert 0 < free_port() < 65536


def test_ports_are_random_if_the_turn_file_cannot_be_written():
    done = subprocess.run([sys.executable, "-c", ON_A_FULL_DISK], capture_output=True, text=True)
    assert done.returncode == 0 and len(done.stdout.split()) == 20, done.stderr


def test_free_port_does_not_wait_for_a_locked_file_of_another_user(turns, monkeypatch):
    with turns.open("wb") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        monkeypatch.setattr("os.getuid", lambda uid=os.getuid() + 1: uid)
        turns.rename(turns.with_name(f"protofleet-ports-{os.getuid()}"))
        assert 0 < free_port() < 65536
