"""Tests that threads can wake a thread that waits at a selector, and that no wake-up is lost."""

import os
import selectors
import socket
import sys
import threading

from protofleet.protocol.transport.wake_ups import WakeUps


def test_many_wake_ups_send_one_byte_until_they_are_taken():
    wake_ups = WakeUps[int]()
    for _ in range(3):
        for i in range(500):
            wake_ups.add(i % 10)
        assert len(os.read(wake_ups.fileno(), 4096)) == 1
        assert wake_ups.take() == list(range(10))
    wake_ups.close()


class Interrupted(socket.socket):
    """A socket that lets another thread work directly before and directly after each read."""

    other = staticmethod(lambda: None)

    def recv(self, *sizes):
        self.other()
        try:
            return super().recv(*sizes)
        finally:
            self.other()


def test_a_name_added_during_the_read_is_taken_and_a_later_name_wakes_again(monkeypatch):
    pair = socket.socketpair
    monkeypatch.setattr(socket, "socketpair", lambda: tuple(Interrupted(fileno=s.detach()) for s in pair()))
    wake_ups, names = WakeUps[str](), iter("abc")
    wake_ups.add(next(names))
    Interrupted.other = staticmethod(lambda: wake_ups.add(next(names)))
    assert wake_ups.take() == ["a", "b", "c"]
    Interrupted.other = staticmethod(lambda: None)
    with selectors.DefaultSelector() as selector:
        selector.register(wake_ups, selectors.EVENT_READ)
        assert not selector.select(0)
        wake_ups.add("d")
        assert selector.select(0)
    wake_ups.close()


def test_no_wake_up_is_lost_between_threads():
    """A thread that waits for a lost byte would wait for ever. All added parties are taken, and no wait times out."""
    wake_ups, each, writers = WakeUps[str](), 3000, 4
    taken: list[str] = []

    def write(name):
        for i in range(each):
            wake_ups.add(f"{name} {i}")

    threads = [threading.Thread(target=write, args=(name,)) for name in range(writers)]
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)  # Threads can switch between any two steps.
    try:
        for thread in threads:
            thread.start()
        with selectors.DefaultSelector() as selector:
            selector.register(wake_ups, selectors.EVENT_READ)
            while len(taken) < each * writers:
                assert selector.select(10), (
                    f"{len(taken)} were taken, and nobody has said that there are more"
                )
                taken += wake_ups.take()
    finally:
        sys.setswitchinterval(before)
        for thread in threads:
            thread.join()
        wake_ups.close()
    assert sorted(taken) == sorted(f"{name} {i}" for name in range(writers) for i in range(each))
