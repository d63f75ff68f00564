"""One federation in tasks of a real Ray survives a lost node, command or head, and has the same bits."""

import signal
import subprocess
import time

import pytest

from tests.engines.slurm_cluster import wait_for
from tests.engines.test_slurm_nodes import environment, finish, place, untroubled, wait_for_rounds
from tests.lab.local.test_resume import bits
from tests.lab.local.test_run import command, lines
from tests.support.held_run import HeldRun

__all__ = ["place", "untroubled"]  # fixtures
pytestmark = [pytest.mark.engines, pytest.mark.timeout(1200)]
HERE = "127.0.0.2"
HEAD_SECONDS = 90.0  # Ray ends the driver about 60 s after the end of the head.
END_SECONDS = 10.0


def start(place, ray, *more, held=None, host=HERE):
    words = command("run", "small.toml", "--on", "ray", "--tasks", 2, "--host", host, *more)
    around = {**ray.environment, "PYTHONPATH": (held.environment if held else environment())["PYTHONPATH"]}
    return subprocess.Popen(
        words, cwd=place, env=around, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def test_a_lost_node_and_a_killed_command_change_no_bit(place, ray, untroubled):
    held = HeldRun(place / "held", 3)
    first = start(place, ray, held=held)
    wait_for_rounds(place, 3)
    ray.kill("n2")
    held.let_go()
    ray.start_node("n2")
    wait_for(lambda: len(lines(place)) > 4, 120, "a round after the loss of a node")
    first.kill()
    first.communicate()
    wait_for(lambda: not ray.left(), 30, "all tasks end with the command")
    finish(start(place, ray, "--resume"))
    assert bits(place / "runs" / "small") == untroubled
    assert ray.left() == [] and not list((place / "runs").glob("*.1"))


def test_a_killed_head_is_reported_in_one_line_and_the_same_command_continues(place, ray, untroubled):
    first = start(place, ray, held=HeldRun(place / "held", 3))
    wait_for_rounds(place, 3)
    ray.kill("head")
    begun = time.monotonic()
    said = finish(first, 1)
    assert time.monotonic() - begun < HEAD_SECONDS
    assert said.splitlines()[-1].endswith(
        "the Ray cluster has ended; the same command goes on when there is one"
    )
    wait_for(lambda: not ray.left(), 60, "no process of a task is left")
    ray.restore()
    finish(start(place, ray, "--resume"))
    assert bits(place / "runs" / "small") == untroubled


def test_a_terminated_command_leaves_no_task_after_ten_seconds(place, ray):
    run = start(place, ray, held=HeldRun(place / "held", 2))
    wait_for_rounds(place, 2)
    begun = time.monotonic()
    run.send_signal(signal.SIGTERM)
    finish(run, 1)
    wait_for(lambda: not ray.left(), END_SECONDS, "no process is left")
    assert time.monotonic() - begun < END_SECONDS


def test_a_host_that_the_nodes_do_not_reach_is_refused_before_a_task_starts(place, ray):
    refused = finish(start(place, ray, host="192.0.2.77"), 2)
    assert "--host is 192.0.2.77, but this machine cannot listen there" in refused
    assert refused.count("\n") == 1 and not (place / "runs" / "small").exists()
