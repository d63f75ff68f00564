"""An update has the temperature of the board's hottest zone, if the board has a zone that can be read."""

import pytest

from protofleet.coordinator.devices.limits import CELSIUS, HOTTEST
from protofleet.edge_client.host import answer_temperature as sent
from protofleet.edge_client.host.answer_temperature import answer_temperature
from protofleet.edge_client.host.sensors import Sensors
from tests.edge_client.host.boards_of_power import zone


@pytest.mark.parametrize(
    ("zones", "metrics"),
    [
        ([41.5, 63.25, 20.0], {"celsius.hottest": 63.25}),
        ([-40.0], {"celsius.hottest": -40.0}),
        ([2147483.647, 55.0, -274.0], {"celsius.hottest": 55.0}),
        ([-274.0], {}),
        ([], {}),
    ],
    ids=["the hottest of three", "below zero", "two are switched off", "all are switched off", "no zone"],
)
def test_the_metric_is_the_temperature_of_the_hottest_valid_zone(tmp_path, zones, metrics):
    for number, celsius in enumerate(zones):
        zone(tmp_path, number, celsius)
    assert answer_temperature(Sensors(tmp_path)) == metrics


def test_a_zone_that_cannot_be_read_is_left_out(tmp_path):
    zone(tmp_path, 0, 70.0)
    zone(tmp_path, 1, 40.0)
    (tmp_path / "sys/class/thermal/thermal_zone0/temp").write_text("\n")
    assert answer_temperature(Sensors(tmp_path)) == {"celsius.hottest": 40.0}


def test_a_device_sends_only_temperatures_that_the_coordinator_accepts():
    assert sent.HOTTEST == HOTTEST and (sent.COLDEST_CELSIUS, sent.HOTTEST_CELSIUS) == CELSIUS
