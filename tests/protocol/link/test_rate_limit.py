"""Tests of rate limits and the receive queue: all input has bounded costs, and honest parties lose nothing."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protofleet.protocol.link.rate_limit import FRAME_BURST, FRAME_RATE, RateLimiter, TokenBucket
from protofleet.protocol.transport.base import Arrived, Connected
from protofleet.protocol.transport.receive_queue import (
    MAX_BYTES,
    MAX_TOPIC_BYTES,
    MAX_TOPIC_FRAMES,
    ReceiveQueue,
)
from protofleet.protocol.wire.reasons import Reason, Rejected


@given(st.lists(st.floats(0, 5), max_size=200))
def test_a_bucket_never_gives_more_tokens_than_its_burst_and_rate_allow(pauses):
    bucket, now, taken = TokenBucket(rate=2.0, burst=5.0), 0.0, 0
    for pause in pauses:
        now += pause
        taken += bucket.take(now)
        assert taken <= 5 + 2 * now + 1e-6


def test_an_empty_bucket_fills_again():
    bucket = TokenBucket(rate=2.0, burst=5.0)
    assert [bucket.take(10.0) for _ in range(6)] == [True] * 5 + [False]
    assert [bucket.take(11.0) for _ in range(3)] == [True, True, False]
    assert [bucket.take(100.0) for _ in range(6)] == [True] * 5 + [False]
    assert not bucket.take(50.0), "a clock that goes back fills nothing"


def passed(rate_limiter, device, frames, now=0.0):
    count = 0
    for _ in range(frames):
        try:
            rate_limiter.charge_frame(device, now)
            count += 1
        except Rejected as fault:
            assert fault.reason is Reason.FLOOD
    return count


def test_a_flood_by_one_device_does_not_use_the_limit_of_another_device():
    rate_limiter = RateLimiter({"a", "b"})
    assert passed(rate_limiter, "a", 1000) == FRAME_BURST
    assert passed(rate_limiter, "b", 10) == 10
    assert passed(rate_limiter, "a", 1000, now=10.0) == 10 * FRAME_RATE


def test_useful_frames_do_not_count_towards_the_rate_limit():
    rate_limiter = RateLimiter({"a"})
    for _ in range(1000):
        rate_limiter.charge_frame("a", 0.0)
        rate_limiter.frame_was_useful("a")
    assert passed(rate_limiter, "a", 1000) == FRAME_BURST


def test_all_unknown_names_share_one_bucket():
    rate_limiter = RateLimiter({"a"})
    assert sum(passed(rate_limiter, f"stranger-{i}", 1) for i in range(1000)) == FRAME_BURST
    assert passed(rate_limiter, "stranger-0", 1) == 0 and passed(rate_limiter, "a", 1) == 1


@pytest.mark.parametrize(
    ("size", "fits"), [(1, MAX_TOPIC_FRAMES), (1 << 20, MAX_TOPIC_BYTES // ((1 << 20) + 1025))]
)
def test_one_topic_never_fills_the_receive_queue(size, fits):
    lost = []
    inbox, frame = ReceiveQueue(lost.append), bytes(size)
    for _ in range(fits + 10):
        inbox.put(Arrived("a", frame))
    inbox.put(Arrived("b", b"x"))
    inbox.put(Connected(1, 1))
    assert inbox.qsize() == fits + 2
    topics = [item.topic for item in (inbox.get() for _ in range(fits + 1))]
    assert topics == ["a"] * fits + ["b"] and lost == [10]
    assert inbox.get() == Connected(1, 1)
    for _ in range(fits + 10):
        inbox.put(Arrived("a", frame))
    assert inbox.qsize() == fits, "all that was read has made room"


def test_all_topics_together_never_exceed_the_byte_limit_of_the_receive_queue():
    lost = []
    inbox, frame = ReceiveQueue(lost.append), bytes(1 << 20)
    for i in range(200):
        inbox.put(Arrived(f"t{i}", frame))
    kept = inbox.qsize()
    assert MAX_BYTES - (2 << 20) < kept * ((1 << 20) + 1026) <= MAX_BYTES
    while inbox.qsize():
        inbox.get()
    assert sum(lost) == 200 - kept
    inbox.put(Arrived("a", frame))
    assert inbox.qsize() == 1, "what was read makes room"
