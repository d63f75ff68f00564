"""A coordinator is moved in the middle of a round, and its runs have the bits of runs that were not moved."""

import os
import signal

import pytest

from protofleet.cli.main import main
from protofleet.coordinator.round.policy import Policy
from tests.hostile.federation import Federation
from tests.hostile.test_run_queue import EXPERIMENT, Operator

pytestmark = [pytest.mark.broker, pytest.mark.slow]

# The server half waits before the end of round 2 until a file is there, so the move comes in the middle of a round.
WAITING = """
import time
from pathlib import Path
from protofleet.coordinator.server.runner import ServerRunner
step = ServerRunner.step
def stepped(self, advance, *more):
    while advance.round == 2 and not Path({go!r}).exists():
        time.sleep(0.05)
    return step(self, advance, *more)
ServerRunner.step = stepped
"""
POLICY = Policy(quorum=2, gather=2, settle_seconds=0.2)


@pytest.fixture
def f(tmp_path):
    with Federation(tmp_path, "one", "two") as made:
        yield made


def hand_over(f, process, archive):
    """Hand over the coordinator of a process; the command has its settings file."""
    file = f.folder / f"coordinator-{f.processes.index(process)}.toml"
    return main(["hand-over", str(file), "--to", str(archive)])


def test_a_queue_that_is_moved_during_a_round_has_the_bits_of_a_queue_that_stays(f, capsys, tmp_path):
    operator = Operator(f, capsys)
    old = f.service(planted=WAITING.format(go=str(tmp_path / "go")))
    f.wait_until(f.answers, "the service")
    for seed, name in enumerate(("red", "blue"), 1):
        operator.submit(name, text=EXPERIMENT.replace("seed = 1", f"seed = {seed}"))
    f.device("one", stays=True), f.device("two", stays=True)
    f.wait_until(
        lambda: any((operator.runs / name / "rounds.jsonl").exists() for name in ("red", "blue")), "a round"
    )
    capsys.readouterr()
    archive = tmp_path / "lab.tar"
    assert hand_over(f, old, archive) == 0
    words = capsys.readouterr().out
    assert "runs: blue, red" in words and "The archive holds no keys." in words
    assert f.wait_for_end(old) == 0
    assert "local:" in f.log_of(old) and "hand-over: the coordinator ends" in f.log_of(old)
    again = f.service()
    assert f.wait_for_end(again) == 3
    assert f"was handed over to {archive} and never starts here again" in f.log_of(again)
    # The other machine has the same broker and the same enrolled folder.
    operator.runs = tmp_path / "elsewhere"
    new = f.service(folder=operator.runs, options=("--from", str(archive)))
    operator.wait_for(120.0, red="finished", blue="finished")
    assert "was unpacked into the queue in" in f.log_of(new)
    for seed, name in enumerate(("red", "blue"), 1):
        text = EXPERIMENT.replace("seed = 1", f"seed = {seed}")
        assert operator.submit(f"{name}-stays", text=text) == 0
        operator.wait_for(120.0, **{f"{name}-stays": "finished"})
        assert operator.bits(name) == operator.bits(f"{name}-stays") and len(operator.bits(name)) > 1
    assert "Traceback" not in "".join(map(f.log_of, f.processes))


def test_the_run_of_a_file_can_be_moved_and_a_second_copy_of_it_ends_the_first(f, capsys, tmp_path):
    go = tmp_path / "go"
    waits, settings = WAITING.format(go=str(go)), {"policy": POLICY, "rounds": 3, "name": "run"}
    old = f.coordinator(planted=waits, **settings)
    f.device("one", stays=True), f.device("two", stays=True)
    f.wait_until(lambda: len(f.rounds()) == 1, "the first round")
    assert hand_over(f, old, tmp_path / "run.tar") == 0
    assert f.wait_for_end(old) == 0
    archive = ("--from", str(tmp_path / "run.tar"))
    new = f.coordinator(planted=waits, folder=str(tmp_path / "new"), options=archive, **settings)
    f.wait_until(lambda: "round 2" in f.log_of(new), "the second round")
    f.stays(lambda: new.child.poll() is None, "the new coordinator to run", 1.1)  # An epoch is a second.
    blind = (*archive, "--own-broker")  # It does not look whether another coordinator leads.
    third = f.coordinator(planted=waits, folder=str(tmp_path / "third"), options=blind, **settings)
    assert f.wait_for_end(new) == 3
    assert "a later coordinator conducts this federation" in new.last_word()
    os.kill(third.child.pid, signal.SIGKILL)
    go.touch()
    # The command of its unit is the same at each start, and does not unpack again.
    third = f.coordinator(folder=str(tmp_path / "third"), options=archive, **settings)
    assert f.wait_for_end(third) == 0, third.last_word()
    assert "it is not unpacked again" in f.log_of(third)
    stays = f.coordinator(folder=str(tmp_path / "stays"), **settings | {"name": "stays"})
    assert f.wait_for_end(stays) == 0, stays.last_word()

    def bits(folder, name):
        return {path.name for path in (tmp_path / folder / name / "coordinator" / "snapshots").glob("*.body")}

    assert bits("third", "run") == bits("stays", "stays") and len(bits("stays", "stays")) > 1
    assert "Traceback" not in "".join(map(f.log_of, f.processes))
