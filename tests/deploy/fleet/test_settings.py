"""A fleet's file gives each device its settings."""

import pytest

from protofleet.deploy.fleet.settings import Fleet, device_settings
from protofleet.protocol.settings.reader import SettingsError, decode

METRICS = {"metrics_port": 9101}


def shipped(address, device=METRICS, own=None):
    fleet = decode(
        Fleet, {"root": "root", "device": device, "hosts": {"b": {"address": address, "device": own or {}}}}
    )
    return device_settings(fleet, "lab", "b")


@pytest.mark.parametrize("address", ["10.0.0.11", "fd00::11"])
def test_metrics_are_served_where_the_file_knows_the_device(address):
    assert shipped(address).metrics_host == address


def test_a_host_with_a_name_says_itself_where_it_is_scraped():
    """On the device the name may mean the loopback, as on Debian, or may be unknown."""
    with pytest.raises(
        SettingsError, match=r"the address of this host is a name, 'board-1'; set metrics_host to the address"
    ):
        shipped("board-1")
    assert shipped("board-1", own={"metrics_host": "10.0.0.11"}).metrics_host == "10.0.0.11"
    assert shipped("board-1", {**METRICS, "metrics_host": "0.0.0.0"}).metrics_host == "0.0.0.0"
    assert shipped("board-1", {}).metrics_host == "127.0.0.1", "there are no metrics to serve"


@pytest.mark.parametrize(
    ("first", "second", "refused"),
    [
        ({"address": "b.example"}, {"address": "B.example"}, True),
        ({"address": "10.0.0.1", "port": 22}, {"address": "10.0.0.1", "port": 22, "user": "root"}, True),
        ({"address": "10.0.0.1", "port": 22}, {"address": "10.0.0.1", "port": 2222}, False),
        ({"address": "10.0.0.1"}, {"address": "10.0.0.2"}, False),
    ],
)
def test_two_devices_on_one_host_are_refused_by_both_names(first, second, refused):
    table = {"root": "root", "hosts": {"a_b": first, "a.b": second}}
    if not refused:
        assert {*decode(Fleet, table).hosts} == {"a_b", "a.b"}
        return
    with pytest.raises(
        SettingsError, match=r"hosts a_b and a\.b have the same address, .*: leave out one of the two hosts"
    ):
        decode(Fleet, table)
