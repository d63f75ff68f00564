"""Tests of one object in blocks: no block is sent or requested without need, and a cohort shares one copy."""

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protofleet.protocol.link.broadcast import (
    ALONE_BURST,
    INACTIVE_SECONDS,
    LINGER_SECONDS,
    LONGEST_LINGER_SECONDS,
    LONGEST_PASSING_ON_SECONDS,
    MAX_PENDING,
    PASSED_ON_PER_SECOND,
    UNASKED,
    Broadcast,
)
from protofleet.protocol.link.fetch import (
    LONGEST_GAP_SECONDS,
    LONGEST_RETRY_SECONDS,
    RETRY_SECONDS,
    SILENT_SECONDS,
    ObjectFetch,
    ResponseTime,
    indices,
    ranges,
)
from protofleet.protocol.link.rate_limit import REPEAT_BURST, REPEAT_RATE
from protofleet.protocol.storage.store import ObjectStore
from protofleet.protocol.wire.arrays import encode
from protofleet.protocol.wire.blocks import DEFAULT_BLOCK, length_of
from protofleet.protocol.wire.codec import MAX_ASKED, MAX_BLOCKS, MAX_RANGES
from protofleet.protocol.wire.messages import BlockRequest, Manifest
from protofleet.protocol.wire.reasons import Reason, Rejected
from tests.protocol.ends import weights
from tests.protocol.objects import ARRAYS, BLOCK, BODY, block
from tests.support.steps import steps_of

BLOCKS = 8
LARGE_BLOCK = 262_144
LARGE = weights(7 * LARGE_BLOCK // 4 + 1000)  # 8 blocks; the last one is shorter.


class Puller:
    """A fetch with the wants that it sent and the blocks that have arrived."""

    def __init__(self, store, manifest, body=BODY, response_time=None):
        self.wants: list[BlockRequest] = []
        self.body, self.response_time = body, response_time or ResponseTime()
        self.fetch = ObjectFetch(store.begin(manifest), self.wants.append, self.response_time)
        self.came: set[int] = set()

    def asked(self):
        return [indices(want.ranges, BLOCKS) for want in self.wants]

    def missing(self):
        return {i for some in self.asked() for i in some} - self.came

    def comes(self, index, now=0.0):
        self.came.add(index)
        return self.fetch.store(index, block(self.fetch.partial.manifest, index, self.body), now)


@pytest.fixture
def puller(store, manifest):
    return Puller(store, manifest)


@pytest.mark.parametrize("window", [1, 2, 3, 5, 64])
@pytest.mark.parametrize("newest_first", [False, True])
def test_no_more_blocks_than_the_window_are_in_flight(puller, window, newest_first):
    puller.fetch.fill(window, 0.0)
    while not puller.fetch.partial.complete:
        assert 0 < len(puller.missing()) <= window
        assert puller.comes((max if newest_first else min)(puller.missing()))
        puller.fetch.fill(window, 0.0)
    asked = Counter(i for some in puller.asked() for i in some)
    assert asked == dict.fromkeys(range(BLOCKS), 1), "without loss every block is asked for once"
    assert not any(want.again for want in puller.wants)


def test_the_received_bytes_are_counted_for_blocks_in_any_order(puller):
    manifest, came = puller.fetch.manifest, 0
    assert manifest.size % manifest.block, "so the last block is shorter"
    for index in (0, BLOCKS - 1, *range(1, BLOCKS - 1)):
        puller.comes(index)
        came += length_of(manifest, index)
        assert puller.fetch.partial.bytes_here == came


def test_each_later_want_requests_half_a_window(puller):
    puller.fetch.fill(4, 0.0)
    for index in range(BLOCKS):
        puller.comes(index)
        puller.fetch.fill(4, 0.0)
    assert puller.asked() == [[0, 1, 2, 3], [4, 5], [6, 7]]


def test_blocks_from_an_earlier_process_are_not_requested_again(store, manifest):
    first = Puller(store, manifest)
    for index in (0, 1, 5):
        first.comes(index)
    second = Puller(store, manifest)
    second.fetch.fill(64, 0.0)
    assert [want.ranges for want in second.wants] == [((2, 5), (6, 8))]


def test_missing_blocks_are_requested_again_after_longer_and_longer_waits(puller):
    puller.fetch.fill(4, 10.0)
    puller.comes(1, 10.2)
    assert puller.fetch.wake_at == 10.2 + RETRY_SECONDS
    puller.fetch.wake(11.19, 4)
    assert len(puller.wants) == 1, "not before its time"
    waits = []
    for _ in range(8):
        now = puller.fetch.wake_at
        puller.fetch.wake(now, 4)
        assert puller.wants[-1] == BlockRequest(puller.fetch.object, ((0, 1), (2, 5)), again=True)
        waits.append(puller.fetch.wake_at - now)
    assert waits == pytest.approx([2, 4, 8, 16] + [LONGEST_RETRY_SECONDS] * 4)
    now += 1
    for index, longest_pause in ((0, 8.0), (2, 4.0), (3, 2.0), (4, 1.0)):
        puller.comes(index, now)
        assert puller.fetch.wake_at == now + longest_pause, "it comes without a gap, so this was no slow line"


def fetch_over_a_line(puller, seconds):
    """Return how many blocks are requested twice on a line where each block, also a repeated one, takes this long.

    Blocks arrive in the order of the requests.
    """
    puller.fetch.fill(64, 0.0)
    waiting, now = list(range(BLOCKS)), 0.0
    while not puller.fetch.partial.complete:
        arrives = now + seconds
        while (now := puller.fetch.wake_at) < arrives:
            puller.fetch.wake(now, 64)
            waiting += puller.asked()[-1]
        now = arrives
        puller.comes(waiting.pop(0), now)
    return sum(map(len, puller.asked())) - BLOCKS


@pytest.mark.parametrize("seconds", [0.02, 0.9, 2.1, 3.9])
def test_at_most_two_blocks_are_requested_twice_on_a_slow_line(puller, seconds):
    assert fetch_over_a_line(puller, seconds) <= 2


@pytest.mark.parametrize("kbits", [100, 250, 1000])
def test_large_blocks_are_requested_once_when_the_line_is_known(store, kbits):
    """The first fetch requests at most three blocks twice, and no later fetch requests a block twice."""
    body, seconds, response_time = b"".join(encode(LARGE)), LARGE_BLOCK * 8 / kbits / 1000, ResponseTime()
    repeated = []
    for place in ("first", "second", "third"):
        source = ObjectStore(store.folder / place, durable=False)
        manifest = source.put(LARGE, LARGE_BLOCK)
        own = ObjectStore(store.folder / place / "own", durable=False)
        repeated.append(fetch_over_a_line(Puller(own, manifest, body, response_time), seconds))
    assert repeated[0] <= 3 and repeated[1:] == [0, 0]


def test_a_device_on_a_slow_line_keeps_its_own_response_time_among_fast_devices():
    of_all = ResponseTime()
    slow, fast = ResponseTime(of_all), ResponseTime(of_all)
    for _ in range(20):
        slow.note(9.0, DEFAULT_BLOCK)
    for _ in range(100):
        fast.note(0.1, DEFAULT_BLOCK)
    assert slow.seconds(DEFAULT_BLOCK) == pytest.approx(9.0, abs=0.01)
    assert fast.seconds(DEFAULT_BLOCK) == pytest.approx(0.1, abs=0.01)
    assert slow.seconds(4 * DEFAULT_BLOCK) == 4 * slow.seconds(100) == 4 * slow.seconds(DEFAULT_BLOCK)
    for _ in range(20):
        slow.note(100.0, LARGE_BLOCK)
    assert fast.seconds(LARGE_BLOCK) == pytest.approx(LONGEST_GAP_SECONDS, abs=0.01), (
        "a slow device hardly delays requests to others"
    )


def test_only_the_first_block_is_requested_again_until_a_block_has_arrived(puller):
    puller.fetch.fill(4, 0.0)
    puller.fetch.wake(1.0, 4)
    assert puller.wants[-1] == BlockRequest(puller.fetch.object, ((0, 1),), again=True)
    assert puller.fetch.in_flight(1.0) == 4, "the others may still come"
    puller.comes(0, 1.5)
    puller.fetch.wake(puller.fetch.wake_at, 4)
    assert puller.wants[-1] == BlockRequest(puller.fetch.object, ((1, 5),), again=True)


def test_a_slow_response_to_other_transfers_delays_the_repeated_request(puller):
    for _ in range(20):
        puller.response_time.note(2.0, BLOCK)
    puller.fetch.fill(4, 0.0)
    puller.fetch.wake(3.9, 4)
    assert len(puller.wants) == 1 and puller.fetch.wake_at == pytest.approx(4.0, abs=0.01)
    puller.fetch.wake(4.0, 4)
    assert puller.wants[-1].again
    puller.comes(0, 3.0)
    puller.comes(1, 3.0)
    assert puller.response_time.seconds(BLOCK) == pytest.approx(2.5, abs=0.01), (
        "the second came at once, and tells nothing"
    )


def test_the_response_time_of_other_transfers_delays_a_small_block_by_at_most_eight_seconds(puller):
    puller.response_time.note(60.0, BLOCK)
    puller.fetch.fill(4, 0.0)
    assert puller.fetch.wake_at == 2 * LONGEST_GAP_SECONDS == 8.0


def test_a_duplicate_block_does_not_postpone_the_next_request(puller):
    puller.fetch.fill(4, 0.0)
    assert puller.comes(0, 0.5)
    assert not puller.comes(0, 0.9)
    assert puller.fetch.wake_at == 0.5 + RETRY_SECONDS


def test_a_silent_sender_loses_its_credit(puller):
    puller.fetch.fill(4, 0.0)
    waited = 0.0
    while puller.fetch.in_flight(waited):
        assert puller.fetch.in_flight(waited) == 4
        waited = puller.fetch.wake_at
        puller.fetch.wake(waited, 4)
    assert waited <= SILENT_SECONDS
    puller.comes(0, waited)
    assert puller.fetch.in_flight(waited) == 3


def test_a_block_that_never_arrives_does_not_count_as_in_flight_for_ever(puller):
    puller.fetch.fill(4, 0.0)
    for second in (1.0, 2.0, 3.0):
        puller.comes(int(second), second)
        puller.fetch.wake(puller.fetch.wake_at, 4)
        assert puller.wants[-1].again and puller.fetch.in_flight(second) >= 1
    assert puller.fetch.asked[0] == 0.0, "asked for again is not asked for first"
    puller.fetch.asked = {0: 0.0}
    assert puller.fetch.in_flight(SILENT_SECONDS - 0.1) == 1 and puller.fetch.in_flight(SILENT_SECONDS) == 0


@given(st.data())
def test_an_object_arrives_within_the_window_despite_any_losses(tmp_path_factory, data):
    folder = tmp_path_factory.mktemp("x")
    manifest = ObjectStore(folder, False).put(ARRAYS, BLOCK)
    puller, now = Puller(ObjectStore(folder, False), manifest), 0.0
    window = data.draw(st.integers(1, 9))
    for _ in range(100):
        puller.fetch.fill(window, now)
        assert len(puller.fetch.asked) <= window
        coming = sorted(puller.fetch.asked)
        for index in data.draw(st.lists(st.sampled_from(coming), max_size=3)) if coming else []:
            puller.comes(index, now)
        if puller.fetch.partial.complete:
            return
        now = puller.fetch.wake_at
        puller.fetch.wake(now, window)
        if now > 200:  # There were enough losses; from now on each requested block arrives.
            for index in sorted(puller.fetch.asked):
                puller.comes(index, now)
    raise AssertionError("it never came")


@given(st.sets(st.integers(0, 500)))
def test_ranges_name_the_first_blocks_in_order_up_to_the_limit_of_a_message(wanted):
    found = ranges(sorted(wanted))
    assert len(found) <= MAX_RANGES
    named = indices(found, MAX_BLOCKS)
    assert named == sorted(wanted)[: len(named)]
    assert len(found) == MAX_RANGES or len(named) == len(wanted)
    assert all(a[1] < b[0] for a, b in zip(found, found[1:]))


def test_requests_for_blocks_beyond_the_end_of_an_object_are_ignored():
    assert indices(((6, 4096),), BLOCKS) == [6, 7]


# The sending end: one object for a cohort.

OBJECT = Manifest(b"o" * 32, 80, 10, (b"h" * 16,) * BLOCKS, (("weights", 80),))
ALL = ((0, BLOCKS),)


class Server:
    def __init__(self, *cohort, holders=()):
        self.sent: list[tuple[str | None, int, bool]] = []
        self.broadcast = Broadcast(OBJECT, lambda *what: self.sent.append(what))
        self.broadcast.expect(list(cohort), set(holders))

    def asks(self, device, now, ranges=ALL, again=False):
        self.broadcast.requested(device, BlockRequest(OBJECT.object, ranges, again), now)
        return self.news()

    def wakes(self, now):
        self.broadcast.wake(now)
        return self.news()

    def news(self):
        news, self.sent[:] = list(self.sent), []
        return news


TO_ALL = [(None, i, True) for i in range(BLOCKS)]


def test_a_cohort_gets_one_shared_copy_when_its_last_device_has_requested_it():
    server = Server("a", "b", "c")
    assert server.asks("a", 0.0) == server.asks("b", 0.1) == []
    assert server.asks("c", 0.2) == TO_ALL
    assert server.broadcast.wake_at == float("inf")


def test_a_cohort_waits_only_the_linger_time_for_a_device_that_requests_nothing():
    server = Server("a", "b")
    assert server.asks("a", 1.0, ((0, 4),)) == []
    assert server.broadcast.wake_at == 1.0 + LINGER_SECONDS
    assert server.wakes(1.0 + LINGER_SECONDS / 2) == []
    assert server.wakes(1.0 + LINGER_SECONDS) == TO_ALL[:4]
    assert server.asks("a", 2.0, ((4, 8),)) == TO_ALL[4:], "b is waited for no more"


def test_a_block_waits_for_a_slower_device_unless_that_device_is_inactive():
    server = Server("a", "b")
    server.asks("a", 0.0, ((0, 4),))
    assert server.asks("b", 0.1, ((0, 4),)) == TO_ALL[:4]
    assert server.asks("a", 0.2, ((4, 8),)) == []
    assert server.asks("b", 0.3, ((4, 6),)) == TO_ALL[4:6]
    assert server.wakes(0.2 + LINGER_SECONDS) == TO_ALL[6:]
    server = Server("a", "b")
    server.asks("b", 0.0, ((0, 4),))
    assert server.asks("a", 0.1, ((0, 4),)) == TO_ALL[:4]
    assert server.asks("a", 0.1 + INACTIVE_SECONDS, ((4, 8),)) == TO_ALL[4:]


def test_late_devices_share_one_more_copy_of_the_blocks_that_were_sent():
    server = Server("a")
    assert server.asks("a", 0.0, ((0, 4),)) == TO_ALL[:4]
    server.broadcast.expect(["late", "later"], {"late", "later"})
    assert server.asks("late", 5.0, ((0, 6),)) == TO_ALL[4:6]
    assert server.asks("later", 5.1, ((0, 4),)) == []
    assert server.wakes(5.1 + LINGER_SECONDS) == [(None, i, False) for i in range(4)]
    assert server.asks("a", 5.4, ((4, 6),)) == [], "it came by when it was published for all"


def test_a_single_late_device_gets_its_own_copy():
    """The other devices have the block, and a second copy would delay their next messages on a slow line."""
    server = Server("a")
    assert server.asks("a", 0.0, ((0, 4),)) == TO_ALL[:4]
    server.broadcast.expect(["late", "later"], {"late", "later"})
    server.asks("late", 5.0, ((0, 4),))
    assert server.wakes(5.3) == [("late", i, False) for i in range(4)]
    server.asks("later", 6.0, ((0, 4),))
    assert server.wakes(6.3) == [("later", i, False) for i in range(4)]


def test_a_lost_block_is_sent_again_only_to_the_device_that_lost_it():
    server = Server("a", "b")
    server.asks("a", 0.0)
    assert server.asks("b", 0.0) == TO_ALL
    assert server.asks("b", 1.0, ((2, 4),), again=True) == [("b", 2, False), ("b", 3, False)]


def test_a_restarted_device_that_requests_blocks_again_gets_its_own_copy():
    """A device that was killed and started again does not know which blocks it has requested."""
    server = Server("a", "b")
    assert server.asks("a", 0.0, ((0, 4),)) == []
    assert server.asks("a", 0.1, ((0, 4),)) == [], "it goes out soon"
    assert server.asks("b", 0.2, ((0, 4),)) == TO_ALL[:4]
    assert server.asks("a", 1.0, ((0, 4),)) == [("a", i, False) for i in range(4)]
    asked = sum(len(server.asks("a", 1.0, ((0, 4),))) for _ in range(1000))
    assert asked + 4 == REPEAT_BURST


def test_a_block_waits_for_further_requests_only_up_to_the_longest_linger_time():
    names = [f"device-{i}" for i in range(10)]
    server = Server(*names)
    for device, at in zip(names[:4], (0.0, 0.2, 0.4, 0.6), strict=True):
        assert server.asks(device, at) == []
    assert server.wakes(0.6 + LINGER_SECONDS) == TO_ALL
    server = Server(*names)
    for device, at in zip(names[:5], (0.0, 0.2, 0.4, 0.6, 0.8), strict=True):
        assert server.asks(device, at) == []
    assert server.broadcast.wake_at == LONGEST_LINGER_SECONDS < 0.8 + LINGER_SECONDS


def many_asked(number):
    """Return a server of blocks of 1 MiB and the names of `number` devices that have requested all of them."""
    names = [f"device-{i}" for i in range(number)]
    server = Server(*names)
    manifest = replace(OBJECT, size=BLOCKS << 20, block=1 << 20)
    server.broadcast = Broadcast(manifest, lambda *what: server.sent.append(what))
    server.broadcast.expect(names, set())
    for device in names:
        server.asks(device, 0.0)
    return server, names


def test_a_repeated_request_gets_no_copy_while_the_broker_still_sends_the_block():
    server, names = many_asked(8)
    seconds = 8 * (BLOCKS << 20) / PASSED_ON_PER_SECOND
    assert server.asks(names[0], 0.9 * seconds, ((0, 1),), again=True) == []
    assert server.asks(names[0], 0.9 * seconds, ((0, 1),)) == [(names[0], 0, False)], "it was started anew"
    assert server.asks(names[0], 1.1 * seconds, ((0, 1),), again=True) == [(names[0], 0, False)]
    server, names = many_asked(300)
    assert server.asks(names[0], LONGEST_PASSING_ON_SECONDS, ((0, 1),), again=True)


def test_a_repeated_request_for_a_waiting_block_gets_the_copy_of_the_cohort():
    server = Server("a", "b")
    assert server.asks("a", 0.0) == server.asks("a", 0.1, again=True) == []
    assert server.asks("b", 0.2) == TO_ALL


def test_a_few_of_many_devices_get_their_own_copy_and_the_others_share_one():
    server, names = many_asked(300)
    alone = [sent for device in names for sent in server.asks(device, 20.0, ((0, 1),), again=True)]
    assert alone == [(device, 0, False) for device in names[: int(ALONE_BURST)]]
    assert server.wakes(20.0 + LINGER_SECONDS) == [(None, 0, False)]


def test_a_device_that_got_a_block_without_a_want_gets_its_own_copy_on_request():
    whole = Manifest(b"o" * 32, 1 << 20, 1 << 20, (b"h" * 16,), ())
    names = [f"device-{i}" for i in range(300)]
    server = Server()
    server.broadcast = Broadcast(whole, lambda *what: server.sent.append(what))
    assert server.broadcast.follow(names, 0.0) and server.news() == [(UNASKED, 0, True)]
    assert server.asks(names[0], 1.0, ((0, 1),), again=True) == [], "the broker is still at it"
    alone = [sent for device in names for sent in server.asks(device, 20.0, ((0, 1),), again=True)]
    assert alone == [(device, 0, False) for device in names[: int(ALONE_BURST)]]
    assert server.wakes(20.0 + LINGER_SECONDS) == []
    assert server.asks(names[-1], 21.0, ((0, 1),), again=True) == [(names[-1], 0, False)]


def test_a_device_outside_the_cohort_gets_no_block():
    server = Server("a")
    with pytest.raises(Rejected) as fault:
        server.asks("stranger", 0.0)
    assert fault.value.reason is Reason.NOT_INVITED and server.asks("a", 0.1) == TO_ALL


def test_repeated_requests_are_limited_by_burst_and_rate():
    server = Server("a")
    server.asks("a", 0.0)
    at_once = sum(len(server.asks("a", 1.0, again=True)) for _ in range(1000))
    assert at_once == REPEAT_BURST
    later = sum(len(server.asks("a", 1.0 + i / 10, again=True)) for i in range(1, 101))
    assert later == pytest.approx(10 * REPEAT_RATE, abs=1)


def test_the_number_of_blocks_that_wait_for_a_cohort_is_limited():
    many = Manifest(b"o" * 32, 4096, 1, (b"h" * 16,) * 4096, (("weights", 4096),))
    server = Server("a", "b")
    server.broadcast = Broadcast(many, lambda *what: server.sent.append(what))
    server.broadcast.expect(["a", "b"], set())
    for start in range(0, 4096, MAX_ASKED):
        server.asks("a", 0.0, ((start, start + MAX_ASKED),))
    assert len(server.wakes(LINGER_SECONDS)) == MAX_PENDING
    assert server.asks("a", 1.0, ((4000, 4001),)), "what was passed over can be asked for again"


def test_the_cost_of_a_request_does_not_grow_with_the_size_of_the_cohort():
    def steps_of_one(number):
        names = [f"device-{i:03}" for i in range(number)]
        server = Server(*names)
        for device in names[:-2]:
            assert server.asks(device, 0.1) == []
        steps = steps_of(lambda: server.asks(names[-2], 0.2))
        assert server.asks(names[-1], 0.2) == TO_ALL
        return steps

    assert steps_of_one(500) < 1.2 * steps_of_one(50)


def test_a_broadcast_does_not_wait_for_a_device_that_holds_the_object():
    server = Server("a", "b", holders=["b"])
    assert server.asks("a", 0.0) == TO_ALL


def test_a_broadcast_waits_for_a_device_that_joins_the_cohort():
    server = Server("a")
    server.broadcast.expect(["a", "b"], set())
    assert server.asks("a", 0.0) == []
    assert server.asks("b", 0.1) == TO_ALL
    server.broadcast.expect(["a", "b"], set())
    assert server.asks("a", 0.2, ((0, 1),)) == [("a", 0, False)], "and nothing goes out to all twice"
