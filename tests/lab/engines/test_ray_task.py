"""The process of a task ends with the worker of Ray that has started it, however the worker ends."""

import os
import signal
import sys
import time
from pathlib import Path

import pytest

from protofleet.lab.engines.ray_task import run_task
from tests.lab.local.test_resume import alive, wait_until

SLEEP = "import os, time; print(os.getpid(), flush=True); time.sleep(600)"


@pytest.fixture
def log(tmp_path):
    return tmp_path / "0.log"


def run(log, *words, environment=None, folder=""):
    given = dict(os.environ) if environment is None else environment
    return run_task(words, str(log), str(log.with_suffix(".node")), "id-1", given, folder)


def worker(log, *words):
    """Start a task in a forked process, as in a worker, and return the ids of both processes."""
    pid = os.fork()
    if pid == 0:
        try:
            run(log, *words)
        finally:
            os._exit(0)
    assert wait_until(lambda: log.exists() and log.read_text().endswith("\n"))
    return pid, int(log.read_text())


def test_a_task_appends_to_its_log_and_writes_the_id_of_its_node(log, tmp_path):
    log.write_text("earlier\n")
    code = run(
        log, "sh", "-c", "echo $WORD; pwd; exit 3", environment={"WORD": "given"}, folder=str(tmp_path)
    )
    assert code == 3 and log.read_text() == f"earlier\ngiven\n{tmp_path}\n"
    assert log.with_suffix(".node").read_text() == "id-1"


def test_a_task_gets_the_gpus_from_ray_and_no_other_variable_of_the_worker(log, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2")
    monkeypatch.setenv("OF_THE_WORKER", "x")
    run(
        log,
        "sh",
        "-c",
        "echo $CUDA_VISIBLE_DEVICES $OF_THE_WORKER.",
        environment={"CUDA_VISIBLE_DEVICES": "0,1"},
    )
    assert log.read_text() == "2 .\n"


def test_a_folder_that_the_node_does_not_see_is_an_error(tmp_path):
    with pytest.raises(FileNotFoundError, match="nowhere"):
        run(tmp_path / "nowhere" / "0.log", "true")


def test_the_process_ends_when_the_worker_is_killed(log):
    pid, task = worker(log, sys.executable, "-I", "-S", "-c", SLEEP)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    assert wait_until(lambda: not alive(task))


def test_a_cancelled_task_ends_its_process_with_sigterm(log, tmp_path):
    ended = tmp_path / "ended"
    program = f"trap 'touch {ended}; exit 0' TERM; echo $$; while :; do sleep 0.01; done"
    pid, task = worker(log, "sh", "-c", program)
    os.kill(pid, signal.SIGINT)
    os.waitpid(pid, 0)
    assert ended.exists() and not alive(task)


def test_a_process_that_ignores_sigterm_is_killed(log, monkeypatch):
    monkeypatch.setattr("protofleet.lab.engines.ray_task.END_SECONDS", 0.1)
    pid, task = worker(log, "sh", "-c", "trap '' TERM; echo $$; while :; do sleep 0.01; done")
    begun = time.monotonic()
    os.kill(pid, signal.SIGINT)
    os.waitpid(pid, 0)
    assert not Path(f"/proc/{task}").exists() and time.monotonic() - begun < 10
