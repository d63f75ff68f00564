"""Each problem of a real Ray is reported in one line, before a trial is submitted to it."""

from __future__ import annotations

import pytest

from protofleet.federation.brokers.ports import free_port
from tests.engines.test_slurm_sweeps import Command
from tests.engines.test_slurm_troubles import ONE, engine, give_nodes_another_version, place

__all__ = ["place"]  # a fixture
pytestmark = [pytest.mark.engines, pytest.mark.timeout(1200)]


def sweep(ray, place, *more):
    return Command(ray, place, "sweep", "small.toml", *ONE, "--on", "ray", *more)


def refused(ray, place, *more):
    """Run a command that must be refused with exit code 2, and return its one line of errors."""
    done = sweep(ray, place, *more)
    said = done.end(240)
    assert done.process.returncode == 2, said
    found = [line for line in said.splitlines() if line.startswith("protofleet: ")]
    assert len(found) == 1 and "Traceback" not in said, said
    assert not list((place / "runs").glob("small-*"))
    return found[0]


def test_an_address_without_a_cluster_is_refused(ray, place):
    address = f"127.0.0.1:{free_port('127.0.0.1')}"
    said = refused(ray, place, "--ray", f"address={address}")
    assert f"no Ray cluster answers at {address} " in said and "leave out --on" in said


def test_a_folder_that_a_node_does_not_see_is_refused(ray, place):
    (place / "runs").mkdir()
    ray.kill("n1", "n2")
    ray.start_node("n3", hidden=place / "runs")
    said = refused(ray, place)
    assert f"a node does not see {place}/runs/sweeps/small/engine" in said and "--runs" in said


def test_a_lock_that_does_not_hold_is_refused(ray, place):
    """All nodes share a kernel, so the first task gets a new file in place of the locked one."""
    lock = place / "runs" / "sweeps" / "small" / "engine" / "check.lock"
    engine(place, f"cp {lock} {lock}.new", f"mv {lock}.new {lock}")
    said = refused(ray, place)
    assert f"a lock on {lock} does not hold on node" in said and "--trust-locks" in said
    done = sweep(ray, place, "--trust-locks")
    assert done.end(300) and done.process.returncode == 0, done.said


def test_a_node_with_another_version_is_refused(ray, place):
    give_nodes_another_version(place)
    assert "has protofleet 9.9.9, and this machine has" in refused(ray, place)


def test_the_error_for_a_node_that_cannot_run_the_task_has_the_last_line_of_its_log(ray, place):
    engine(place, "no-such-module", "exit 3")
    said = refused(ray, place)
    assert "the first task has ended without an answer: " in said and "no-such-module" in said


def test_a_claim_that_no_node_can_meet_is_reported_and_the_command_waits(ray, place):
    done = sweep(ray, place, "--ray", "num_gpus=1")
    done.wait_for_words("(num_gpus is 1, and the nodes that are there have at most 0)", 240)
    done.process.terminate()
    assert done.process.wait(60) == 1
