"""A real run, broken off and gone on with, read back with TensorBoard's and MLflow's own readers."""

import json
import signal
import subprocess
import time
from types import SimpleNamespace

import pytest

from protofleet.coordinator.observe.rounds_file import read_rounds
from protofleet.deploy.report.flat_names import round_numbers, summary_numbers
from protofleet.deploy.trackers.tracked_file import TrackedFile
from tests.deploy.local.test_run import command, furnished, protofleet, wait_for_rounds
from tests.support.held_run import HeldRun

pytestmark = pytest.mark.slow
ROUNDS = 4
TRACKERS = ("--track", "tensorboard", "--track", "mlflow", "--track", "mlflow=http://127.0.0.1:9/")


@pytest.fixture(scope="module")
def tracked(tmp_path_factory):
    """Stopped by Ctrl-C when two rounds are written, and finished by the same command."""
    pytest.importorskip("mlflow")
    place = furnished(tmp_path_factory.mktemp("tracked"))
    options = ("run", "small.toml", "--set", f"rounds={ROUNDS}", "--set", "devices.count=2", *TRACKERS)
    held = HeldRun(place / "held", 2)
    first = subprocess.Popen(
        command(*options),
        cwd=place,
        env=held.environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    run = place / "runs" / "small"
    wait_for_rounds(place, 2)
    wait_until_tracked(run, 3, first, trackers=2)
    first.send_signal(signal.SIGINT)
    _, said = first.communicate(timeout=120)
    state = run_in_mlflow(place).info.status
    done = protofleet(*options, cwd=place, timeout=240)
    assert done.returncode == 0, done.stdout + done.stderr
    return SimpleNamespace(place=place, run=run, stopped=said, state=state, said=done.stderr)


def wait_until_tracked(run, next_round, process, trackers):
    """So many of them have got so far."""
    while process.poll() is None:
        known = (TrackedFile(run).of(one).next_round for one in ("tensorboard", "mlflow"))
        if sum(number == next_round for number in known) == trackers:
            return
        time.sleep(0.05)
    raise AssertionError(process.communicate())


def client(place):
    from mlflow.tracking import MlflowClient

    return MlflowClient(tracking_uri=f"sqlite:///{place / 'runs' / 'mlflow.db'}")


def run_in_mlflow(place):
    found = client(place)
    (run,) = found.search_runs([found.get_experiment_by_name("protofleet").experiment_id])
    return run


def events(folder):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found = EventAccumulator(str(folder), {"scalars": 0, "tensors": 0})
    found.Reload()
    return found


def test_tensorboard_reads_every_number_of_every_round_once(tracked):
    found = events(tracked.run / "tensorboard")
    read = {}
    for name in found.Tags()["scalars"]:
        for event in found.Scalars(name):
            assert (event.step, name) not in read
            read[event.step, name] = event.value
    wanted = numbers_of(tracked.run)
    assert read == pytest.approx(wanted, rel=1e-6)
    assert "settings/text_summary" in found.Tags()["tensors"]


def numbers_of(run):
    lines = read_rounds(run / "rounds.jsonl")
    assert [line["round"] for line in lines] == list(range(1, ROUNDS + 2))
    found = {(line["round"], name): value for line in lines for name, value in round_numbers(line).items()}
    summary = json.loads((run / "summary.json").read_text())
    return found | {(ROUNDS + 1, name): value for name, value in summary_numbers(summary).items()}


def test_mlflow_reads_every_number_of_every_round_once(tracked):
    run = run_in_mlflow(tracked.place)
    read = {}
    for name in run.data.metrics:
        for metric in client(tracked.place).get_metric_history(run.info.run_id, name):
            assert (metric.step, name) not in read
            read[metric.step, name] = metric.value
    assert read == pytest.approx(numbers_of(tracked.run))
    assert (run.info.run_name, tracked.state, run.info.status) == ("small", "KILLED", "FINISHED")
    assert run.data.params["method.name"] == "fedavg" and run.data.params["rounds"] == str(ROUNDS)


def test_mlflow_keeps_the_runs_files_beside_the_runs_and_nothing_in_the_working_folder(tracked):
    run = run_in_mlflow(tracked.place)
    names = [one.path for one in client(tracked.place).list_artifacts(run.info.run_id)]
    assert names == ["experiment.toml", "report.html", "rounds.jsonl", "summary.json"]
    kept = tracked.place / "runs" / "mlartifacts" / run.info.run_id / "artifacts" / "report.html"
    assert kept.read_bytes() == (tracked.run / "report.html").read_bytes()
    assert sorted(path.name for path in tracked.place.iterdir()) == ["data", "held", "runs", "small.toml"]


def test_a_tracking_server_that_is_away_is_one_line_and_the_run_ends_well(tracked):
    for said in (tracked.stopped, tracked.said):
        lines = [line for line in said.splitlines() if "mlflow=http" in line]
        assert len(lines) == 1 and "mlflow=http://127.0.0.1:9/ is left out from round 1 on (" in lines[0], (
            said
        )
        assert "Traceback" not in said
    assert len(tracked.said.splitlines()) == 1, tracked.said


def test_a_run_is_tracked_afterwards_into_a_folder_of_ones_own(tracked, tmp_path):
    done = protofleet("track", tracked.run, "--to", f"tensorboard={tmp_path / 'board'}", cwd=tmp_path)
    assert done.stdout == f"{tracked.run}: rounds 1 to {ROUNDS + 1} are in tensorboard={tmp_path / 'board'}\n"
    names = events(tmp_path / "board" / "small").Tags()["scalars"]
    assert set(names) == {name for _, name in numbers_of(tracked.run)}


def test_a_follower_ends_when_the_run_of_another_process_has_ended(tracked, tmp_path):
    """As a service's: nothing but the coordinator's own files are there."""
    run = tmp_path / "service"
    run.mkdir()
    follower = subprocess.Popen(
        command("track", run, "--to", "tensorboard", "--follow"),
        stdout=subprocess.PIPE,
        text=True,
        cwd=tmp_path,
    )
    lines = (tracked.run / "rounds.jsonl").read_text().splitlines(keepends=True)
    (run / "rounds.jsonl").write_text("".join(lines[:2]))
    wait_until_tracked(run, 3, follower, trackers=1)
    with (run / "rounds.jsonl").open("a") as file:
        file.writelines(lines[2:])
    (run / "report.html").write_text("its report")
    (run / "summary.json").write_bytes((tracked.run / "summary.json").read_bytes())
    said, _ = follower.communicate(timeout=60)
    assert follower.returncode == 0 and said == f"{run}: rounds 1 to {ROUNDS + 1} are in tensorboard\n"
