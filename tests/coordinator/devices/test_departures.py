"""A bye or a will counts unless its device has sent a hello after it."""

from __future__ import annotations

from protofleet.coordinator.devices.departures import Departures
from protofleet.protocol.link.base import Received
from protofleet.protocol.wire.messages import Bye, Hello

HELLO, BYE = Hello("one", 3, 10), Bye("finished")


def said(message, boot, sequence):
    return Received("one", message, "run", 1, sequence=sequence, boot=boot)


def test_a_bye_with_a_lower_sequence_than_the_hello_is_stale_and_a_will_is_never_stale():
    departures = Departures()
    assert not departures.is_stale(said(BYE, 5, 1), newest=1)
    departures.hello_received(said(HELLO, 5, 8), newest=8)
    assert [departures.is_stale(said(BYE, 5, n), newest=9) for n in (0, 7, 9)] == [False, True, False]


def test_a_late_hello_does_not_replace_a_newer_hello():
    departures = Departures()
    departures.hello_received(said(HELLO, 5, 8), newest=8)
    departures.hello_received(said(HELLO, 5, 3), newest=8)
    assert departures.is_stale(said(BYE, 5, 7), newest=8)


def test_a_new_boot_and_new_keys_start_the_sequence_again():
    departures = Departures()
    departures.hello_received(said(HELLO, 5, 8), newest=8)
    assert not departures.is_stale(said(BYE, 6, 3), newest=3)
    assert not departures.is_stale(said(BYE, 5, 3), newest=3), "of other keys, under the same boot"
    departures.hello_received(said(HELLO, 5, 2), newest=2)
    assert not departures.is_stale(said(BYE, 5, 3), newest=3)
