"""Devices of a run can share processes: the results stay the same, and an error ends only its device."""

import os
import signal
import subprocess
from contextlib import contextmanager
from pathlib import Path

import pytest

from protofleet.edge_client.trainer.slots import Slots
from protofleet.lab.local.experiment import read_experiment
from protofleet.lab.local.run import computes_on_gpu
from protofleet.lab.local.this_machine import slots_of
from protofleet.protocol.settings.reader import SettingsError
from tests.lab.local.test_resume import alive, bits, descendants, name_of, wait_until
from tests.lab.local.test_run import SMALL, command, lines, place, protofleet, wait_for_rounds
from tests.support.held_run import HeldRun

__all__ = ["place"]  # a fixture
TOGETHER = ("--set", "devices.processes=1")


def pids_of_devices(folder):
    """Return the ids of the processes that several devices share."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes().decode(errors="replace").split("\0")
        except OSError:
            continue
        if "--ended" in words and any(word.startswith(str(folder)) for word in words):
            found.append(int(path.parent.name))
    return found


@pytest.mark.slow
def test_ten_devices_in_a_killed_process_give_the_same_bits_as_separate_processes(place):
    text = SMALL.format(data=place / "data", broker="auto").replace("count = 3", "count = 10")
    (place / "small.toml").write_text(text)
    arguments = ["run", "small.toml", "--set", "rounds=8", "--set", "method.name=fedpall"]
    each = protofleet(*arguments, "--set", "devices.processes=each", "--runs", "each", cwd=place, timeout=300)
    assert each.returncode == 0 and "10, a process each" in each.stdout, each.stdout + each.stderr
    held = HeldRun(place / "held", 4)
    run = subprocess.Popen(
        command(*arguments, *TOGETHER, "--set", "devices.start=spawn", "--runs", str(place / "runs")), cwd=place,
        env=held.environment, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    wait_for_rounds(place, 2)
    (worker,) = pids_of_devices(place / "runs")
    os.kill(worker, signal.SIGKILL)
    held.let_go()
    assert wait_until(lambda: not alive(worker))
    said = run.communicate(timeout=200)[0]
    assert run.returncode == 0 and "10 in 1 process" in said, said
    assert bits(place / "runs" / "small") == bits(place / "each" / "small")
    assert all(len(line["participants"]) == 10 for line in lines(place)[:-1])


def test_a_device_that_cannot_start_does_not_stop_the_others_of_its_process(place):
    folder = place / "runs" / "small" / "devices" / "device-2"
    folder.mkdir(parents=True)
    (folder / "device.json").write_text("{")
    ran = protofleet(
        "run", "small.toml", *TOGETHER, "--set", "policy.quorum=2", "--set", "policy.gather=2", cwd=place
    )
    assert ran.returncode == 0, ran.stderr
    assert [line["participants"] for line in lines(place)[:-1]] == [["device-1", "device-3"]] * 2
    log = (place / "runs" / "small" / "logs" / "devices-1.log").read_text()
    assert "ERROR device-2: cannot start; the other devices of this process go on" in log
    assert "1 of 3 devices ended early: device-2: " in log and "DamagedError: " not in log.splitlines()[-1]
    assert "INFO device-1: round 1 train" in log


@pytest.mark.slow
def test_a_run_that_cannot_reach_its_quorum_ends_with_the_reason_of_a_device(place):
    folder = place / "runs" / "small" / "devices" / "device-2"
    folder.mkdir(parents=True)
    (folder / "device.json").write_text("{")
    ran = protofleet("run", "small.toml", *TOGETHER, cwd=place, timeout=240)  # a round would wait 600 s
    assert ran.returncode == 1 and "device-2: " in ran.stderr and "DamagedError" not in ran.stderr, ran.stderr


AUTHORS = """
from dataclasses import replace
from protofleet.methods import fedavg

class Client(fedavg.Client):
    def run(self, ask):
        raise ValueError("half")

METHOD = replace(fedavg.METHOD, Client=Client)
"""


@pytest.mark.slow
def test_an_error_in_a_plug_in_ends_the_run_at_once(place):
    """The error would come again at the same line, so no device is started again."""
    (place / "mine.py").write_text(AUTHORS)
    text = (place / "small.toml").read_text().replace('name = "fedavg"', 'file = "mine.py"')
    (place / "small.toml").write_text(text)
    ran = protofleet("run", "small.toml", *TOGETHER, cwd=place)
    assert (
        ran.returncode == 1 and 'mine.py:7: ValueError: half, in run: raise ValueError("half")' in ran.stderr
    )
    assert "starts again" not in log_of_devices(place)


def log_of_devices(place):
    path = place / "runs" / "small" / "logs" / "devices-1.log"
    return path.read_text() if path.exists() else ""


@contextmanager
def standing_still(pid):
    """Stop a process, so that it sees two changes of its files as one."""
    os.kill(pid, signal.SIGSTOP)
    try:
        assert wait_until(lambda: all(state_of(task) == "T" for task in Path(f"/proc/{pid}/task").iterdir()))
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def state_of(task):
    return (task / "stat").read_text().rsplit(")", 1)[1].split()[0]


@pytest.mark.slow
def test_a_device_that_an_error_has_ended_restarts_in_its_process(place):
    held = HeldRun(place / "held", 4)
    run = subprocess.Popen(
        command("run", "small.toml", *TOGETHER, "--set", "rounds=10"), cwd=place, stdout=subprocess.PIPE, text=True,
        env=held.environment,
    )  # fmt: skip
    wait_for_rounds(place, 2)
    state = place / "runs" / "small" / "devices" / "device-2" / "device.json"
    (worker,) = [pid for pid in descendants(run.pid) if name_of(pid) == "devices-1"]
    with standing_still(worker):  # otherwise the process may write another file in between
        state.rename(state.with_name("aside"))
        state.mkdir()  # a file cannot replace a folder
    held.let_go()
    assert wait_until(lambda: "device-2: ended by an error; the other" in log_of_devices(place), 30)
    with standing_still(worker):  # otherwise the device may start without a state
        state.rmdir()
        state.with_name("aside").rename(state)
    said = run.communicate(timeout=200)[0]
    assert run.returncode == 0, said
    log = log_of_devices(place)
    assert "INFO device-2: round 10 train" in log[log.index("device-2: starts again in 1.0 s") :]
    assert all(len(line["participants"]) == 3 for line in lines(place)[:-1])


@pytest.mark.parametrize(
    ("setting", "cores", "sizes"),
    [
        ("0", 2, [1] * 8), ("0", 1, [8]), ('"each"', 1, [1] * 8), ("3", 2, [3, 3, 2]), ("20", 2, [1] * 8),
    ],
)  # fmt: skip
def test_the_number_of_processes_follows_from_the_setting_and_the_cores(place, setting, cores, sizes):
    assignments = ["devices.count=8", f"devices.processes={setting}"]
    groups = read_experiment(place / "small.toml", assignments).device_groups(cores)
    assert [len(group) for group in groups] == sizes
    assert sorted(sum(groups, ())) == [f"device-{i}" for i in range(1, 9)]


@pytest.mark.parametrize(
    ("setting", "cores", "sizes"),
    [("0", 16, [2, 2, 2, 2]), ("0", 2, [4, 4]), ("each", 2, [1] * 8), ("6", 2, [2, 2, 1, 1, 1, 1])],
)
def test_the_number_of_processes_on_a_gpu_follows_from_the_setting_and_the_cores(
    place, setting, cores, sizes
):
    """Each process takes memory of the GPU for its own context."""
    assignments = ["devices.count=8", f"devices.processes={setting}"]
    experiment = read_experiment(place / "small.toml", assignments)
    assert [len(group) for group in experiment.device_groups(cores, on_gpu=True)] == sizes


@pytest.mark.parametrize(
    ("asked", "version", "on_gpu"), [(True, "13.0", True), (True, None, False), (False, "13.0", False)]
)
def test_devices_compute_on_a_gpu_if_cuda_is_used_and_torch_is_built_for_it(
    monkeypatch, asked, version, on_gpu
):
    monkeypatch.setattr("protofleet.lab.local.run.uses_cuda", lambda compute: asked)
    monkeypatch.setattr("torch.version.cuda", version)
    assert computes_on_gpu("auto") == on_gpu


@pytest.mark.parametrize(("processes", "number"), [(1, 0), (2, 0), (3, 2), (10, 2)])
def test_no_more_devices_work_at_the_same_time_than_there_are_cores(monkeypatch, tmp_path, processes, number):
    monkeypatch.setattr("protofleet.lab.local.this_machine.available_cores", lambda: 2)
    expected = Slots(str(tmp_path / "slots"), number) if number else Slots()
    assert slots_of(tmp_path, processes) == expected


@pytest.mark.parametrize("wrong", ["many", "-1", "1.5"])
def test_the_setting_processes_must_be_a_number_or_each(place, wrong):
    with pytest.raises(SettingsError, match=r"devices\.processes is .* must be"):
        read_experiment(place / "small.toml", [f"devices.processes={wrong}"])
