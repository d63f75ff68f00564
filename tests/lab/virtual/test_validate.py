"""Tests of `--validate`: what is compared with a real run, and which runs cannot be compared."""

import json
import shutil

import pytest

from protofleet.cli.main import main
from protofleet.coordinator.observe.rounds_file import read_rounds, sealed_line
from protofleet.lab.virtual.validate import FILE, Compared, validate
from protofleet.protocol.settings.reader import SettingsError
from tests.lab.virtual.small import PROFILES, profiles
from tests.lab.virtual.test_simulate import simulated

MEASURED = PROFILES.replace("step_seconds = 0.1", 'from = "metrics"')


def as_real(folder):
    """Change a virtual run into one that seems to be real, whose rounds took twice as long."""
    lines = [json.loads(line) for line in (folder / "rounds.jsonl").read_text().splitlines()]
    for line in lines:
        del line["seal"]
        line |= {"virtual": {}, "seconds": 2 * line["seconds"]}
    for name in ("rounds.jsonl", "rounds.copy.jsonl"):
        (folder / name).write_text("".join(map(sealed_line, lines)))
    summary = json.loads((folder / "summary.json").read_text())
    del summary["seal"]
    summary |= {"virtual": {}, "profiles": ""}
    (folder / "summary.json").write_text(json.dumps(summary))


@pytest.fixture(scope="module")
def real_run(tmp_path_factory):
    return simulated(tmp_path_factory.mktemp("real"))[0]


@pytest.fixture
def real(real_run, tmp_path):
    """Return the folder of a run that seems to be real."""
    profiles(tmp_path)
    folder = shutil.copytree(real_run, tmp_path / "real" / "small-virtual")
    as_real(folder)
    return folder


def test_validate_prints_and_writes_the_differences_from_the_real_run(real, tmp_path, capsys):
    seconds = [line["seconds"] for line in read_rounds(real / "rounds.jsonl")]
    command = ["simulate", "--validate", str(real), "--profiles", str(tmp_path / "boards.toml")]
    assert main([*command, "--runs", str(tmp_path / "virtual")]) == 0
    shown = capsys.readouterr().out
    assert "-50.0%" in shown and "The accuracy of all rounds is the same in both runs." in shown
    found = json.loads((tmp_path / "virtual" / "small-virtual-virtual" / FILE).read_text())["rows"]
    by_name = {row["what"]: row for row in found}
    assert by_name["seconds of the run"]["real"] == pytest.approx(sum(seconds))
    assert by_name["seconds of the run"]["off"] == pytest.approx(-0.5, abs=0.001)
    assert abs(by_name["wire bytes up"]["off"]) < 0.001  # The names of the two runs have another length.


def test_a_difference_is_relative_to_the_real_value():
    assert Compared("seconds", 2.0, 3.0).off == pytest.approx(0.5)


def test_measured_seconds_come_from_the_devices_of_the_real_run(real, tmp_path):
    for name, seconds in (("device-1", 3.0), ("device-2", 5.0)):
        answers = [
            {"phase": phase, "metrics": {"seconds.work": seconds / part}}
            for phase, part in (("train", 1), ("evaluate", 10))
        ]
        book = {"book": {"runs": [{"answers": answers}]}}
        (real / "devices" / name / "device.json").write_text(json.dumps(book))
    (tmp_path / "boards.toml").write_text(MEASURED)
    validate(real, tmp_path / "boards.toml", tmp_path / "virtual", say=lambda line: None)
    written = (tmp_path / "virtual" / "small-virtual-virtual" / "profiles.toml").read_text()
    assert "4.000000 s, 0.400000 s" in written


def test_a_run_without_measured_seconds_is_refused_with_the_key(real, tmp_path):
    (tmp_path / "boards.toml").write_text(MEASURED)
    with pytest.raises(SettingsError, match=r"boards\.pi\.from is .metrics.*no file of metrics"):
        validate(real, tmp_path / "boards.toml", tmp_path / "virtual")


def test_validate_refuses_a_virtual_run(real_run, tmp_path, capsys):
    profiles(tmp_path)
    assert main(["simulate", "--validate", str(real_run), "--profiles", str(tmp_path / "boards.toml")]) == 2
    assert "this run is virtual; name a real run" in capsys.readouterr().err


def test_validate_refuses_changed_settings_and_a_missing_run(tmp_path, capsys):
    profiles(tmp_path)
    command = ["simulate", "--validate", "runs/none", "--profiles", str(tmp_path / "boards.toml")]
    assert main([*command, "--set", "rounds=1"]) == 2
    assert "--set cannot be used" in capsys.readouterr().err
    assert main(command) != 0
    assert "does not exist" in capsys.readouterr().err
