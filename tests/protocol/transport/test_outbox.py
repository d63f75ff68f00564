"""Tests of the queue of packets to send, and of the wait before the next connection."""

import statistics

from protofleet.protocol.transport.outbox import MAX_BYTES, MAX_ORDERS, RESERVED, Outbox, Publish, Subscribe
from protofleet.protocol.transport.reconnect import Backoff, ConnectionEnd

SMALL = Publish("t", b"", False, 10)


def wake_no_thread() -> None:
    """Do nothing when the outbox has a packet to send."""


def test_a_full_outbox_refuses_further_frames():
    outbox = Outbox(wake_no_thread)
    outbox.connected(window=1, max_packet=MAX_BYTES)
    half = Publish("t", b"", False, (MAX_BYTES - RESERVED) // 2 - SMALL.size)
    assert outbox.put(half) is outbox.put(half) is None
    assert "wait for the broker already" in outbox.put(half)
    assert outbox.put(SMALL) is None, "a receipt gets through when blocks fill the rest"
    assert outbox.take() is half and outbox.put(half) is None  # A frame that has left makes space.
    outbox.sent(1, "t")
    assert outbox.take() is None and outbox.acknowledged(1) == "t" and outbox.take() is half
    assert outbox.take() is SMALL
    outbox.connection_lost()
    assert outbox.put(Subscribe("t")) is None and outbox.take() is None


def test_an_outbox_with_too_many_orders_refuses_further_frames():
    outbox = Outbox(wake_no_thread)
    outbox.connected(window=1, max_packet=10)
    assert [outbox.put(SMALL) for _ in range(MAX_ORDERS)] == [None] * MAX_ORDERS
    assert "wait for the broker already" in outbox.put(SMALL)


def test_the_outbox_is_empty_only_when_all_orders_are_executed_and_acknowledged():
    outbox = Outbox(wake_no_thread)
    outbox.connected(window=1, max_packet=10)
    assert outbox.wait_until_empty(0)
    outbox.put(SMALL)
    assert not outbox.wait_until_empty(0)
    outbox.take()
    assert not outbox.wait_until_empty(0)  # The frame is taken but not yet sent.
    outbox.sent(1, "t")
    assert outbox.take() is None and not outbox.wait_until_empty(0)
    outbox.acknowledged(1)
    assert outbox.wait_until_empty(0)
    outbox.put(SMALL)
    outbox.connection_lost()
    assert outbox.wait_until_empty(0)  # There is nothing left to wait for.


def test_a_frame_at_qos_0_does_not_wait_for_acknowledgements():
    outbox = Outbox(wake_no_thread)
    outbox.connected(window=1, max_packet=10)
    block = Publish("t", b"", False, 10, qos=0)
    for order in (SMALL, block, block, SMALL):
        outbox.put(order)
    assert outbox.take() is SMALL
    outbox.sent(1, "t")
    assert outbox.take() is block and outbox.take() is block
    assert outbox.take() is None, "the window is full for what is acknowledged"
    outbox.acknowledged(1)
    assert outbox.take() is SMALL


def test_pauses_grow_to_their_limit_and_are_random_for_each_client():
    fleet = [Backoff(0.5, 30.0) for _ in range(200)]
    for n in range(10):
        longest = min(30.0, 0.5 * 2**n)
        pauses = [backoff.pause() for backoff in fleet]
        assert longest / 2 <= min(pauses) and max(pauses) <= longest
        assert statistics.pstdev(pauses) > longest / 20
    fleet[0].ended(ConnectionEnd("after an hour"), lasted=3600)
    assert fleet[0].pause() <= 0.5


def test_only_short_cut_connections_in_a_row_count_as_flapping():
    backoff = Backoff(0.5, 30.0)
    cut, said = ConnectionEnd("cut", without_disconnect=True), ConnectionEnd("said")
    for ending, lasted, flapping in (
        (cut, 1, False), (cut, 1, False), (said, 1, False), (cut, 1, False), (cut, 3600, False),
        (cut, 1, False), (cut, 1, True),
    ):  # fmt: skip
        backoff.ended(ending, lasted)
        assert backoff.flapping == flapping


def test_an_order_wakes_the_sending_thread_only_while_there_is_a_connection():
    woken: list[int] = []
    outbox = Outbox(lambda: woken.append(1))
    outbox.put(SMALL)
    assert not woken
    outbox.connected(window=1, max_packet=10)
    outbox.put(SMALL)
    assert woken
