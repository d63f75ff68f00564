"""A federation whose devices are tasks of an engine survives lost nodes and heads, with the bits of one machine."""

import json
import os
import shutil
import signal
import subprocess
import time
from functools import partial
from pathlib import Path

import pytest

from protofleet.federation.brokers.ports import free_port
from protofleet.protocol.settings.reader import read_toml
from protofleet.runtime.children import PARENT
from tests.lab.engines.process_slurm import ProcessSlurm
from tests.lab.local.test_resume import alive, bits, descendants, name_of, wait_until
from tests.lab.local.test_run import ROOT, command, furnished, lines, protofleet, wait_for_rounds
from tests.support.held_run import HeldRun
from tests.support.secured_broker import start_enrolled
from tests.support.started_processes import ended_at_last

pytestmark = pytest.mark.slow
# These tests start whole federations several times, so `make test-engines` runs them, and `make test-all` does not.
only_with_engines = pytest.mark.engines
HERE, ELSEWHERE = "127.0.0.2", "127.0.0.3"
ROUNDS = 6
SETTINGS = ("--set", f"rounds={ROUNDS}", "--set", "method.name=fedpall")
RETURN_SECONDS = 60.0  # Most seconds from the return of a head to the end of the next round.


@pytest.fixture(scope="module")
def untroubled(tmp_path_factory):
    """Return the bits of the same file on one machine without trouble."""
    place = furnished(tmp_path_factory.mktemp("untroubled"))
    done = protofleet("run", "small.toml", *SETTINGS, cwd=place)
    assert done.returncode == 0, done.stderr
    return bits(place / "runs" / "small")


@pytest.fixture
def place(tmp_path):
    return furnished(tmp_path)


@pytest.fixture
def slurm(tmp_path, monkeypatch):
    """Return a Slurm of processes. All of them, and all commands of the test, end with the test."""
    with ended_at_last(monkeypatch):
        yield ProcessSlurm(tmp_path / "slurm")


def start(place, slurm, *more, held=None, host=HERE):
    (place / "node").mkdir(exist_ok=True)
    environment = held.environment if held is not None else {**os.environ, "PYTHONPATH": str(ROOT)}
    # A process with PARENT ends when another process than this one is its parent.
    environment |= {"PATH": slurm.path, "TMPDIR": str(place / "node"), PARENT: str(os.getpid())}
    words = command("run", "small.toml", *SETTINGS, "--on", "slurm", "--tasks", 2, "--host", host, *more)
    return subprocess.Popen(
        words, cwd=place, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def finish(process, code=0):
    said = process.communicate(timeout=200)[0]
    assert process.returncode == code, said
    assert "Traceback" not in said
    return said


def array_of(slurm):
    """Return the job with the devices. The job before it is the first task."""
    assert wait_until(lambda: any(len(slurm.pids(job)) == 2 for job in slurm.jobs), 60)
    return next(job for job in slurm.jobs if len(slurm.pids(job)) == 2)


def nothing_is_left(slurm):
    return not any(slurm.pids(job) for job in slurm.jobs)


def kill_head(process):
    family = descendants(process.pid)
    process.kill()
    process.communicate()
    assert wait_until(lambda: not any(alive(child) for child in family))


def test_devices_in_tasks_give_the_same_bits_as_one_machine_and_leave_no_task(place, slurm, untroubled):
    said = finish(start(place, slurm))
    run = place / "runs" / "small"
    assert "devices: 3 in 2 tasks of slurm" in said
    assert bits(run) == untroubled and nothing_is_left(slurm)
    assert read_toml(run / "coordinator.toml")["policy"]["patience_seconds"] == 86_400
    assert "86400" not in (run / "experiment.toml").read_text(), "the patience of the engine is no setting"
    assert not (run / "slots").exists() and list((place / "node").glob("protofleet-slots-*"))
    assert not list((place / "runs").glob(".*first-task"))


def test_lost_nodes_and_a_head_that_restarts_on_another_host_change_no_bit(place, slurm, untroubled):
    first = start(place, slurm, held=HeldRun(place / "held", 2))
    wait_for_rounds(place, 2)
    job = array_of(slurm)
    slurm.lose_node(job, 0)
    kill_head(first)
    refused = finish(start(place, slurm, "--fresh"), 2)
    assert f"job {job} has the devices of the earlier run" in refused and refused.count("\n") == 1
    slurm.lose_node(job, 1)
    returned = time.monotonic()
    again = start(place, slurm, "--resume", host=ELSEWHERE)
    wait_for_rounds(place, 3)
    assert time.monotonic() - returned < RETURN_SECONDS
    said = finish(again)
    assert f"slurm runs them already as job {job}" in said
    assert ELSEWHERE in (place / "runs" / "small" / "engine" / "broker.json").read_text()
    assert bits(place / "runs" / "small") == untroubled and nothing_is_left(slurm)
    assert [line["round"] for line in lines(place)] == list(range(1, ROUNDS + 2))


@pytest.mark.parametrize("first_in_tasks", [True, False])
def test_a_run_can_move_between_tasks_and_one_machine(place, slurm, untroubled, first_in_tasks):
    here = partial(protofleet_here, place)
    there = partial(start, place, slurm)
    begin, go_on = (there, here) if first_in_tasks else (here, there)
    first = begin(held=HeldRun(place / "held", 2))
    wait_for_rounds(place, 2)
    first.send_signal(signal.SIGINT)
    finish(first, 1)
    said = finish(go_on("--resume"))
    assert "continuing the unfinished run" in said
    assert bits(place / "runs" / "small") == untroubled
    assert not (place / "runs" / "small.1").exists()


@only_with_engines
def test_tasks_of_an_unavailable_engine_end_before_the_run_continues_on_one_machine(place, slurm, untroubled):
    first = start(place, slurm, held=HeldRun(place / "held", 2))
    wait_for_rounds(place, 2)
    job = array_of(slurm)
    kill_head(first)
    assert len(slurm.pids(job)) == 2
    said = finish(
        protofleet_here(place, "--resume")
    )  # The PATH of this command has no commands of the engine.
    assert "tasks that still run the devices of runs/small end within 3 s" in said
    assert "the run goes on without its tasks" in (place / "runs/small/engine/0.log").read_text()
    assert bits(place / "runs" / "small") == untroubled and nothing_is_left(slurm)


@only_with_engines
def test_a_federation_in_tasks_uses_the_nodes_of_an_external_broker_that_accept_it(
    place, slurm, untroubled, tmp_path
):
    """No broker listens at the first address. The nodes need not reach this machine, so there is no first task."""
    secured = start_enrolled(tmp_path / "fleet", *(f"device-{i + 1}" for i in range(3)))
    hosts = [f"127.0.0.1:{port}" for port in (free_port(), secured.broker.port)]
    changes = ("kind=external", f"enrolled={secured.fleet.folder}", f"address.hosts={json.dumps(hosts)}")
    words = [word for change in changes for word in ("--set", f"broker.{change}")]
    try:
        said = finish(start(place, slurm, *words, host="nowhere.invalid"))
    finally:
        secured.broker.stop()
    assert f"broker: external, {hosts[0]}, {hosts[1]}" in said and slurm.jobs == ["1"]
    assert bits(place / "runs" / "small") == untroubled and nothing_is_left(slurm)


def protofleet_here(place, *more, held=None):
    environment = held.environment if held is not None else {**os.environ, "PYTHONPATH": str(ROOT)}
    words = command("run", "small.toml", *SETTINGS, *more)
    return subprocess.Popen(
        words, cwd=place, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


@only_with_engines
def test_a_terminated_command_ends_all_tasks_in_ten_seconds_and_the_run_can_continue(
    place, slurm, untroubled
):
    held = HeldRun(place / "held", 2)
    first = start(place, slurm, held=held)
    wait_for_rounds(place, 2)
    array_of(slurm)
    ended = time.monotonic()
    first.send_signal(signal.SIGTERM)
    held.let_go()  # A coordinator that is held cannot end.
    said = finish(first, 1)
    assert nothing_is_left(slurm) and time.monotonic() - ended < 10
    assert "the same command continues the run" in said
    finish(start(place, slurm, "--resume"))
    assert bits(place / "runs" / "small") == untroubled


@only_with_engines
def test_a_second_head_is_refused_in_one_line(place, slurm, untroubled):
    held = HeldRun(place / "held", 1)
    first = start(place, slurm, held=held)
    wait_for_rounds(place, 1)
    (line,) = finish(start(place, slurm), 2).splitlines()
    assert "is in use by process" in line and "small" in line
    held.let_go()
    finish(first)
    assert bits(place / "runs" / "small") == untroubled


@only_with_engines
def test_a_killed_broker_is_restarted_on_its_host(place, slurm, untroubled):
    held = HeldRun(place / "held", 2)
    run = start(place, slurm, held=held)
    wait_for_rounds(place, 2)
    (broker,) = [pid for pid in descendants(run.pid) if name_of(pid) == "mosquitto"]
    os.kill(broker, signal.SIGKILL)
    held.let_go()
    assert "it is started again, and the run goes on" in finish(run)
    assert bits(place / "runs" / "small") == untroubled


@only_with_engines
def test_a_run_without_its_quorum_ends_if_a_share_ends_three_times_in_a_row(place, slurm):
    slurm.break_share(1)
    said = finish(start(place, slurm), 1)
    assert said.count("is submitted again as job") == 2
    assert "device-2: its task 1 ended 3 times in a row: no such Python here" in said.splitlines()[-1]
    assert nothing_is_left(slurm)


@only_with_engines
def test_a_task_that_ends_during_the_run_is_submitted_again(place, slurm, untroubled):
    held = HeldRun(place / "held", 2)
    run = start(place, slurm, held=held)
    wait_for_rounds(place, 2)
    job = array_of(slurm)
    os.kill(slurm.pids(job)[1], signal.SIGTERM)  # as at its time limit
    assert wait_until(lambda: len(slurm.jobs) == int(job) + 1, 60)
    held.let_go()
    assert "task 1 has ended although the run goes on" in finish(run)
    assert bits(place / "runs" / "small") == untroubled and nothing_is_left(slurm)


def test_an_engine_that_does_not_answer_for_a_time_changes_no_bit(place, slurm, untroubled):
    held = HeldRun(place / "held", 2)
    run = start(place, slurm, held=held)
    wait_for_rounds(place, 2)
    slurm.go_away()
    held.let_go()
    wait_for_rounds(place, ROUNDS + 1)
    slurm.come_back()
    finish(run)
    assert bits(place / "runs" / "small") == untroubled and nothing_is_left(slurm)


def test_two_tasks_with_the_same_devices_change_no_bit(place, slurm, untroubled):
    held = HeldRun(place / "held", 2)
    run = start(place, slurm, held=held)
    wait_for_rounds(place, 2)
    job = array_of(slurm)
    script = (slurm.folder / "jobs" / job / "script").read_text().splitlines()[-1]
    second = subprocess.Popen(
        ["sh", "-c", script], env={**os.environ, "PYTHONPATH": str(ROOT), "SLURM_ARRAY_TASK_ID": "0"},
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    log = place / "runs" / "small" / "engine" / "0.log"
    assert wait_until(lambda: "another task runs the devices of --share 0/2 now" in log.read_text(), 60)
    held.let_go()
    finish(run)
    second.terminate()
    second.wait(60)
    assert bits(place / "runs" / "small") == untroubled


@only_with_engines
def test_a_head_in_a_job_continues_after_a_lost_node_and_does_not_repeat_a_finished_run(
    place, slurm, untroubled
):
    command_at_login = start(place, slurm, "--head", "job", held=HeldRun(place / "held", 2))
    wait_for_rounds(place, 2)
    array_of(slurm)
    shutil.rmtree(place / "held")  # The next start of the head is not held.
    slurm.lose_node(slurm.jobs[0], 0)
    said = finish(command_at_login)
    assert bits(place / "runs" / "small") == untroubled and nothing_is_left(slurm)
    assert "slurm runs them already as job" in said
    slurm.lose_node(slurm.jobs[0], 0)
    log = place / "runs" / "small" / "engine" / "head" / "0.log"
    before = log.stat().st_size
    assert wait_until(lambda: log.stat().st_size > before and nothing_is_left(slurm), 60)
    assert log.read_text()[before:] == f"report: {place}/runs/small/report.html\n"
    assert [path.name for path in Path(place / "runs").iterdir() if not path.name.startswith(".")] == [
        "small"
    ]


@only_with_engines
def test_an_interrupt_of_a_command_that_waits_for_a_head_ends_all_tasks(place, slurm, untroubled):
    at_login = start(place, slurm, "--head", "job", held=HeldRun(place / "held", 2))
    wait_for_rounds(place, 2)
    array_of(slurm)
    at_login.kill()
    at_login.communicate()
    assert not nothing_is_left(slurm)
    again = start(place, slurm, "--head", "job")
    again_said = iter(again.stdout.readline, "")
    assert any("already runs the broker" in line for line in again_said)
    ended = time.monotonic()
    again.send_signal(signal.SIGINT)
    finish(again, 1)
    assert nothing_is_left(slurm) and time.monotonic() - ended < 20
    shutil.rmtree(place / "held")
    finish(start(place, slurm, "--head", "job"))
    assert bits(place / "runs" / "small") == untroubled


@only_with_engines
def test_the_same_command_shows_the_end_of_a_detached_head_and_starts_no_run(place, slurm, untroubled):
    finish(start(place, slurm, "--head", "job", "--detach"))
    summary = place / "runs" / "small" / "summary.json"
    assert wait_until(lambda: summary.exists() and nothing_is_left(slurm), 120)
    assert f"report: {place}/runs/small/report.html" in finish(start(place, slurm, "--head", "job"))
    assert bits(place / "runs" / "small") == untroubled and len(slurm.jobs) == 3
    assert not (place / "runs" / "small.1").exists()
