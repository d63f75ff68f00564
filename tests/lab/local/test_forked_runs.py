"""A run with forked processes gives the same bits as one with fresh interpreters, and leaves no process."""

import os
import signal
import subprocess
from pathlib import Path

import pytest

from protofleet.lab.local import processes
from protofleet.lab.local.processes import uses_cuda
from protofleet.runtime.launcher import CAN_FORK
from tests.lab.local.test_resume import alive, bits, descendants, name_of, wait_until
from tests.lab.local.test_run import ROOT, command, lines, place, protofleet, start, wait_for_rounds
from tests.support.held_run import HeldRun

__all__ = ["place"]  # a fixture
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not CAN_FORK, reason="processes are forked on Linux alone"),
]


@pytest.mark.parametrize("method", ["fedavg", "fedpall"])
def test_forked_processes_give_the_same_bits_as_fresh_interpreters(place, method):
    for how in ("fork", "spawn"):
        settings = ("--set", f"devices.start={how}", "--set", f"method.name={method}", "--runs", how)
        done = protofleet("run", "small.toml", *settings, cwd=place)
        assert done.returncode == 0, done.stderr
    assert bits(place / "fork" / "small") == bits(place / "spawn" / "small")


def test_a_run_with_a_killed_launcher_ends_all_its_processes_and_names_the_reason(place):
    run = start(place, HeldRun(place / "held", 4))
    wait_for_rounds(place, 1)
    family = descendants(run.pid)
    (launcher,) = [pid for pid in descendants(run.pid, levels=1) if name_of(pid) == "launcher"]
    os.kill(launcher, signal.SIGKILL)
    out, err = run.communicate(timeout=40)
    assert run.returncode == 1 and "Traceback" not in err
    assert err.splitlines()[-1] == "protofleet: coordinator: the process that forks ended with exit code -9"
    assert len(family) > 5 and wait_until(lambda: not any(alive(pid) for pid in family))


def logs(place):
    return place / "runs" / "small" / "logs"


STAGES = {
    "it imports": lambda run, place: True,
    "it has a launcher": lambda run, place: descendants(run.pid),
    "it enrols": lambda run, place: (place / "runs" / "small" / "enrolled").exists(),
    "it starts the broker": lambda run, place: (logs(place) / "broker.log").exists(),
    "it starts the coordinator": lambda run, place: (logs(place) / "coordinator.log").exists(),
    "it starts the last device": lambda run, place: (logs(place) / "device-3.log").exists(),
    "it has ended a round": lambda run, place: (place / "runs" / "small" / "rounds.jsonl").exists(),
}


# systemd, a batch system and `kill` end a run in this way.
TERMINATED = dict.fromkeys(("it starts the broker", "it has ended a round"), signal.SIGTERM)


@pytest.mark.parametrize("stage", STAGES)
def test_control_c_or_sigterm_at_any_stage_prints_one_line_and_leaves_no_process(place, stage):
    run = start(place, held := HeldRun(place / "held", 4))
    family = set[int]()

    def reached():
        family.update(descendants(run.pid))
        return STAGES[stage](run, place)

    # If the interrupt comes earlier, Python itself prints the place.
    assert wait_until(lambda: b"_multiarray" in Path(f"/proc/{run.pid}/maps").read_bytes(), 60)
    assert wait_until(reached, 60)
    run.send_signal(TERMINATED.get(stage, signal.SIGINT))
    held.let_go()
    out, err = run.communicate(timeout=40)
    family.update(descendants(run.pid))
    assert run.returncode == 1 and "Traceback" not in err, err
    assert len([line for line in err.splitlines() if line.startswith("protofleet: ")]) == 1
    assert wait_until(lambda: not any(alive(pid) for pid in family)), [name_of(p) for p in family if alive(p)]


def test_two_runs_at_the_same_time_do_not_disturb_each_other(place):
    both = [
        subprocess.Popen(
            command("run", "small.toml", "--set", f"name={name}"), cwd=place, stdout=subprocess.PIPE,
            stderr=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": str(ROOT)},
        )
        for name in ("one", "other")
    ]  # fmt: skip
    for run in both:
        out, err = run.communicate(timeout=120)
        assert run.returncode == 0, err
    assert bits(place / "runs" / "one") == bits(place / "runs" / "other")
    assert [len(lines(place, name)) for name in ("one", "other")] == [3, 3]


@pytest.mark.parametrize("how", ["fork", "spawn"])
def test_a_runs_folder_that_cannot_be_made_is_refused_in_one_line(place, how):
    (place / "file").write_text("")
    done = protofleet("run", "small.toml", "--runs", "file", "--set", f"devices.start={how}", cwd=place)
    assert done.returncode == 2 and "Traceback" not in done.stderr
    (line,) = done.stderr.splitlines()
    assert line.startswith("protofleet: ") and "file/small" in line


@pytest.mark.parametrize(
    ("compute", "there", "asked"),
    [("cpu", True, False), ("auto", True, True), ("auto", False, False), ("cuda", False, True)],
)
def test_cuda_is_used_if_the_setting_names_it_or_if_a_device_exists(
    monkeypatch, tmp_path, compute, there, asked
):
    monkeypatch.setattr(processes, "CUDA_DEVICES", (str(tmp_path if there else tmp_path / "none"),))
    assert uses_cuda(compute) == asked
