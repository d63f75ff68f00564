"""Only connected devices whose newest hello had a free place get the offer of a new run."""

from __future__ import annotations

from protofleet.coordinator.devices.free_places import MOST_OFFERS, FreePlaces
from protofleet.protocol.link.base import Received
from protofleet.protocol.wire.forms import RUNS
from protofleet.protocol.wire.messages import Hello


def places_after(*hellos):
    places = FreePlaces()
    for number, hello in enumerate(hellos):
        places.hello_received(Received(hello.device, hello, "red", 1, sequence=number), hello)
    return places


def hello(device, capacity=1, can=(RUNS,)):
    return Hello(device, 3, 10, can=can, capacity=capacity)


def test_a_device_gets_one_offer_for_a_hello_with_a_free_place():
    places = places_after(hello("free"), hello("full"), hello("full", 0), hello("old", can=()), hello("gone"))
    places.left("gone")
    found = places.take(lambda one: True)
    assert [(received.sequence, received.run, one.device) for received, one in found] == [(0, "", "free")]
    assert not places.take(lambda one: True)


def test_an_offer_goes_to_a_limited_number_of_fitting_devices_and_the_others_keep_their_places():
    names = [f"device-{i}" for i in range(MOST_OFFERS + 3)]
    places = places_after(*map(hello, names))
    first = places.take(lambda one: one.device != names[0])
    assert [one.device for _, one in first] == names[1 : MOST_OFFERS + 1]
    assert [one.device for _, one in places.take(lambda one: True)] == [names[0], *names[MOST_OFFERS + 1 :]]
