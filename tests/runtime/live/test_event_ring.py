"""Tests that the ring keeps the newest events, and reports missing events to a reader that was away too long."""

import json
import tracemalloc

import pytest

from protofleet.runtime.live.event_ring import EventRing


class State:
    def __init__(self, count=0):
        self.count = count

    def table(self):
        return {"count": self.count}


def ring(events, most=10, began=1000.0):
    made = EventRing(State(), most, lambda: began)
    for i in range(events):
        made.publish("log", {"i": i}, State(i + 1))
    return made


def numbers_of(events):
    return [json.loads(event.encoded.split(b"data: ")[1])["i"] for event in events]


def test_a_reader_gets_all_events_after_its_last_event():
    made = ring(7)
    assert numbers_of(made.since(made.newest - 3)) == [4, 5, 6]
    assert made.since(made.newest) == []
    assert numbers_of(made.since(made.newest - 7)) == [*range(7)]


@pytest.mark.parametrize("events", [0, 7, 10, 25])
def test_a_reader_that_was_away_too_long_gets_none_in_place_of_events(events):
    made = ring(events)
    kept = min(events, 10)
    assert len(made.since(made.newest - kept)) == kept
    assert made.since(made.newest - kept - 1) is None


def test_an_event_number_of_another_process_is_not_accepted():
    earlier, made = ring(25, began=990.0), ring(7)
    assert made.since(earlier.newest) is None
    assert earlier.since(made.newest) is None
    assert made.since(-1) is None


def test_the_snapshot_belongs_to_the_newest_event_and_an_older_one_stays_unchanged():
    made = ring(3)
    before = made.state
    made.publish("log", {"i": 3}, State(4))
    assert before[1].table() == {"count": 3} and before[0] == made.newest - 1
    assert made.state[1].table() == {"count": 4}
    made.replace(State(9))
    assert made.state == (made.newest, made.state[1]) and made.state[1].count == 9


def test_an_event_has_the_form_of_a_server_sent_event():
    made = ring(1)
    (event,) = made.since(made.newest - 1)
    assert event.encoded == b'id: 1000001\nevent: log\ndata: {"i":0}\n\n'


def test_a_ring_calls_its_watcher_for_each_event_until_the_watcher_is_removed():
    made, calls = ring(0), []
    made.publish("log", {"i": 0}, State())
    assert not made.is_watched and calls == []
    made.call_when_added(lambda: calls.append(made.newest))
    made.publish("log", {"i": 1}, State())
    assert made.is_watched and calls == [made.newest]
    made.call_when_added(None)
    made.publish("log", {"i": 2}, State())
    assert calls == [made.newest - 1]


def test_unread_events_use_no_more_memory_than_a_full_ring():
    made = ring(0, most=1000)
    tracemalloc.start()
    try:
        for i in range(3000):
            made.publish("log", {"text": f"{i}" * 100}, State())
            if i == 999:
                full, _ = tracemalloc.get_traced_memory()
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert after < 1.5 * full
