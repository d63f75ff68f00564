"""Each problem of a real Slurm is reported in one line: a held job, a missing controller, a time limit, bad input."""

from __future__ import annotations

import json
import subprocess
import time

import pytest

from tests.engines.slurm_cluster import wait_for
from tests.engines.test_slurm_sweeps import Command, all_bits, rounds
from tests.lab.local.test_resume import bits
from tests.lab.local.test_run import command, furnished

pytestmark = [pytest.mark.engines, pytest.mark.timeout(1200)]

LONG = 400
ONE = ("--set", "data.validation=0.2", "--grid", "method.lr=0.05")


@pytest.fixture
def place(tmp_path):
    return furnished(tmp_path)


def sweep(slurm, place, *more, count=3):
    return Command(
        slurm, place, "sweep", "small.toml", "--set", f"rounds={count}", *ONE, "--on", "slurm", *more
    )


def engine(place, *setup):
    """Add lines of shell that each task runs first."""
    with (place / "small.toml").open("a") as file:
        file.write(f"[engine]\nsetup = {json.dumps(setup)}\n")


def give_nodes_another_version(place):
    (place / "other").mkdir()
    (place / "other" / "sitecustomize.py").write_text(
        "import importlib.metadata as m\nread = m.version\n"
        "m.version = lambda name: '9.9.9' if name == 'protofleet' else read(name)\n"
    )
    engine(place, f"export PYTHONPATH={place}/other")


def refused(slurm, place, *more):
    """Run a command that must be refused with exit code 2, and return its one line of errors."""
    done = sweep(slurm, place, *more)
    said = done.end(120)
    assert done.process.returncode == 2, said
    found = [line for line in said.splitlines() if line.startswith("protofleet: ")]
    assert len(found) == 1 and "Traceback" not in said, said
    assert not (place / "runs" / "sweeps" / "small" / "engine" / "job").exists()
    assert not list((place / "runs").glob("small-*"))
    return found[0]


def test_a_run_that_stops_at_its_time_limit_is_submitted_again(slurm, place):
    """The limit of a running task is lowered, so that Slurm sends its warning at its next check of limits."""
    words = ("--set", f"rounds={LONG}", *ONE, "--runs", "alone")
    alone = subprocess.Popen(
        command("sweep", "small.toml", *words),
        cwd=place,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    first = sweep(slurm, place, "--slurm", "time=20", count=LONG)
    run = place / "runs" / "small-lr-0.05-s1"
    wait_for(lambda: len(rounds(run)) > 2, 180, "two rounds have ended")
    job = next(line.split("_")[0] for line in slurm.tasks())
    slurm.limit(job)
    first.wait_for_words("they are submitted again", 240)
    log = place / "runs" / "sweeps" / "small" / "engine" / "0.log"
    assert "stopped in small-lr-0.05-s1" in log.read_text()  # It was not killed.
    before = rounds(run)
    said = first.end(900)
    assert first.process.returncode == 0, said
    assert rounds(run)[: len(before)] == before and len(before) < len(rounds(run))
    assert alone.wait(900) == 0
    assert all_bits(place / "runs") == all_bits(place / "alone")
    assert bits(run) == bits(place / "alone" / run.name)


def test_running_tasks_continue_without_a_controller(slurm, place):
    run = place / "runs" / "small-lr-0.05-s1"
    first = sweep(slurm, place, count=60)
    wait_for(lambda: rounds(run), 180, "a round has ended")
    time.sleep(6)  # Slurm saves its state every 5 s; without that, it would hold the job (the next test).
    slurm.script("head-kill")
    first.wait_for_words("slurm does not answer: ", 120)
    before = len(rounds(run))
    wait_for(lambda: len(rounds(run)) > before or (run / "summary.json").exists(), 60, "a round has ended")
    slurm.script("head-start")
    said = first.end(300)
    assert first.process.returncode == 0 and "1 of 1 runs are finished" in said, said
    assert said.count("slurm does not answer: ") <= 3


def test_a_held_task_is_named_with_a_fix_and_with_the_drained_node(slurm, place):
    """A node that cannot start the second task is drained, and Slurm holds the task."""
    first = sweep(slurm, place, "--seeds", "1", "2", "--at-once", "1", count=10)
    wait_for(lambda: rounds(place / "runs" / "small-lr-0.05-s1"), 180, "the first task runs")
    (slurm.folder / "no-start").touch()
    first.wait_for_words("is held by slurm", 240)
    first.wait_for_words("nodes that take no tasks: n", 30)
    job = next(line.split("_")[0] for line in slurm.tasks())
    assert f"scontrol release {job}_1" in first.said and "drain" in first.said
    (slurm.folder / "no-start").unlink()
    node = first.said.partition("nodes that take no tasks: ")[2].split()[0]
    slurm.ask("scontrol", "update", f"nodename={node}", "state=resume")
    slurm.ask("scontrol", "release", f"{job}_1")
    said = first.end(600)
    assert first.process.returncode == 0, said


def test_a_job_that_slurm_has_lost_is_submitted_again(slurm, place):
    """A controller that ends at once after a submission has not saved the job. Here, what it has saved is removed."""
    first = sweep(slurm, place, count=200)
    wait_for(lambda: rounds(place / "runs" / "small-lr-0.05-s1"), 180, "a round has ended")
    slurm.script("head-kill")
    for path in (slurm.folder / "state").glob("job_state*"):
        path.unlink()
    slurm.script("head-start")
    said = first.end(600)
    assert first.process.returncode == 0 and "they are submitted again" in said, said


def test_a_job_that_is_cancelled_by_hand_is_not_submitted_again(slurm, place):
    first = sweep(slurm, place, count=200)
    wait_for(lambda: rounds(place / "runs" / "small-lr-0.05-s1"), 180, "a round has ended")
    slurm.ask("scancel", "--user=root")
    said = first.end(120)
    assert first.process.returncode == 1 and "was cancelled, by scancel" in said, said
    assert slurm.tasks() == []


def test_no_job_is_submitted_if_no_controller_answers(slurm, place):
    slurm.script("head-kill")
    assert "no controller of Slurm answers: " in refused(slurm, place)


@pytest.mark.parametrize(
    ("option", "words"),
    [
        ("partition=nope", "Slurm refuses the job: invalid partition specified: nope; "),
        (
            "partition=physics",
            "can't use this partition (physics allows physics) (`scontrol show partition` lists",
        ),
        ("array=0-9", "slurm has array, which protofleet sets itself; leave it out"),
    ],
)
def test_a_wrong_option_of_slurm_is_refused_with_the_reason(slurm, place, option, words):
    assert words in refused(slurm, place, "--slurm", option)
    assert slurm.tasks() == []


def test_a_folder_that_a_node_does_not_see_is_refused(slurm, place):
    (place / "runs").mkdir()
    slurm.script("node-kill", "4")
    slurm.script("node-start", "4", str(place / "runs"))
    wait_for(slurm.idle, 60, "all nodes are idle")
    said = refused(slurm, place, "--slurm", "exclude=n[1-3]")
    assert f"a node does not see {place}/runs/sweeps/small/engine" in said and "--runs" in said


def test_a_lock_that_does_not_hold_is_refused(slurm, place):
    """All nodes share a kernel, so the first task gets a new file in place of the locked one."""
    lock = place / "runs" / "sweeps" / "small" / "engine" / "check.lock"
    (place / "small.toml").write_text(
        (place / "small.toml").read_text()
        + f'[engine]\nsetup = ["cp {lock} {lock}.new", "mv {lock}.new {lock}"]\n'
    )
    assert (
        f"a lock on {lock} does not hold on node" in (said := refused(slurm, place))
        and "--trust-locks" in said
    )
    done = sweep(slurm, place, "--trust-locks")
    assert done.end(300) and done.process.returncode == 0, done.said


def test_a_node_with_another_version_is_refused(slurm, place):
    give_nodes_another_version(place)
    assert "has protofleet 9.9.9, and this machine has" in refused(slurm, place)


def test_the_error_for_a_node_that_cannot_run_the_task_has_the_last_line_of_its_log(slurm, place):
    (place / "small.toml").write_text(
        (place / "small.toml").read_text() + '[engine]\nsetup = ["no-such-module", "exit 3"]\n'
    )
    said = refused(slurm, place)
    assert "the first task has ended without an answer: " in said and "no-such-module" in said


def test_several_files_and_seeds_run_as_one_job(slurm, place):
    (place / "other.toml").write_text((place / "small.toml").read_text().replace('"small"', '"other"'))
    words = ("run", "small.toml", "other.toml", "--seeds", "1", "2")
    done = Command(slurm, place, *words, "--on", "slurm", "--pack", "2")
    said = done.end()
    assert done.process.returncode == 0 and "4 trials in 2 tasks" in said, said
    assert "4 of 4 runs are finished" in said
    alone = subprocess.run(command(*words, "--runs", "alone"), cwd=place, capture_output=True)
    assert alone.returncode == 0
    assert all_bits(place / "runs") == all_bits(place / "alone") and len(all_bits(place / "runs")) == 4
