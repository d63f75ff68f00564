"""Sweeps as tasks of a real Slurm with four nodes give the bits of one machine, also after losses and kills."""

from __future__ import annotations

import json
import resource
import signal
import subprocess
import time

import pytest

from protofleet.lab.local.engine_folder import EngineFolder
from tests.engines.slurm_cluster import SlurmCluster, wait_for
from tests.lab.local.test_resume import bits
from tests.lab.local.test_run import command, furnished

pytestmark = [pytest.mark.engines, pytest.mark.timeout(1200)]

ROUNDS = 30
SAVE_SECONDS = 6
GRID = ("--grid", "method.lr=0.02,0.05,0.1,0.2", "--seeds", "1", "2", "3")
OPTIONS = ("--set", f"rounds={ROUNDS}", "--set", "data.validation=0.2", *GRID)


class Command:
    """A `protofleet` command on a Slurm, whose output goes to a file."""

    def __init__(self, slurm: SlurmCluster, place, *words: str) -> None:
        self.log = place / f"{len(list(place.glob('*.out')))}.out"
        with self.log.open("w") as out:
            self.process = subprocess.Popen(
                command(*words),
                cwd=place,
                env=slurm.environment,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
            )

    @property
    def said(self) -> str:
        return self.log.read_text()

    def end(self, seconds: float = 600.0) -> str:
        self.process.wait(seconds)
        return self.said

    def wait_for_words(self, words: str, seconds: float = 120.0) -> None:
        wait_for(lambda: words in self.said or self.process.poll() is not None, seconds, words)
        assert words in self.said, self.said


def sweep(slurm, place, *more):
    return Command(slurm, place, "sweep", "small.toml", *OPTIONS, "--on", "slurm", *more)


def all_bits(runs):
    return {path.parent.name: bits(path.parent) for path in runs.glob("*/summary.json")}


def rounds(folder):
    path = folder / "rounds.jsonl"
    return path.read_text().splitlines() if path.exists() else []


def times(runs):
    """Return when each file of the runs was written, without the files that a reader of SQLite makes."""
    files = (path for path in runs.glob("small-*/**/*") if path.is_file())
    return {path: path.stat().st_mtime_ns for path in files if not path.name.endswith(("-wal", "-shm"))}


def same_trials(one, other):
    found = [json.loads((runs / "sweeps" / "small" / "trials.json").read_text()) for runs in (one, other)]
    for trials in found:
        for row in trials["trials"]:
            row.pop("tensor_bytes", None)  # A repeated round has sent its tensors again.
    return found[0] == found[1]


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


def nodes_of_young_trials(slurm, runs):
    """Return the nodes of trials that have ended some rounds and are far from the last round."""
    tasks = EngineFolder(runs / "sweeps" / "small").tasks()
    running = (line.split() for line in slurm.tasks() if "RUNNING" in line)
    nodes = {int(name.rpartition("_")[2]): node for name, _, node in running}
    return [
        node
        for task, node in nodes.items()
        if task < len(tasks) and 2 < len(rounds(runs / tasks[task][0])) < 10
    ]


def seconds_of_tasks(slurm):
    """Return the seconds for which each task has run."""
    listed = slurm.ask("squeue", "-h", "-r", "-t", "running", "-o", "%M").split()
    return [60 * int(minutes) + int(seconds) for minutes, seconds in (one.split(":") for one in listed)]


def test_a_lost_node_a_killed_command_and_a_killed_controller_change_no_bit(slurm, place, alone):
    runs = place / "runs"
    first = sweep(slurm, place, "--at-once", "2")
    wait_for(lambda: nodes_of_young_trials(slurm, runs), 180, "a trial has ended some rounds")
    node = nodes_of_young_trials(slurm, runs)[0]
    before = {path.name: rounds(path) for path in runs.glob("small-*")}
    slurm.script("node-kill", node[1:])
    first.wait_for_words(f"node {node} is lost", 120)
    first.process.kill()
    first.process.wait()
    slurm.script("node-start", node[1:])
    second = sweep(slurm, place, "--at-once", "2")
    second.wait_for_words("already runs these trials")
    # Slurm saves its state every 5 s. A task that has started since then would be held.
    wait_for(lambda: min(seconds_of_tasks(slurm), default=0) > SAVE_SECONDS, 180, "all tasks have run 6 s")
    slurm.script("head-kill")
    second.wait_for_words("slurm does not answer: ")
    slurm.script("head-start")
    said = second.end()
    assert second.process.returncode == 0, said
    for name, lines in before.items():
        assert rounds(runs / name)[: len(lines)] == lines
    assert all_bits(runs) == all_bits(alone / "runs") and len(all_bits(runs)) == 12
    assert same_trials(runs, alone / "runs")
    assert not list(runs.glob("*.1"))


def test_several_trials_in_a_task_give_the_same_bits_and_a_repeated_task_runs_nothing(slurm, place, alone):
    runs = place / "runs"
    done = sweep(slurm, place, "--pack", "3", "--at-once", "2")
    said = done.end()
    assert done.process.returncode == 0, said
    assert "12 trials in 4 tasks" in said
    assert all_bits(runs) == all_bits(alone / "runs")
    before = times(runs)
    # Slurm itself repeats a task that has finished.
    job = json.loads((runs / "sweeps" / "small" / "engine" / "job").read_text())["job"]
    log = runs / "sweeps" / "small" / "engine" / "0.log"
    slurm.ask("scontrol", "requeue", f"{job}_0")
    wait_for(
        lambda: slurm.hurry() or log.read_text().count("this run has already ended: finished") == 3,
        240,
        "the task is repeated",
    )
    wait_for(lambda: not slurm.tasks(), 60, "the repeated task has ended")
    assert times(runs) == before
    spent = resource.getrusage(resource.RUSAGE_CHILDREN)
    list_file = runs / "sweeps" / "small" / "engine" / "list"
    subprocess.run(
        command("trials", str(list_file), "0", "--runs", str(runs)), check=True, capture_output=True
    )
    now = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert now.ru_utime + now.ru_stime - spent.ru_utime - spent.ru_stime <= 5.0


def test_a_sigterm_leaves_no_task_and_no_process_and_the_same_command_continues(slurm, tmp_path):
    place, runs = furnished(tmp_path), tmp_path / "runs"
    words = ("sweep", "small.toml", *OPTIONS[:4], "--grid", "method.lr=0.02,0.05,0.1,0.2")
    first = Command(slurm, place, *words, "--on", "slurm")
    wait_for(lambda: any(rounds(p) for p in runs.glob("small-*")), 180, "a round has ended")
    begun = time.monotonic()
    first.process.send_signal(signal.SIGTERM)
    assert first.process.wait(60) == 1
    seconds = time.monotonic() - begun
    assert slurm.tasks() == [] and slurm.left() == []
    assert seconds <= 10.0, f"{seconds:.1f} s"
    assert "and the same command goes on" in first.said
    second = Command(slurm, place, *words, "--on", "slurm")
    said = second.end()
    assert second.process.returncode == 0, said
    subprocess.run(command(*words, "--runs", "alone"), cwd=place, check=True, capture_output=True)
    assert all_bits(runs) == all_bits(place / "alone") and not list(runs.glob("*.1"))


def test_a_command_with_detach_ends_and_a_later_command_waits_for_the_job(slurm, place):
    words = ("--grid", "method.lr=0.02", "--seeds", "1", "2")
    first = Command(slurm, place, "sweep", "small.toml", *OPTIONS[:4], *words, "--on", "slurm", "--detach")
    said = first.end(120)
    assert first.process.returncode == 0 and "the same command without --detach waits" in said
    second = Command(slurm, place, "sweep", "small.toml", *OPTIONS[:4], *words, "--on", "slurm")
    said = second.end()
    assert (
        second.process.returncode == 0
        and "already runs these trials" in said
        and "2 of 2 runs are finished" in said
    )


def test_cancel_ends_the_job_of_an_earlier_command(slurm, place):
    assert sweep(slurm, place, "--detach").end(120)
    assert slurm.tasks()
    done = sweep(slurm, place, "--cancel")
    said = done.end(60)
    assert done.process.returncode == 0 and "is cancelled" in said, said
    assert slurm.tasks() == [] and slurm.left() == []
