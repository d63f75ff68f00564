"""Tests that the measures run, and that a failed run gives an error and no figure."""

import subprocess
import sys
import time
from dataclasses import replace

import pytest

from benchmarks.harness.busy import BusyProcesses
from benchmarks.harness.compare import once
from benchmarks.harness.measure import Figure, MeasureError
from benchmarks.harness.processes import Family
from benchmarks.harness.syncs import Syncs
from benchmarks.harness.trees import ROOT, TreeError, link_packages, other_tree, this_tree
from benchmarks.measures.answers import PROTOTYPES, Answers, Swarm
from benchmarks.measures.broadcast import Broadcast
from benchmarks.measures.catalog import ALL, BESIDE, TRAINING
from benchmarks.measures.crowd import Crowd, Restart
from benchmarks.measures.first_question import Noted, first_task
from benchmarks.measures.idle import demand_idle
from benchmarks.measures.program import Program
from benchmarks.measures.run import Run
from benchmarks.measures.run_memory import RunMemory
from benchmarks.measures.two_slots import demand_order
from benchmarks.programs.thin_line import Direction, Line
from protofleet.edge_client.conversation.hello_timer import SPREAD_SECONDS
from tests.conftest import PATIENCE

SYNC = "import os, sys; f = open(sys.argv[1], 'w'); [os.fsync(f) for _ in range(3)]; os.fdatasync(f)"


@pytest.fixture(scope="module")
def tree(tmp_path_factory):
    return this_tree(tmp_path_factory.mktemp("tree"))


def test_each_measure_has_its_name_a_description_of_one_line_and_figures():
    for name, measure in ALL.items():
        assert name == measure.name and measure.what and "\n" not in measure.what
        assert measure.figures


def test_syncs_of_a_process_are_counted_and_can_be_slowed_down(tmp_path):
    syncs = Syncs(tmp_path, pause_seconds=0.05)
    command = [
        sys.executable,
        "-c",
        f"import time; t = time.monotonic(); {SYNC}; print(time.monotonic() - t)",
    ]
    for times in (1, 2):
        done = subprocess.run(
            [*command, str(tmp_path / "file")], env=syncs.environment, capture_output=True, check=True
        )
        assert syncs.count == 4 * times
        assert float(done.stdout) >= 4 * 0.05


@pytest.mark.slow
def test_the_measured_code_is_that_of_the_given_tree(tree, tmp_path):
    other = tmp_path / "elsewhere"
    other.mkdir()
    for part in ("pyproject.toml", "protofleet", "protocol", "runtime"):
        (other / part).symlink_to(ROOT / part)
    link_packages(other, tmp_path / "links")
    found = subprocess.run(
        [tree.python, "-c", "import protofleet.protocol as p; print(p.__path__[0])"],
        env=replace(tree, path=(tmp_path / "links",)).environment(), cwd=tmp_path,
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert found.stdout.strip() == str(tmp_path / "links" / "protofleet" / "protocol")


def test_a_tree_that_is_not_a_checkout_and_not_a_commit_is_refused(tmp_path):
    with pytest.raises(TreeError, match="no-such-ref is neither a folder nor a commit"):
        other_tree("no-such-ref", tmp_path)
    (tmp_path / "empty").mkdir()
    with pytest.raises(TreeError, match="is not a checkout of protofleet"):
        other_tree(str(tmp_path / "empty"), tmp_path)


@pytest.mark.slow
def test_a_program_that_fails_or_lacks_a_figure_is_an_error(tree):
    lacking = Program("x", "x", "bare", {"no such": Figure("")}, {"devices": 1, "examples": 32, "rounds": 1})
    with pytest.raises(MeasureError, match="bare did not print no such"):
        once(lacking, tree)
    failing = Program("x", "x", "bare", {"trainer over bare": Figure("")}, {"devices": "many"})
    with pytest.raises(MeasureError, match="bare failed"):
        once(failing, tree)


def test_a_family_ends_all_its_processes_and_reports_the_error_of_a_failed_one(tmp_path):
    child = "import subprocess, sys; subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'])"
    with Family(tmp_path) as family:
        family.finish("parent", 20, sys.executable, "-c", child)
        assert len(family.members()) == 1 and family.cpu_seconds() >= 0
        with pytest.raises(RuntimeError, match="oh no"):
            family.finish("failing", 20, sys.executable, "-c", "raise SystemExit('oh no')")
    assert not family.members()


@pytest.mark.slow
def test_training_is_compared_with_a_plain_loop(tree):
    found = once(replace(TRAINING, arguments={"devices": 1, "examples": 64, "rounds": 2}), tree)
    assert 0.1 < found["trainer over bare"] < 10


@pytest.mark.slow
def test_the_bytes_outside_the_arrays_are_the_same_each_time(tree):
    assert once(BESIDE, tree) == once(BESIDE, tree)


@pytest.mark.slow
@pytest.mark.broker
def test_a_coordinator_with_robots_is_measured(tree):
    found = once(Answers(4, rounds=3), tree)
    assert 1.0 < found["wire / payload"] < 2.0
    assert found["syncs an answer"] > 0 and found["coordinator's CPU an answer"] > 0


@pytest.mark.slow
@pytest.mark.broker
def test_robots_receive_a_coded_broadcast_as_a_delta(tree, tmp_path):
    """A robot that does not use the delta fetches the whole broadcast too, as no device does."""
    with Swarm(tree, tmp_path, 3, 3, learning={**PROTOTYPES, "codec": "small"}) as swarm:
        swarm.at_round(3)
        last = swarm.finish()[2]
    assert sum(last["payload"]["down"].values()) < sum(last["uncoded"]["down"].values()) / 2


@pytest.mark.slow
@pytest.mark.broker
def test_a_model_for_many_robots_is_measured(tree):
    found = once(Broadcast(20, rounds=2), tree)
    assert 1.0 < found["wire / payload"] < 1.2 and found["down: wire / payload"] < 3


@pytest.mark.slow
@pytest.mark.broker
def test_a_fleet_in_which_few_devices_get_a_task_is_measured(tree):
    found = once(Crowd(6, asked=2, rounds=2), tree)
    assert found["coordinator's peak"] > 50 and found["answers said again"] == 0


@pytest.mark.slow
@pytest.mark.broker
def test_robots_reconnect_after_a_restart_of_the_broker(tree):
    found = once(Restart(12), tree)
    assert 0 < found["hellos are spread over"] <= SPREAD_SECONDS + 2.0


@pytest.mark.slow
@pytest.mark.broker
def test_a_coordinator_that_ends_early_is_an_error(tree):
    """The coordinator is from a tree with different settings."""
    strange = replace(tree, path=(tree.path[0].parent / "nothing",))
    with pytest.raises(MeasureError, match="a process ended before round 1"):
        once(Answers(2, rounds=2), strange)


@pytest.mark.slow
def test_the_command_lists_all_measures_and_refuses_an_unknown_one():
    command = [sys.executable, "-m", "benchmarks"]
    done = subprocess.run([*command, "list"], cwd=ROOT, capture_output=True, text=True, check=True)
    assert [line.split()[0] for line in done.stdout.splitlines()] == list(ALL)
    done = subprocess.run([*command, "speed"], cwd=ROOT, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (
        2,
        f"benchmarks: no measure speed; `list` shows all {len(ALL)}\n",
    )


def test_a_line_delivers_bytes_at_its_rate_and_in_order():
    direction = Direction(Line(8000.0, round_trip_seconds=0.4, loss=0.0), seed=1)
    assert [direction.arrival(1000, 0.0) for _ in range(3)] == pytest.approx([1.2, 2.2, 3.2])
    assert direction.arrival(1000, 10.0) == pytest.approx(11.2), (
        "an idle line does not save bandwidth for later"
    )


def test_a_lost_segment_delays_only_the_segments_behind_it():
    whole, lossy = (Direction(Line(1e6, 0.3, loss), seed=3) for loss in (0.0, 0.02))
    plain, stalled = ([d.arrival(1448, 0.0) for _ in range(700)] for d in (whole, lossy))
    assert stalled == sorted(stalled)
    losses = sum(b - a > 0.5 for a, b in zip([0.0, *stalled], stalled))
    assert losses > 3
    assert 0 < stalled[-1] - plain[-1] < 700 * 0.05 * 8 * 1448 / 1e6 + 0.5, (
        "stalls overlap with what is sent meanwhile"
    )


def test_child_processes_of_a_program_run_the_measured_code(tree, tmp_path, monkeypatch):
    """A process that starts in the folder of a checkout would import the `protofleet` there, which is another one."""
    monkeypatch.chdir(ROOT)
    child = "import protofleet.protocol as p; print(p.__path__[0])"
    code = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {child!r}], check=True)"
    with Family(tmp_path, tree.environment()) as family:
        found = family.finish("parent", 30, tree.python, "-P", "-c", code).strip()
    assert found == str(tree.path[0] / "protofleet" / "protocol")


@pytest.mark.slow
def test_the_memory_of_a_run_is_sampled_during_its_rounds(tree):
    figures = once(RunMemory(Run(devices=2, rounds=3)), tree)
    assert figures["memory of all at most"] >= figures["memory of all, median through the rounds"] > 50


def test_busy_processes_use_cpu_only_while_they_run():
    with BusyProcesses(2) as busy:
        with busy.running():
            deadline = time.monotonic() + PATIENCE
            while (used := busy.cpu_seconds()) < 0.2 and time.monotonic() < deadline:
                time.sleep(0.01)
        assert used >= 0.2
        used = busy.cpu_seconds()
        time.sleep(0.3)  # Two running processes would use more in this time.
        assert busy.cpu_seconds() == used
    assert busy.cpu_seconds() == 0


def test_runs_that_were_not_concurrent_or_not_in_turn_are_an_error():
    def rows(*times):
        return [{"started": started, "ended": ended} for started, ended in times]

    demand_order(rows((0, 20), (1, 20)), slots=2)
    demand_order(rows((11, 20), (0, 11)), slots=1)
    for times, slots in (((0, 20), (10, 30)), 2), (((0, 20), (18, 30)), 1):
        with pytest.raises(MeasureError, match=f"slots = {slots}, the two runs were active together for"):
            demand_order(rows(*times), slots)


def test_a_robot_that_was_not_idle_or_a_device_that_was_not_free_is_an_error():
    told = {"connected": 3, "answers": 0}
    demand_idle(told, told, 3)
    for more in ({"connected": 2}, {"answers": 1}, {"connections lost": 1}):
        with pytest.raises(MeasureError, match="not connected and idle"):
            demand_idle(told, told | more, 3)

    noted = [Noted(n, "one", kind, "red") for n, kind in enumerate(("task", "receipt", "welcome"))]
    busy, task = Noted(8.0, "two", "task", "red"), Noted(9.0, "one", "task", "blue")
    assert first_task([*noted, busy, replace(task, device="two"), task], "blue") is task
    with pytest.raises(MeasureError, match="no device was free when it got its task of blue"):
        first_task([noted[0], task], "blue")
