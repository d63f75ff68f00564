"""Tests of the worker processes of a virtual run: their number changes no byte, and a dead worker ends the run."""

import filecmp
import os
import signal
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from protofleet.edge_client.trainer.errors import TrainerDiedError
from protofleet.lab.virtual.jobs import JobsHere, JobTask
from protofleet.lab.virtual.processes import WorkerProcesses, job_host
from protofleet.lab.virtual.simulate import job_builder, named, simulate
from protofleet.protocol.settings.reader import SettingsError
from protofleet.runtime.command.errors import RunError
from protofleet.runtime.launcher import CAN_FORK
from tests.lab.virtual.small import EXPERIMENT, PROFILES, experiment, profiles
from tests.lab.virtual.test_simulate import FILES

pytestmark = pytest.mark.skipif(not CAN_FORK, reason="on other systems the command trains in its own process")


@pytest.fixture
def builder(tmp_path):
    return job_builder(experiment(tmp_path))


@pytest.fixture
def host(builder):
    with job_host(builder, 2) as found:
        yield found


def plan_of(folder):
    return experiment(folder).plan


SLOW = pytest.mark.slow


@pytest.mark.parametrize(
    "method", ["fedproto", pytest.param("fedavg", marks=SLOW), pytest.param("scaffold", marks=SLOW)]
)
def test_the_number_of_workers_changes_no_byte_of_the_results(tmp_path, method):
    """One of the lines is slow and one device is away for a while, so that tasks begin at different times."""
    (tmp_path / "trace.csv").write_text("device,from,until\na,0,90000\nb,0,1.2\nb,3,90000\n")
    text = PROFILES.replace("share = 1\nup", "share = 0.5\nup")
    text += "[lines.slow]\nshare = 0.5\nup = 0.5\ndown = 2\nloss = 0.05\ndelay = 0.1\n"
    text += "[availability]\ntrace = 'trace.csv'\n"
    one = named(experiment(tmp_path, "policy.quorum=2", f"method.name={method}"))
    alone, in_two = (
        simulate(one, tmp_path / str(workers), profiles(tmp_path, text), lambda line: None, workers).parent
        for workers in (1, 2)
    )
    assert [name for name in FILES if not filecmp.cmp(alone / name, in_two / name, shallow=False)] == []


def test_a_single_worker_runs_in_the_process_of_the_command(builder):
    with job_host(builder, 1) as host:
        assert isinstance(host, JobsHere)


def test_the_number_of_workers_is_at_most_the_number_of_devices(builder):
    with job_host(builder, 100) as host:
        assert isinstance(host, WorkerProcesses)
        assert len(set(host.pids)) == 3


def test_workers_and_their_threads_end_with_the_run(builder):
    before = threading.active_count()
    with job_host(builder, 2) as host:
        pids = host.pids
    for pid in pids:
        with pytest.raises(ProcessLookupError, match="No such process"):
            os.kill(pid, 0)
    for thread in threading.enumerate():
        if thread.name.startswith("worker-"):
            thread.join(10)
    assert threading.active_count() <= before


def test_a_killed_worker_ends_the_run_with_one_line(host, tmp_path):
    host.start("device-1", plan_of(tmp_path))
    os.kill(host.pids[0], signal.SIGSTOP)  # So it cannot end its tasks before it is killed.
    waits = [host.begin("device-1", JobTask("train", number, {})) for number in (1, 2)]
    os.kill(host.pids[0], signal.SIGKILL)
    for wait in waits:
        with pytest.raises(RunError, match=r"worker process 1 .* was killed by signal 9; .*--workers 1"):
            wait()
    with pytest.raises(RunError, match="was killed by signal 9"):
        host.start("device-1", plan_of(tmp_path))
    host.start("device-2", plan_of(tmp_path))


@pytest.mark.slow
def test_the_command_ends_with_one_line_if_a_worker_is_killed(tmp_path):
    (tmp_path / "small.toml").write_text(EXPERIMENT)
    (tmp_path / "boards.toml").write_text(PROFILES)
    words = ["simulate", "small.toml", "--profiles", "boards.toml", "--workers", "2", "--set", "rounds=500"]
    command = [sys.executable, "-m", "protofleet", *words]
    with subprocess.Popen(
        command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as run:
        assert run.stdout is not None and run.stderr is not None
        assert run.stdout.readline().startswith("round 1: ")
        children = Path(f"/proc/{run.pid}/task/{run.pid}/children").read_text().split()
        assert len(children) == 2
        os.kill(int(children[0]), signal.SIGKILL)
        shown = run.stderr.read().splitlines()
        assert run.wait(60) != 0
    assert "worker process 1 of the virtual run was killed by signal 9" in shown[-1]
    assert "Traceback" not in "".join(shown)
    for child in children:
        with pytest.raises(ProcessLookupError, match="No such process"):
            os.kill(int(child), 0)


def test_a_worker_raises_the_same_errors_as_a_device(builder, tmp_path):
    plan = plan_of(tmp_path)
    other = {"device-2": replace(plan.network, feature_size=32)}
    with job_host(replace(builder, networks=other), 2) as host:
        host.start("device-1", plan)
        wrong = JobTask("train", 1, {"nonsense": np.zeros(3, np.float32)})
        with pytest.raises(TrainerDiedError, match="broadcast of round 1 train: nonsense"):
            host.begin("device-1", wrong)()
        with pytest.raises(SettingsError, match="needs the same network on every device"):
            host.start("device-2", plan)
