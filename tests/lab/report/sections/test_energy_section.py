"""Reports and tables show the energy that devices used, accuracy against energy, and devices without a sensor."""

import json
import re
import xml.etree.ElementTree as ET

import pytest

from protofleet.cli.main import main
from protofleet.coordinator.observe.rounds_file import sealed_line
from protofleet.lab.report.energy_amounts import human_joules
from protofleet.lab.report.run_page import write_report
from tests.lab.report.test_compare import finished
from tests.lab.report.test_report import folder  # noqa: F401 - a fixture


def drawing(path, energy):
    """Write `energy` (device -> phase -> joules) into every round of a finished run, and return its folder."""
    lines = [json.loads(line) for line in (path / "rounds.jsonl").read_text().splitlines()]
    (path / "rounds.jsonl").write_text("".join(sealed_line({**line, "energy": energy}) for line in lines))
    summary = json.loads((path / "summary.json").read_text())
    (path / "summary.json").write_text(json.dumps({**summary, "devices": {"a": {}, "b": {}}}))
    return path


def section(path):
    text = write_report(path).read_text()
    _, found, rest = text.partition('<h2 id="energy">Energy</h2>')
    return rest.split("</section>")[0] if found else ""


def test_the_report_has_the_joules_of_each_device_and_names_devices_without_a_sensor(folder):  # noqa: F811
    found = section(drawing(folder, {"a": {"train": 1500.0, "send": 100.0}}))
    assert "8 kJ by 1 device: 7.5 kJ in training, 500 J in sending and waiting" in found
    assert "No power sensor on 1 of 2 devices (b)" in found
    cells = [
        re.findall("<td[^>]*>(.*?)</td>|<th scope=.row.>(.*?)</th>", row)
        for row in found.split("<caption>Joules of each device")[1].split("<tr")[2:]
    ]
    rows = [["".join(pair) for pair in row] for row in cells]
    assert rows == [["a", "7.5 kJ", "500 J", "8 kJ", "1.6 kJ"], ["b", "-", "-", "-", "-"]]
    picture = "<svg" + found.split("<svg")[1].split("</svg>")[0] + "</svg>"
    assert len([title for title in ET.fromstring(picture).iter() if title.tag.endswith("title")]) >= 10


def test_the_report_of_a_run_without_a_sensor_states_this_and_shows_no_zero(folder):  # noqa: F811
    found = section(drawing(folder, {}))
    assert "No power sensor on 2 of 2 devices" in found
    assert "<svg" not in found and "0 J" not in found


def test_the_report_of_a_run_of_an_earlier_version_has_no_energy_section(folder):  # noqa: F811
    assert section(folder) == ""


@pytest.mark.parametrize(
    ("joules", "text"),
    [
        (0.0, "0 J"),
        (0.25, "0.25 J"),
        (999.0, "999 J"),
        (999.9, "1 kJ"),
        (43_210, "43.2 kJ"),
        (3.6e6, "3.6 MJ"),
    ],
)
def test_joules_have_units_of_powers_of_ten(joules, text):
    assert human_joules(joules) == text


@pytest.fixture
def runs(tmp_path):
    average = [
        drawing(
            finished(tmp_path / f"avg-s{seed}", f"avg-s{seed}", [0.1, 0.4, 0.8], seed=seed),
            {"a": {"train": 100.0 + seed, "send": 10.0}, "b": {"train": 200.0, "send": 20.0}},
        )
        for seed in (1, 2)
    ]
    proto = drawing(
        finished(tmp_path / "proto", "proto", [0.5, 0.79, 0.7], method="fedproto", reports="personal"),
        {"a": {"train": 40.0, "send": 5.0}},
    )
    return [*average, proto, finished(tmp_path / "dark", "dark", [0.1, 0.2, 0.3], method="fedprox")]


def test_a_comparison_shows_accuracy_over_bytes_and_over_joules(runs, tmp_path, capsys):
    page = tmp_path / "page.html"
    assert main(["compare", *map(str, runs), "--html", str(page)]) == 0
    out = capsys.readouterr().out.split("Joules of a whole run\n")[1].splitlines()
    rows = {line.split()[0]: re.split(r"  +", line.strip()) for line in out[1:4]}
    assert rows["avg"][1:] == ["2 of 2", "904 J ± 2.12 J", "90 J", "994 J ± 2.12 J", "663 J ± 1.41 J"]
    assert rows["proto"][1:] == ["1 of 2", "120 J", "15 J", "135 J", "90 J"]
    assert rows["dark"][1:] == ["0 of 0", "-", "-", "-", "-"]
    over_bytes, over_joules = (
        page.read_text().split("over bytes that have crossed</h3>")[1].split("<h3>over joules")
    )
    assert "<svg" in over_bytes and "Without a power sensor, and not here: dark." in over_joules
    lines = re.findall(r"<polyline[^>]*><title>(.*?)</title>", over_joules.split("</section>")[0])
    assert list(dict.fromkeys(lines)) == ["avg", "proto"]


def test_a_comparison_of_runs_without_sensors_does_not_mention_joules(runs, tmp_path, capsys):
    page = tmp_path / "page.html"
    assert main(["compare", str(runs[-1]), "--html", str(page)]) == 0
    assert "oules" not in capsys.readouterr().out + page.read_text()
