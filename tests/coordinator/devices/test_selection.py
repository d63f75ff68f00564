"""A run takes the devices that its settings select."""

from protofleet.coordinator.devices.selection import DeviceSelection
from protofleet.protocol.wire.messages import Hello


def test_a_run_takes_all_devices_or_those_with_a_selected_name_and_domain():
    hellos = [Hello("a", 5, 5, domain="north"), Hello("b", 5, 5, domain="south"), Hello("north", 5, 5)]

    def taken(**selection):
        chosen = DeviceSelection(**selection)
        assert all(chosen.takes(hello) == (chosen.problem_with(hello) is None) for hello in hellos)
        return [hello.device for hello in hellos if chosen.takes(hello)]

    assert taken() == ["a", "b", "north"]
    assert taken(names=("a", "b")) == ["a", "b"]
    assert taken(names=("a", "b"), without=("a",)) == ["b"]
    assert taken(domains=("north",)) == ["a", "north"], "a device without a domain is a domain of its own"
    assert DeviceSelection(without=("b",)).of({"a", "b"}) == {"a"}
    words = DeviceSelection(domains=("north",)).problem_with(hellos[1]).message
    assert "'south'" in words and "north" in words and "devices.domains" in words
