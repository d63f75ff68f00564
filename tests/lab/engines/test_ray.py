"""The engine of Ray starts a driver as a child process. The command reports each end of the driver in one line."""

import os
import signal
import socket
from pathlib import Path

import pytest

from protofleet.lab.engines import ray
from protofleet.lab.engines.engine import TASK, EngineAwayError, EngineJob, TaskState
from protofleet.lab.engines.ray import ENDED, Ray
from protofleet.protocol.settings.reader import SettingsError, read_toml
from protofleet.runtime.command.errors import RunError
from tests.lab.local.test_resume import alive, descendants, wait_until
from tests.rooms import ROOT

FAKE = Path(__file__).parent / "process_ray"


def engine(**more):
    return Ray(environment={**os.environ, "PYTHONPATH": str(FAKE), **more})


def job(folder, *command, tasks=1, **options):
    return EngineJob("sweep", folder, tasks, command, options={"num_cpus": "1.0", **options})


def driver_of():
    """Return the process of the only driver that this test has started."""
    children = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
    (found,) = [pid for pid in children if b"ray_driver" in Path(f"/proc/{pid}/cmdline").read_bytes()]
    return int(found)


def ended(one, job_id):
    return wait_until(lambda: all(state.state == "cancelled" for state in one.states(job_id)))


def test_each_task_gets_its_number_and_a_second_job_uses_the_same_driver(tmp_path):
    one = engine()
    first = one.submit(job(tmp_path, "echo", f"task {TASK}", tasks=2))
    assert [state.task for state in one.states(first)] == [0, 1] and one.find(job(tmp_path)) == first
    assert ended(one, first) and one.find(job(tmp_path)) == ""
    assert [(tmp_path / f"{i}.log").read_text() for i in range(2)] == ["task 0\n", "task 1\n"]
    driver = driver_of()
    second = one.submit(job(tmp_path, "sleep", "600"))
    assert wait_until(lambda: one.states(second) == [TaskState(0, "runs", "n1")])
    assert driver_of() == driver and one.states("of an earlier command") == []
    tasks = descendants(driver)
    one.cancel(second)
    assert ended(one, second) and not any(map(alive, tasks))


def test_the_driver_process_ends_when_its_engine_is_deleted(tmp_path):
    def driver_of_an_engine():
        one = engine()
        one.submit(job(tmp_path, "true"))
        return driver_of()

    assert not alive(driver_of_an_engine())


@pytest.mark.parametrize("answers", [False, True])
def test_the_end_of_the_driver_is_reported_in_one_line(tmp_path, answers):
    """Ray ends its driver when the head has died, and then nothing listens at the address of the cluster."""
    with socket.create_server(("127.0.0.1", 0)) as head:
        address = f"127.0.0.1:{head.getsockname()[1]}"
        if not answers:
            head.close()
        one = engine(PROCESS_RAY_ADDRESS=address)
        job_id = one.submit(job(tmp_path, "sleep", "600"))
        assert wait_until(lambda: one.states(job_id)[0].state == "runs")
        driver = driver_of()
        os.kill(driver, signal.SIGKILL)
        words = "the driver of Ray was killed by signal 9; the same command goes on from here"
        with pytest.raises(RunError, match=f"^{words if answers else ENDED}$"):
            one.states(job_id)
        one.cancel(job_id)
        assert one.states(job_id) == []


def test_a_driver_that_hangs_is_reported_and_a_cancel_ends_it(tmp_path):
    one = engine()
    one.answer_seconds = 0.2
    job_id = one.submit(job(tmp_path, "sleep", "600"))
    one.answer_seconds = 10.0
    assert one.states(job_id)
    one.answer_seconds = 0.2
    driver = driver_of()
    os.kill(driver, signal.SIGSTOP)
    with pytest.raises(EngineAwayError, match="its driver has not answered within 0 s"):
        one.states(job_id)
    os.kill(driver, signal.SIGCONT)
    one.answer_seconds = 10.0
    assert one.states(job_id), "a late answer is no answer to the next question"
    one.answer_seconds = 0.2
    os.kill(driver, signal.SIGSTOP)
    one.cancel(job_id)
    assert one.states(job_id) == [] and not alive(driver)


def test_a_cluster_that_cannot_be_used_is_refused_with_the_error_of_ray(tmp_path):
    words = "Version mismatch: the cluster has Ray 2.9"
    with pytest.raises(
        SettingsError, match=rf"no Ray cluster answers on this machine \({words}\); name another"
    ):
        engine(PROCESS_RAY_PROBLEM=words, RAY_ADDRESS="").submit(job(tmp_path, "true"))


def test_a_missing_extra_is_refused_with_the_command_that_installs_it(tmp_path, monkeypatch):
    monkeypatch.setattr(ray, "missing", lambda extra: ["ray"])
    with pytest.raises(
        SettingsError, match=r"needs the extra ray: pip install protofleet\[ray\], or pip install ray=="
    ):
        engine().preflight(job(tmp_path, "true"))
    extras = read_toml(ROOT / "pyproject.toml")["project"]["optional-dependencies"]
    assert extras["ray"] == [ray.PACKAGE]


@pytest.mark.parametrize("given", ["option", "variable"])
def test_an_address_without_a_cluster_is_refused_before_a_driver_starts(tmp_path, monkeypatch, given):
    monkeypatch.setattr(ray, "missing", lambda extra: [])
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
    one = engine(RAY_ADDRESS="" if given == "option" else address)
    options = {"address": address} if given == "option" else {}
    with pytest.raises(
        SettingsError, match=f"no Ray cluster answers at {address} .*refused.*ray start --head"
    ):
        one.preflight(job(tmp_path, "true", **options))
