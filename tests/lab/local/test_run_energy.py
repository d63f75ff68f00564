"""A run on a board with sensors reports its temperature, and joules that are its watts times its seconds."""

import json
import re
import time
from itertools import chain

import pytest

from tests.edge_client.host.boards_of_power import ina, zone
from tests.lab.local.test_run import furnished, lines, protofleet

pytestmark = pytest.mark.slow
WATTS = 6.0
DEVICES = 3
EACH = WATTS / DEVICES  # each device's share of the watts of their one board
CHANGES = ["name=drawing", "method.epochs=1000", f"devices.processes={DEVICES}"]
ANSWERED = re.compile(r"round (\d) train: the update is accepted: ([\d.]+) s")


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Return the run's folder and how many seconds the command took."""
    place = furnished(tmp_path_factory.mktemp("run"))
    board = zone(ina(place / "board", 0, {"VDD_IN": WATTS, "VDD_CPU": 4.0}), 0, 61.5)
    options = chain.from_iterable(("--set", change) for change in [*CHANGES, f"devices.board_root={board}"])
    begun = time.monotonic()
    done = protofleet("run", "small.toml", *options, cwd=place)
    seconds = time.monotonic() - begun
    assert done.returncode == 0, done.stderr + done.stdout
    return place / "runs" / "drawing", seconds


def energy(run):
    return [line["energy"] for line in lines(run[0].parent.parent, "drawing")]


def test_joules_of_training_are_the_watts_times_the_seconds_of_work(run):
    for name in ("device-1", "device-2", "device-3"):
        said = ANSWERED.findall((run[0] / "logs" / f"{name}.log").read_text())
        assert [number for number, _ in said] == ["1", "2"]
        for number, seconds in said:
            joules = energy(run)[int(number) - 1][name]["train"]
            # The difference is at most 3 %, and the twentieth of a second to which the log rounds.
            assert joules == pytest.approx(EACH * float(seconds), rel=0.03, abs=EACH * 0.06)
            assert float(seconds) > 0.5, "too short to tell"


def test_every_round_has_the_joules_of_every_device_and_their_sum_is_that_of_the_board(run):
    found = energy(run)
    assert len(found) == 3 and all(len(one) == DEVICES for one in found)
    total = sum(sum(phases.values()) for one in found for phases in one.values())
    rounds = sum(line["seconds"] for line in lines(run[0].parent.parent, "drawing"))
    assert WATTS * rounds * 0.97 < total < WATTS * run[1], "from its plan to its last answer, each its part"
    summary = json.loads((run[0] / "summary.json").read_text())
    assert sum(summary["energy"].values()) == pytest.approx(total, abs=1e-3)


def test_every_round_has_the_temperature_of_every_device(run):
    for line in lines(run[0].parent.parent, "drawing"):
        assert line["temperature"] == {f"device-{number}": 61.5 for number in range(1, DEVICES + 1)}


def test_the_report_shows_the_energy_and_the_log_names_the_sensor(run):
    text = (run[0] / "report.html").read_text()
    assert "Energy</h2>" in text and "No power sensor" not in text
    said = (run[0] / "logs" / "device-1.log").read_text()
    assert "energy is measured by hwmon0:VDD_IN, of which this device has a part in 3" in said
