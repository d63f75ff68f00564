"""A run that is killed with all its processes continues to the same bits, and other runs are not mistaken for it."""

import json
import os
import random
import signal
import sqlite3
import statistics
import subprocess
import time
from pathlib import Path

import pytest

from protofleet.coordinator.observe.rounds_file import read_rounds
from tests.lab.local.test_run import SMALL, command, lines, place, protofleet, wait_for_rounds
from tests.support.held_run import HeldRun

__all__ = ["place"]  # a fixture
ROUNDS = 10
# Each test session kills at another moment.
SEED = int(os.environ.get("PROTOFLEET_TEST_SEED", time.time_ns() % 100_000))


def bits(folder):
    """Return the names of the objects at the end of the run, which are hashes of their content."""
    with sqlite3.connect(folder / "coordinator" / "spool.sqlite") as db:
        server = db.execute("SELECT object FROM checkpoint ORDER BY round DESC, id DESC").fetchone()[0]
    books = {
        p.parent.name: json.loads(p.read_text())["book"]["runs"][0]
        for p in (folder / "devices").glob("*/device.json")
    }
    return server, {
        name: (book["half"], [a["object"] for a in book["answers"]]) for name, book in books.items()
    }


def descendants(pid, levels=9):
    """Return the ids of the children of a process, of their children and so on."""
    listed = subprocess.run(["ps", "-e", "-o", "pid=,ppid="], capture_output=True, text=True).stdout
    parents = {int(child): int(parent) for child, parent in map(str.split, listed.splitlines())}
    found, last = set[int](), {pid}
    for _ in range(levels):
        last = {child for child, parent in parents.items() if parent in last}
        found |= last
    return found


def name_of(pid):
    """Return the name of a process, or "" if it is gone, as a list of processes may be older."""
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except (FileNotFoundError, ProcessLookupError):
        return ""


@pytest.mark.slow
def test_a_run_that_is_killed_at_a_random_moment_resumes_to_the_same_bits(place):
    (place / "small.toml").write_text(
        SMALL.format(data=place / "data", broker="auto").replace("count = 3", "count = 2")
    )
    arguments = [
        "run",
        "small.toml",
        "--set",
        f"rounds={ROUNDS}",
        "--set",
        "method.name=fedpall",
        "--set",
        "method.epochs=1",
    ]
    whole = protofleet(*arguments, "--runs", "whole", cwd=place, timeout=200)
    assert whole.returncode == 0, whole.stderr
    run = subprocess.Popen(
        command(*arguments), cwd=place, env=HeldRun(place / "held", ROUNDS - 2).environment,
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
    )  # fmt: skip
    dice = random.Random(SEED)
    wait_for_rounds(place, dice.randrange(1, 5))
    time.sleep(dice.random() * a_rounds_seconds(place / "whole" / "small"))  # any moment of a round
    family = descendants(run.pid)
    run.send_signal(signal.SIGKILL)
    run.wait()
    assert wait_until(lambda: not any(alive(child) for child in family)), "its processes end with it"
    again = protofleet(*arguments, "--resume", cwd=place, timeout=200)
    assert "is finished" not in again.stderr, (
        f"the run had ended before it was killed; PROTOFLEET_TEST_SEED={SEED}"
    )
    assert again.returncode == 0 and "continuing the unfinished run" in again.stdout, again.stderr
    # Perhaps no line of a round has the mark of the restart: the line may be written before the next round begins.
    assert "resuming in round" in (place / "runs" / "small" / "logs" / "coordinator.log").read_text()
    assert bits(place / "runs" / "small") == bits(place / "whole" / "small"), f"PROTOFLEET_TEST_SEED={SEED}"
    assert [line["round"] for line in lines(place)] == list(range(1, ROUNDS + 2))
    for one, other in zip(lines(place), read_rounds(place / "whole" / "small" / "rounds.jsonl"), strict=True):
        assert sum(one["payload"]["up"].values()) >= sum(other["payload"]["up"].values()), "no byte is lost"


def a_rounds_seconds(folder):
    return statistics.median(line["seconds"] for line in read_rounds(folder / "rounds.jsonl"))


def alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):  # the second: it ends while it is read
        return False


def wait_until(true, seconds=20):
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if true():
            return True
        time.sleep(0.05)
    return False


@pytest.mark.parametrize(
    ("left", "words"),
    [("nothing", "runs/small does not exist"), ("a finished run", "runs/small is finished")],
)
def test_resume_does_not_start_a_new_run(place, left, words):
    if left == "a finished run":
        folder = place / "runs" / "small"
        folder.mkdir(parents=True)
        (folder / "experiment.toml").write_text("")
        (folder / "summary.json").write_text("{}")
    done = protofleet("run", "small.toml", "--resume", cwd=place)
    assert done.returncode == 2 and "there is no run to resume" in done.stderr and words in done.stderr
    assert left != "nothing" or not (place / "runs" / "small").exists()


def test_resume_is_refused_with_fresh_and_with_several_seeds(place):
    done = protofleet("run", "small.toml", "--resume", "--fresh", cwd=place)
    assert done.returncode == 2 and "not allowed with" in done.stderr
    done = protofleet("run", "small.toml", "--resume", "--seeds", "1", "2", cwd=place)
    assert done.returncode == 2 and "--resume is for one run" in done.stderr
