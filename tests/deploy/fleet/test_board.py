"""The metrics of a board come from the files of a Jetson, or from a machine that has none of them."""

from protofleet.edge_client.host.sensors import Sensors
from tests.deploy.fleet.boards import jetson_files


def told(board):
    """Return each metric's name without its prefix -> {label or "": value}."""
    return {
        family.name.removeprefix("protofleet_device_"): {
            next(iter(sample.labels.values()), ""): sample.value for sample in family.samples
        }
        for family in board.collect()
    }


def test_the_metrics_of_a_jetson_have_all_its_sensors(tmp_path):
    found = told(Sensors(jetson_files(tmp_path / "board")))
    assert found["temperature_celsius"] == {
        "thermal_zone0:cpu-thermal": 48.5,
        "thermal_zone1:gpu-thermal": 51.25,
    }
    assert found["cooling_ratio"] == {
        "cooling_device0:pwm-fan": 0.5,
        "cooling_device1:thermal-cpufreq-0": 0.0,
    }
    assert found["throttled"] == {"": 0.0}, "a turning fan does not throttle the board"
    assert found["power_watts"] == {"hwmon3:VDD_IN": 6.0}
    assert (found["power_mode"], found["mains"], found["gpu_load_ratio"]) == ({"": 2}, {"": 1}, {"": 0.75})
    assert found["memory_available_bytes"] == {"": 5000 * 1024} and found["swap_used_bytes"] == {
        "": 300 * 1024
    }
    assert found["disk_written_bytes"] == {"": 4096}
    assert Sensors(tmp_path / "board").hottest() == 51.25


def test_a_board_that_is_throttled_by_heat_reports_it(tmp_path):
    root = jetson_files(tmp_path)
    (root / "sys/class/thermal/cooling_device1/cur_state").write_text("3\n")
    assert told(Sensors(root))["throttled"] == {"": 1.0}


def test_power_sensors_are_read_too(tmp_path):
    chip = tmp_path / "sys/class/hwmon/hwmon0"
    chip.mkdir(parents=True)
    (chip / "power1_input").write_text("2500000\n")
    assert dict(Sensors(tmp_path).rails()) == {"hwmon0:power1": 2.5}


def test_missing_and_unreadable_sensors_of_a_board_are_left_out(tmp_path):
    found = told(Sensors(tmp_path))
    assert found == {
        "temperature_celsius": {},
        "cooling_ratio": {},
        "throttled": {"": 0.0},
        "power_watts": {},
    }
    zone = tmp_path / "sys/class/thermal/thermal_zone0"
    zone.mkdir(parents=True)
    (zone / "type").write_text("cpu\n")
    (zone / "temp").write_text("nonsense\n")
    assert told(Sensors(tmp_path))["temperature_celsius"] == {} and Sensors(tmp_path).hottest() == float(
        "-inf"
    )


def test_a_board_exports_at_most_64_temperatures(tmp_path):
    for i in range(200):
        zone = tmp_path / f"sys/class/thermal/thermal_zone{i}"
        zone.mkdir(parents=True)
        (zone / "type").write_text("z\n")
        (zone / "temp").write_text("1000\n")
    assert len(told(Sensors(tmp_path))["temperature_celsius"]) == 64


def test_the_sensors_of_this_machine_can_be_read():
    assert told(Sensors())["memory_available_bytes"][""] > 0
