"""Faults are drawn from a seed, affect one victim at a time, and end."""

import contextlib
import socket
import subprocess

import pytest

from tests.chaos import faults
from tests.chaos.faults import KINDS, Dice, Fault, Kind, Storm
from tests.chaos.proxy import Proxy
from tests.chaos.seclusion import PART, SmallDisk

DEVICES = ["device-1", "device-2"]


RUNS = ["red", "blue"]


def drawn(seed, root=True, only="", runs=RUNS):
    dice = Dice(seed, DEVICES, root, pause=1.0, only=only, runs=runs)
    return [dice.draw() for _ in range(300)]


def test_equal_seeds_draw_equal_faults_and_other_seeds_draw_other_faults():
    assert drawn(1) == drawn(1) != drawn(2)


def test_each_kind_of_fault_is_drawn_with_a_valid_victim_and_duration():
    found = [fault for _, fault in drawn(1)]
    rare = {"cut a line for a minute"} | {name for name, kind in KINDS.items() if not kind.weight}
    assert {fault.kind for fault in found} >= KINDS.keys() - rare
    for fault in found:
        low, high = KINDS[fault.kind].seconds
        assert low <= fault.seconds <= high
        assert (fault.victim in DEVICES) or KINDS[fault.kind].victims != "device"
    assert not [f for _, f in drawn(1, root=False) if "disk" in f.kind]
    assert {fault.victim for fault in found if fault.kind == "pause a run"} == set(RUNS)
    assert not [f for _, f in drawn(1, runs=()) if KINDS[f.kind].needs_queue]
    assert {f.kind for _, f in drawn(1, only="ten minutes")} == {"ten minutes without the broker, store gone"}
    assert {f.kind for _, f in drawn(1, only="freeze")} == {k for k in KINDS if "freeze" in k}


class Place:
    """A world that only records its notes."""

    def __init__(self):
        self.notes = []
        self.note = self.notes.append


def test_a_victim_has_one_fault_of_a_sort_at_a_time_and_calm_ends_all_faults(monkeypatch):
    deeds = []
    kinds = {
        name: Kind(1, "device", (0, 9), lambda w, who, n=name: deeds.append(("begin", n, who)),
                   lambda w, who, n=name: deeds.append(("end", n, who)))
        for name in ("kill -9 a device", "freeze a device", "break a line")
    }  # fmt: skip
    monkeypatch.setattr(faults, "KINDS", kinds)
    storm = Storm(Place())
    assert storm.strike(Fault("kill -9 a device", "a", 5.0), now=0.0)
    assert not storm.strike(Fault("freeze a device", "a", 5.0), now=1.0), "it is dead"
    assert storm.strike(Fault("freeze a device", "b", 5.0), now=1.0)
    assert storm.strike(Fault("break a line", "a", 9.0), now=1.0)
    storm.pass_over(5.0)
    assert deeds[-1] == ("end", "kill -9 a device", "a")
    assert storm.strike(Fault("freeze a device", "a", 5.0), now=5.0)
    storm.calm()
    assert sorted(d[1:] for d in deeds if d[0] == "begin") == sorted(d[1:] for d in deeds if d[0] == "end")


@pytest.fixture
def line():
    """Yield a socket, the proxy, and the socket at the other end of the proxy."""
    server = socket.create_server(("127.0.0.1", 0))
    proxy = Proxy("127.0.0.1", server.getsockname())
    near = socket.create_connection(("127.0.0.1", proxy.port), timeout=10)
    far, _ = server.accept()
    far.settimeout(10)
    yield near, proxy, far
    for end in (near, far, server, proxy):
        end.close()


def test_a_proxy_forwards_bytes_in_both_directions(line):
    near, proxy, far = line
    near.sendall(b"up")
    assert far.recv(10) == b"up"
    far.sendall(b"down")
    assert near.recv(10) == b"down"


def test_a_paused_proxy_holds_bytes_until_it_resumes(line):
    near, proxy, far = line
    proxy.hush()
    near.sendall(b"later")
    far.settimeout(0.2)
    with pytest.raises(TimeoutError):
        far.recv(10)
    far.settimeout(10)
    proxy.resume()
    assert far.recv(10) == b"later"


def test_a_proxy_closes_both_ends_on_reset_and_accepts_connections_after_resume(line):
    near, proxy, far = line
    near.sendall(b"x")
    assert far.recv(10) == b"x"  # The connection is open.
    proxy.reset()
    for end in (near, far):
        with contextlib.suppress(ConnectionResetError):
            assert end.recv(10) == b""
    with (
        contextlib.suppress(OSError),
        socket.create_connection(("127.0.0.1", proxy.port), timeout=10) as again,
    ):
        assert again.recv(10) == b"", "the proxy accepts no connection until it resumes"
    proxy.resume()
    with socket.create_connection(("127.0.0.1", proxy.port), timeout=10) as fresh:
        fresh.sendall(b"y")


def test_a_full_disk_accepts_no_bytes_or_alternately_a_part_of_a_block(tmp_path):
    try:
        disk = SmallDisk(tmp_path / "disk", 1 << 20)
    except subprocess.CalledProcessError:
        pytest.skip("only root may mount a disk")
    try:
        taken = []
        for _ in range(3):
            disk.fill()
            taken.append(bytes_taken(disk.folder / "block"))
            disk.free()
    finally:
        disk.close()
    assert taken == [0, PART, 0]


def bytes_taken(path):
    """Return how many bytes of a block the disk takes in one call."""
    with path.open("wb", buffering=0) as file:
        try:
            return file.write(bytes(1 << 16))
        except OSError:
            return 0
        finally:
            path.unlink()
