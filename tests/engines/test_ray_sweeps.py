"""Sweeps as tasks of a real Ray with two nodes give the bits of one machine, also after losses and kills."""

from __future__ import annotations

import signal
import subprocess
import time

import pytest

from tests.engines.slurm_cluster import wait_for
from tests.engines.test_slurm_sweeps import Command, all_bits, rounds, same_trials
from tests.lab.local.test_resume import alive
from tests.lab.local.test_run import command, furnished

pytestmark = [pytest.mark.engines, pytest.mark.timeout(1200)]

ROUNDS = 60
GRID = ("--grid", "method.lr=0.02,0.05,0.1")
OPTIONS = ("--set", f"rounds={ROUNDS}", "--set", "data.validation=0.2", *GRID)
HEAD_SECONDS = 90.0  # Ray ends the driver about 60 s after the end of the head.
END_SECONDS = 10.0


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """Run the same sweep on this machine, one trial after another."""
    place = furnished(tmp_path_factory.mktemp("alone"))
    done = subprocess.run(command("sweep", "small.toml", *OPTIONS), cwd=place, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return place


@pytest.fixture
def place(tmp_path, alone):
    """Make a folder whose settings name the data of the other folder, so that all settings are the same."""
    (tmp_path / "small.toml").write_text((alone / "small.toml").read_text())
    return tmp_path


def sweep(ray, place, *more):
    return Command(ray, place, "sweep", "small.toml", *OPTIONS, "--on", "ray", *more)


def wait_for_young_trial(runs):
    wait_for(
        lambda: any(2 < len(rounds(path)) < 30 for path in runs.glob("small-*")),
        240,
        "a trial has ended rounds",
    )


def ends_equal(ray, place, alone):
    """Run the same command to its end, and compare all results with those of one machine."""
    runs, before = place / "runs", {path.name: rounds(path) for path in (place / "runs").glob("small-*")}
    done = sweep(ray, place)
    said = done.end()
    assert done.process.returncode == 0, said
    for name, lines in before.items():
        assert rounds(runs / name)[: len(lines)] == lines, "the run has continued, and not started again"
    assert all_bits(runs) == all_bits(alone / "runs") and len(all_bits(runs)) == 3
    assert same_trials(runs, alone / "runs")
    assert not list(runs.glob("*.1"))
    return said


def test_a_lost_node_and_a_killed_command_change_no_bit(ray, place, alone):
    first = sweep(ray, place)
    first.wait_for_words("1 wait, 2 run", 240)  # The command knows the node of each task.
    wait_for_young_trial(place / "runs")
    tasks = ray.tasks_on("n1")
    ray.kill("n1")
    # A task that went on without its worker would keep the lock of the run.
    wait_for(lambda: tasks and not any(map(alive, tasks)), 2, "the tasks of a node end with its workers")
    first.wait_for_words("node n1 is lost (dead), its 1 trial ", 120)
    ray.start_node("n1")
    first.process.kill()
    first.process.wait()
    wait_for(lambda: not ray.left(), 30, "the driver and the tasks end with the command")
    ends_equal(ray, place, alone)


def test_a_killed_head_is_reported_in_one_line_and_the_same_command_continues(ray, place, alone):
    first = sweep(ray, place)
    wait_for_young_trial(place / "runs")
    ray.kill("head")
    begun = time.monotonic()
    said = first.end(HEAD_SECONDS)
    assert time.monotonic() - begun < HEAD_SECONDS
    assert first.process.returncode == 1 and "Traceback" not in said
    assert said.splitlines()[-1] == (
        "protofleet: the Ray cluster has ended; the same command goes on when there is one"
    )
    wait_for(lambda: not ray.left(), 60, "no process of a task is left")
    ray.restore()
    ends_equal(ray, place, alone)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_terminated_command_leaves_no_task_and_no_process(ray, place, number):
    first = sweep(ray, place)
    wait_for_young_trial(place / "runs")
    begun = time.monotonic()
    first.process.send_signal(number)
    assert first.process.wait(60) == 1
    seconds = time.monotonic() - begun
    assert "is cancelled, " in first.said and "and the same command goes on" in first.said
    wait_for(lambda: not ray.left(), END_SECONDS, "no process is left")
    assert seconds <= END_SECONDS, f"{seconds:.1f} s"


def test_several_trials_in_a_task_give_the_same_bits_and_keep_the_limits(ray, place, alone):
    done = sweep(ray, place, "--pack", "2", "--at-once", "1", "--ray", "num_cpus=0.5")
    said = done.end()
    assert done.process.returncode == 0 and "3 trials in 2 tasks" in said, said
    assert "2 run" not in said, said
    assert all_bits(place / "runs") == all_bits(alone / "runs")


def test_several_files_and_seeds_run_as_one_job(ray, place):
    (place / "other.toml").write_text((place / "small.toml").read_text().replace('"small"', '"other"'))
    words = ("run", "small.toml", "other.toml", "--seeds", "1", "2")
    done = Command(ray, place, *words, "--on", "ray", "--pack", "2")
    said = done.end()
    assert done.process.returncode == 0 and "4 of 4 runs are finished" in said, said
    alone = subprocess.run(command(*words, "--runs", "alone"), cwd=place, capture_output=True)
    assert alone.returncode == 0
    assert all_bits(place / "runs") == all_bits(place / "alone") and len(all_bits(place / "runs")) == 4
