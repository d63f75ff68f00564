"""`protofleet fleet --share` runs one group of devices, follows the broker, and reports failed devices."""

import json
import os
import signal
import subprocess

import pytest

from protofleet.cli.main import main
from protofleet.lab.local.processes import IMPORTED, IMPORTED_BY_DEVICES
from protofleet.lab.local.share import (
    BrokerPlace,
    DeviceShare,
    EndedDevices,
    failed_devices,
    read_broker_place,
    starter_of,
)
from protofleet.protocol.settings.reader import SettingsError
from protofleet.runtime.children import Interpreters
from protofleet.runtime.launcher import Launcher
from tests.lab.local.test_resume import alive, descendants, name_of, wait_until
from tests.lab.local.test_run import ROOT, command

WRONG = "strange = 1\n"
PLACE = BrokerPlace("127.0.0.1", 1, "first")


@pytest.fixture
def run(tmp_path):
    """Return the folder of a run whose devices have settings that no device accepts."""
    for name in ("d1", "d2", "d3"):
        folder = tmp_path / "run" / "devices" / name
        folder.mkdir(parents=True)
        (folder / "device.toml").write_text(WRONG)
    (tmp_path / "run" / "engine").mkdir()
    return tmp_path / "run"


def start(run, *more):
    words = command("fleet", run / "devices", "--share", "0/2", "--broker-file", run / "broker.json", *more)
    return subprocess.Popen(
        words, env={**os.environ, "PYTHONPATH": str(ROOT)}, stderr=subprocess.PIPE, text=True
    )


def device_of(fleet):
    """Return the process of the devices of a task, which has its own name; 0 if there is no such process."""
    return next((pid for pid in descendants(fleet.pid) if name_of(pid).startswith("devices-")), 0)


def test_devices_are_divided_in_turn_unless_a_file_divides_them(run):
    assert [DeviceShare(i, 2).devices(run / "devices") for i in (0, 1)] == [["d1", "d3"], ["d2"]]
    (run / "engine" / "groups.json").write_text('[["d2", "d3"], ["d1"]]')
    assert [DeviceShare(i, 2).devices(run / "devices") for i in (0, 1)] == [["d2", "d3"], ["d1"]]


@pytest.mark.parametrize(
    ("groups", "words"),
    [
        ('[["d1"], ["d2"], ["d3"]]', r"has 3 groups of devices; use --share 0/3"),
        ('[["d1", "d9"], ["d2"]]', r"names the device d9, but .* has no such device"),
        ('[["d1"', r"cannot be read .*--fresh"),
    ],
)
def test_groups_that_do_not_fit_the_devices_are_refused(run, groups, words):
    (run / "engine" / "groups.json").write_text(groups)
    with pytest.raises(SettingsError, match=words):
        DeviceShare(0, 2).devices(run / "devices")


def test_a_share_without_devices_is_refused(run):
    with pytest.raises(SettingsError, match="has only 3 devices; use at most 3 parts"):
        DeviceShare(4, 5).devices(run / "devices")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--share", "2/2"], "--share: it is '2/2', it must be I/N, such as 0/4"),
        (["--share", "all"], "--share: it is 'all', it must be I/N, such as 0/4"),
        (
            ["--share", "0/2", "--processes", "3"],
            "--processes is 3, but the devices of a share have one process",
        ),
        (
            ["--share", "0/2", "--broker", "h:1", "--broker-file", "f"],
            "both name the broker; leave out one of them",
        ),
        (["--broker-file", "f"], "--broker-file is only for a part of the devices; add --share 0/1"),
        (["--ended", "f"], "--ended is only for a part of the devices; add --share 0/1"),
    ],
)
def test_wrong_options_are_refused_in_one_line(run, capsys, options, words):
    assert main(["fleet", str(run / "devices"), *options]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert words in line


def test_a_file_of_an_earlier_start_is_ignored(tmp_path):
    path = tmp_path / "ended.json"
    EndedDevices("first", {"d1": "no data"}).write(path)
    assert failed_devices(path, "first") == {"d1": "no data"}
    assert failed_devices(path, "second") == {}
    path.write_text('{"d1": "signal: SIGTERM"}')  # as a run on one machine writes it
    assert failed_devices(path, "first") == {}
    path.write_text('{"start": "first"')
    assert failed_devices(path, "first") == {} == failed_devices(tmp_path / "none", "first")


@pytest.mark.parametrize("text", ["", "[]", '{"host": "h"}', '{"host": "h", "port": "p"}'])
def test_a_broker_file_that_cannot_be_read_is_ignored(tmp_path, text):
    path = tmp_path / "broker.json"
    assert read_broker_place(path) is None
    path.write_text(text)
    assert read_broker_place(path) is None
    PLACE.write(path)
    assert read_broker_place(path) == PLACE


@pytest.mark.slow
def test_the_command_without_a_broker_file_fails_if_its_devices_fail(run):
    words = command("fleet", run / "devices", "--share", "0/2")
    own = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(words, env=own, capture_output=True, text=True, timeout=120)
    assert done.returncode == 1
    last = done.stderr.splitlines()[-1]
    assert "ended with exit code 2 3 times in a row: " in last and "strange" in last


@pytest.mark.slow
def test_devices_whose_process_ends_three_times_have_failed_until_the_broker_moves(run):
    ended = run / "ended.json"
    fleet = start(run, "--ended", ended)
    assert not ended.exists() and device_of(fleet) == 0, "there is no broker yet"
    PLACE.write(run / "broker.json")
    seen = [fleet.stderr.readline() for _ in range(4)]
    assert seen[0] == "protofleet: the broker is at 127.0.0.1:1 now\n"
    assert "restart in 1.0 s" in seen[1] and "restart in 2.0 s" in seen[2]
    assert "ended with exit code 2 3 times in a row: " in seen[3] and "strange" in seen[3]
    assert failed_devices(ended, "first").keys() == {"d1", "d3"}
    BrokerPlace("127.0.0.1", 2, "second").write(run / "broker.json")
    assert "127.0.0.1:2 now" in fleet.stderr.readline()
    assert wait_until(lambda: json.loads(ended.read_text()) == {"start": "second", "ended": {}})
    assert "restart in 1.0 s" in fleet.stderr.readline(), "the failures are counted anew"
    fleet.send_signal(signal.SIGTERM)
    assert "signal SIGTERM" in fleet.communicate(timeout=60)[1] and fleet.returncode == 1


def test_a_broker_with_several_nodes_keeps_the_addresses_in_the_settings(tmp_path):
    BrokerPlace("", 0, "first").write(tmp_path / "broker.json")
    place = read_broker_place(tmp_path / "broker.json")
    assert place == BrokerPlace("", 0, "first") and place.changes == []
    assert str(place) == "the addresses in the settings of the devices" and str(PLACE) == "127.0.0.1:1"
    assert PLACE.changes == ["--set", "broker.host=127.0.0.1", "--set", "broker.port=1"]


@pytest.mark.parametrize("more", [(), ("--share", "0/1")])
def test_one_broker_address_is_refused_for_devices_with_several_broker_hosts(tmp_path, capsys, more):
    (tmp_path / "d1").mkdir()
    (tmp_path / "d1" / "device.toml").write_text('[broker]\nhosts = ["a:1", "b:1"]\n')
    assert main(["fleet", str(tmp_path), "--broker", "c:1", *more]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "d1/device.toml names the nodes of a cluster in broker.hosts; leave out --broker" in line


def test_devices_are_forked_unless_the_run_sets_start_to_spawn(run):
    with Launcher(()) as launcher:
        assert starter_of(run, launcher) is launcher and isinstance(starter_of(run, None), Interpreters)
        (run / "experiment.toml").write_text('[devices]\nstart = "spawn"\n')
        assert isinstance(starter_of(run, launcher), Interpreters)


def test_a_task_imports_the_modules_of_devices_but_not_of_the_coordinator():
    assert "protofleet.edge_client.group.main" in IMPORTED_BY_DEVICES
    left_out = set(IMPORTED) - set(IMPORTED_BY_DEVICES)
    assert left_out == {"protofleet.coordinator.config", "protofleet.coordinator.main"}


def with_settings_from_a_pipe(run):
    """Let the devices wait for their settings, which no process writes."""
    for name in ("d1", "d2", "d3"):
        path = run / "devices" / name / "device.toml"
        path.unlink()
        path.symlink_to(run / "pipe")
    os.mkfifo(run / "pipe")
    PLACE.write(run / "broker.json")


@pytest.mark.slow
def test_a_later_task_of_a_share_ends_the_earlier_task_before_it_starts_devices(run):
    with_settings_from_a_pipe(run)
    earlier = start(run)
    assert wait_until(lambda: device_of(earlier), 60)
    first = device_of(earlier)
    later = start(run)
    assert wait_until(lambda: device_of(later) or not alive(first), 60)
    assert not alive(first) and not device_of(later), "two processes with the same devices never run at once"
    assert "another task runs the devices of --share 0/2 now" in earlier.communicate(timeout=60)[1]
    assert earlier.returncode == 1
    assert wait_until(lambda: device_of(later), 60)
    later.terminate()
    later.communicate(timeout=60)
    assert not (run / "logs" / "devices-0.owner").exists()


@pytest.mark.slow
def test_a_device_process_restarts_after_a_kill_and_after_a_move_of_the_broker(run):
    with_settings_from_a_pipe(run)
    fleet = start(run)
    assert fleet.stderr.readline() == "protofleet: the broker is at 127.0.0.1:1 now\n"
    assert wait_until(lambda: device_of(fleet), 60)
    first = device_of(fleet)
    os.kill(first, signal.SIGKILL)
    assert "was killed by SIGKILL; restart in 1.0 s" in fleet.stderr.readline()
    assert wait_until(lambda: device_of(fleet) not in (0, first), 60)
    second = device_of(fleet)
    BrokerPlace("127.0.0.1", 2, "second").write(run / "broker.json")
    assert fleet.stderr.readline() == "protofleet: the broker is at 127.0.0.1:2 now\n"
    assert wait_until(lambda: device_of(fleet) not in (0, second), 60) and not alive(second)
    third = device_of(fleet)
    fleet.kill()
    assert wait_until(lambda: not alive(third)), "no device outlives its task"
    fleet.communicate()
