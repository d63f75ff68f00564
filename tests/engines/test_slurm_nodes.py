"""One federation in tasks of a real Slurm survives a lost node, head or controller, and has the same bits."""

import os
import signal
import statistics
import subprocess
import sys
import time

import pytest

from protofleet.coordinator.observe.rounds_file import read_rounds
from tests.engines.slurm_cluster import wait_for
from tests.lab.local.test_resume import alive, bits, descendants, wait_until
from tests.lab.local.test_run import ROOT, command, lines
from tests.support.held_run import HeldRun

pytestmark = [pytest.mark.engines, pytest.mark.timeout(1200)]
HERE, ELSEWHERE = "127.0.0.2", "127.0.0.3"
ROUNDS = 10
MANY = """
name = "small"
rounds = 10
classes = 2
method = { name = "fedavg", lr = 0.05, batch = 16, epochs = 2 }
network = { name = "mlp" }
[data]
source = "breast_cancer"
split = "dirichlet"
beta = 100.0
[devices]
count = 12
"""
START_SECONDS = 300.0  # Most seconds from the start of a command to its first rounds, on a loaded machine.
RETURN_SECONDS = 60.0  # Most seconds from the return of a head to the end of the next round.
# Slurm counts a silent node as down after 10 s here. A loaded machine starts a task slowly.
REQUEUE_SECONDS = 240
PAIRS = 1
MOST_RATIO = 1.3  # Most seconds of 40 rounds in three tasks, in seconds of the same rounds on one machine.


@pytest.fixture
def place(tmp_path):
    (tmp_path / "small.toml").write_text(MANY)
    return tmp_path


@pytest.fixture(scope="module")
def untroubled(tmp_path_factory):
    """Return the bits of the same file on one machine without trouble."""
    place = tmp_path_factory.mktemp("untroubled")
    (place / "small.toml").write_text(MANY)
    subprocess.run(
        command("run", "small.toml"), cwd=place, env=environment(), check=True, capture_output=True
    )
    return bits(place / "runs" / "small")


def environment():
    return {**os.environ, "PYTHONPATH": str(ROOT)}


def start(place, slurm, *more, held=None, host=HERE):
    words = command("run", "small.toml", "--on", "slurm", "--tasks", 3, "--host", host, *more)
    around = {**slurm.environment, **(held.environment if held is not None else environment())}
    around["PATH"] = slurm.environment["PATH"]
    return subprocess.Popen(
        words, cwd=place, env=around, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def start_here(place, slurm, *more):
    """Start the run on this machine, where the commands of Slurm are on PATH."""
    around = {**environment(), **slurm.environment}
    return subprocess.Popen(
        command("run", "small.toml", *more), cwd=place, env=around, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip


def finish(process, code=0):
    said = process.communicate(timeout=900)[0]
    assert process.returncode == code and "Traceback" not in said, said
    return said


def node_of(slurm, task):
    """Return the number of the node on which a task of the devices runs."""
    (line,) = [one for one in slurm.tasks() if one.split()[0].endswith(f"_{task}") and "RUNNING" in one]
    return line.split()[2].removeprefix("n")


def wait_for_rounds(place, number):
    """Wait until the run has written `number` whole lines of rounds."""
    path = place / "runs" / "small" / "rounds.jsonl"
    wait_for(lambda: len(read_rounds(path)) >= number, START_SECONDS, f"{number} rounds")


def known_jobs(slurm):
    """Return the ids of all jobs that Slurm still knows, also of those that have ended."""
    return set(slurm.ask("squeue", "-h", "-t", "all", "-o", "%A").split())


def running(slurm):
    return sum("RUNNING" in one for one in slurm.tasks())


def kill_head(process):
    family = descendants(process.pid)
    process.kill()
    process.communicate()
    assert wait_until(lambda: not any(alive(child) for child in family))


def test_a_head_restarted_on_another_address_and_a_lost_node_change_no_bit(place, slurm, untroubled):
    first = start(place, slurm, held=HeldRun(place / "held", 3))
    wait_for_rounds(place, 3)
    kill_head(first)
    held = HeldRun(place / "held-again", 3)
    again = start(place, slurm, "--resume", held=held, host=ELSEWHERE)
    broker = place / "runs" / "small" / "engine" / "broker.json"
    wait_for(lambda: ELSEWHERE in broker.read_text(), 120, "the head is on the other address")
    slurm.script("node-kill", node_of(slurm, 1))
    held.let_go()
    # The fourth round may have its answers already. The fifth one needs the devices of the lost node.
    wait_for(
        lambda: slurm.hurry() or len(lines(place)) > 4, REQUEUE_SECONDS, "a round after the loss of a node"
    )
    said = finish(again)
    assert "is lost (down" in said and "slurm runs them already as job" in said
    assert bits(place / "runs" / "small") == untroubled
    assert slurm.left() == [] and slurm.tasks() == []


def test_a_head_that_is_killed_twice_ends_a_round_within_a_minute_of_each_restart(place, slurm, untroubled):
    head = start(place, slurm, held=HeldRun(place / "held", 2))
    for rounds, host in ((2, ELSEWHERE), (4, HERE)):
        wait_for_rounds(place, rounds)
        kill_head(head)
        assert running(slurm) == 3, "the tasks keep their places"
        held = HeldRun(place / f"held-{rounds}", 4) if rounds == 2 else None
        returned = time.monotonic()
        head = start(place, slurm, "--resume", held=held, host=host)
        wait_for_rounds(place, rounds + 1)
        assert time.monotonic() - returned < RETURN_SECONDS
    finish(head)
    assert bits(place / "runs" / "small") == untroubled
    assert [line["round"] for line in lines(place)] == list(range(1, ROUNDS + 2))


def test_a_run_is_refused_on_one_machine_until_its_tasks_are_cancelled(place, slurm, untroubled):
    head = start(place, slurm, held=HeldRun(place / "held", 2))
    wait_for_rounds(place, 2)
    kill_head(head)
    job = slurm.tasks()[0].split("_")[0]
    refused = finish(start_here(place, slurm), 2)
    assert f"go on with --on slurm --tasks 3, or end the job first with scancel {job}" in refused
    assert refused.count("\n") == 1 and running(slurm) == 3
    slurm.ask("scancel", job)
    wait_for(lambda: not slurm.tasks(), 60, "the job has ended")
    finish(start_here(place, slurm, "--resume"))
    assert bits(place / "runs" / "small") == untroubled


def test_a_controller_that_is_down_for_a_time_changes_no_bit(place, slurm, untroubled):
    held = HeldRun(place / "held", 2)
    run = start(place, slurm, held=held)
    wait_for_rounds(place, 2)
    slurm.script("head-kill")
    held.let_go()
    wait_for_rounds(place, 6)
    slurm.script("head-start")
    finish(run)
    assert bits(place / "runs" / "small") == untroubled
    assert slurm.left() == [] and slurm.tasks() == []


def test_a_terminated_command_leaves_no_task_after_ten_seconds(place, slurm):
    held = HeldRun(place / "held", 2)
    run = start(place, slurm, held=held)
    wait_for_rounds(place, 2)
    assert running(slurm) == 3
    ended = time.monotonic()
    run.send_signal(signal.SIGTERM)
    held.let_go()  # A coordinator that is held cannot end.
    finish(run, 1)
    seconds = time.monotonic() - ended
    assert slurm.left() == [] and slurm.tasks() == []
    assert seconds < 10, f"{seconds:.1f} s"


def test_a_head_in_a_job_continues_on_another_node_after_the_loss_of_its_node(place, slurm, untroubled):
    held = HeldRun(place / "held", 2)
    # Two tasks and the head leave one of the four nodes free.
    at_login = start(place, slurm, "--head", "job", "--tasks", 2, held=held)
    wait_for_rounds(place, 2)
    (head,) = [one for one in slurm.ask("squeue", "-h", "-o", "%j %N").splitlines() if "-head" in one]
    slurm.script("node-kill", head.split()[1].removeprefix("n"))
    held.let_go()
    wait_for(
        lambda: slurm.hurry() or len(lines(place)) > 3, REQUEUE_SECONDS, "a round after the loss of a node"
    )
    said = finish(at_login)
    assert "is lost (down" in said
    assert bits(place / "runs" / "small") == untroubled
    assert slurm.left() == [] and slurm.tasks() == []


def test_a_head_in_a_job_stops_at_its_time_limit_and_is_submitted_again(place, slurm, untroubled):
    """The limit of the running job is lowered, so that Slurm sends its warning at its next check of limits."""
    held = HeldRun(place / "held", 2)
    at_login = start(place, slurm, "--head", "job", "--tasks", 2, held=held)
    wait_for_rounds(place, 2)
    (head,) = [one for one in slurm.ask("squeue", "-h", "-o", "%j %F").splitlines() if "-head" in one]
    slurm.limit(head.split()[1])
    wait_for(lambda: running(slurm) <= 1, 180, "the head ends its tasks after the warning")
    held.let_go()  # A coordinator that is held cannot end.
    said = finish(at_login)
    assert "the job was stopped, for example at its time limit; it is submitted again" in said
    assert said.count("runs the broker and the coordinator") == 2
    assert "stopped; the same command continues the run" in said, "it was not killed"
    assert bits(place / "runs" / "small") == untroubled
    assert slurm.left() == [] and slurm.tasks() == []


def test_too_many_tasks_and_a_foreign_host_are_refused_before_a_job_is_submitted(place, slurm):
    jobs = known_jobs(slurm)
    refused = finish(start(place, slurm, "--tasks", 13), 2)
    assert "--tasks is 13, but the experiment has 12 devices" in refused and refused.count("\n") == 1
    refused = finish(start(place, slurm, host="192.0.2.1"), 2)
    assert "--host is 192.0.2.1, but this machine cannot listen there" in refused and refused.count("\n") == 1
    assert known_jobs(slurm) <= jobs and not (place / "runs" / "small").exists()


def test_forty_rounds_in_three_tasks_take_little_longer_than_on_one_machine(place, slurm):
    """The start of the tasks costs 5 to 8 s, so the rounds are about as long as a second."""
    ratios = []
    for i in range(PAIRS):
        forty = ("--set", "rounds=40", "--set", "method.epochs=200", "--set", f"name=pair-{i}")
        begun = time.monotonic()
        subprocess.run(
            command("run", "small.toml", *forty, "--runs", "here"), cwd=place, env=environment(), check=True,
            capture_output=True,
        )  # fmt: skip
        between = time.monotonic()
        finish(start(place, slurm, *forty))
        ratios.append((time.monotonic() - between) / (between - begun))
        assert bits(place / "runs" / f"pair-{i}") == bits(place / "here" / f"pair-{i}")
    sys.stdout.write(f"seconds in tasks for a second on one machine: {ratios}\n")
    assert statistics.median(ratios) <= MOST_RATIO
