"""What waits to be sent, and how long to wait before the next connection."""

import os
import selectors
import socket
import statistics
import sys
import threading
import time

from protofleet.protocol.transport.outbox import MAX_BYTES, MAX_ORDERS, RESERVED, Outbox, Publish, Subscribe
from protofleet.protocol.transport.reconnect import Backoff, ConnectionEnd

SMALL = Publish("t", b"", False, 10)


def test_a_full_outbox_refuses_instead_of_growing():
    outbox = Outbox()
    outbox.connected(window=1, max_packet=MAX_BYTES)
    half = Publish("t", b"", False, (MAX_BYTES - RESERVED) // 2 - SMALL.size)
    assert outbox.put(half) is outbox.put(half) is None
    assert "wait for the broker already" in outbox.put(half)
    assert outbox.put(SMALL) is None, "a receipt gets through when blocks fill the rest"
    assert outbox.take() is half and outbox.put(half) is None  # what has left makes room
    outbox.sent(1, "t")
    assert outbox.take() is None and outbox.acknowledged(1) == "t" and outbox.take() is half
    assert outbox.take() is SMALL
    outbox.connection_lost()
    assert outbox.put(Subscribe("t")) is None and outbox.take() is None
    outbox.close()


def test_a_very_long_outbox_refuses_too():
    outbox = Outbox()
    outbox.connected(window=1, max_packet=10)
    assert [outbox.put(SMALL) for _ in range(MAX_ORDERS)] == [None] * MAX_ORDERS
    assert "wait for the broker already" in outbox.put(SMALL)
    outbox.close()


def test_the_outbox_is_empty_only_when_all_is_executed_and_acknowledged():
    outbox = Outbox()
    outbox.connected(window=1, max_packet=10)
    assert outbox.wait_until_empty(0)
    outbox.put(SMALL)
    assert not outbox.wait_until_empty(0)
    outbox.take()
    assert not outbox.wait_until_empty(0)  # taken, but not yet on its way
    outbox.sent(1, "t")
    assert outbox.take() is None and not outbox.wait_until_empty(0)
    outbox.acknowledged(1)
    assert outbox.wait_until_empty(0)
    outbox.put(SMALL)
    outbox.connection_lost()
    assert outbox.wait_until_empty(0)  # there is nothing left to wait for
    outbox.close()


def test_pauses_grow_to_their_limit_and_are_drawn_anew_for_everyone():
    fleet = [Backoff(0.5, 30.0) for _ in range(200)]
    for n in range(10):
        longest = min(30.0, 0.5 * 2**n)
        pauses = [backoff.pause() for backoff in fleet]
        assert longest / 2 <= min(pauses) and max(pauses) <= longest
        assert statistics.pstdev(pauses) > longest / 20
    fleet[0].ended(ConnectionEnd("after an hour"), lasted=3600)
    assert fleet[0].pause() <= 0.5


def test_only_short_connections_that_end_in_a_row_without_a_disconnect_look_like_two_of_one_name():
    backoff = Backoff(0.5, 30.0)
    cut, said = ConnectionEnd("cut", without_disconnect=True), ConnectionEnd("said")
    for ending, lasted, flapping in (
        (cut, 1, False), (cut, 1, False), (said, 1, False), (cut, 1, False), (cut, 3600, False),
        (cut, 1, False), (cut, 1, True),
    ):  # fmt: skip
        backoff.ended(ending, lasted)
        assert backoff.flapping == flapping


def test_many_orders_wake_the_other_thread_once_until_it_has_heard():
    outbox = Outbox()
    outbox.connected(20, 1000)
    for _ in range(3):
        for i in range(500):
            outbox.put(Publish("t", b"", False, i % 10))
        assert len(os.read(outbox.fileno(), 4096)) == 1
        outbox.clear_wake()
    outbox.close()


class Interrupted(socket.socket):
    """Another thread has its turn right before and right after what is read."""

    other = staticmethod(lambda: None)

    def recv(self, *sizes):
        self.other()
        try:
            return super().recv(*sizes)
        finally:
            self.other()


def test_what_is_put_while_the_byte_is_read_is_taken_and_what_comes_then_wakes_again(monkeypatch):
    pair = socket.socketpair
    monkeypatch.setattr(socket, "socketpair", lambda: tuple(Interrupted(fileno=s.detach()) for s in pair()))
    outbox = Outbox()
    outbox.connected(20, 1000)
    outbox.put(SMALL)
    Interrupted.other = staticmethod(lambda: outbox.put(SMALL))
    outbox.clear_wake()
    Interrupted.other = staticmethod(lambda: None)
    assert [outbox.take() for _ in range(4)] == [SMALL, SMALL, SMALL, None]
    with selectors.DefaultSelector() as selector:
        selector.register(outbox, selectors.EVENT_READ)
        assert not selector.select(0)
        outbox.put(SMALL)
        assert selector.select(0)
    outbox.close()


def test_no_wake_up_is_lost_between_threads():
    """Whoever waits for a byte would wait for ever: all that was put is taken, and the wait never times out."""
    outbox, each, writers = Outbox(), 3000, 4
    outbox.connected(1 << 30, 1000)
    taken: list[str] = []

    def write(name):
        for i in range(each):
            while outbox.put(Publish(f"{name} {i}", b"", False, 1)) is not None:
                time.sleep(0)

    threads = [threading.Thread(target=write, args=(name,)) for name in range(writers)]
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)  # threads change places between any two steps
    try:
        for thread in threads:
            thread.start()
        with selectors.DefaultSelector() as selector:
            selector.register(outbox, selectors.EVENT_READ)
            while len(taken) < each * writers:
                assert selector.select(10), (
                    f"{len(taken)} were taken, and nobody has said that there are more"
                )
                outbox.clear_wake()
                while (order := outbox.take()) is not None:
                    taken.append(order.topic)
    finally:
        sys.setswitchinterval(before)
        for thread in threads:
            thread.join()
        outbox.close()
    assert sorted(taken) == sorted(f"{name} {i}" for name in range(writers) for i in range(each))
