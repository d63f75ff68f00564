"""A real run that was stopped and continued is read back with TensorBoard's and MLflow's own readers."""

import itertools
import json
import shutil
import signal
import subprocess
import time
from types import SimpleNamespace

import pytest

from protofleet.coordinator.observe.rounds_file import read_rounds
from protofleet.lab.report.flat_names import round_numbers, summary_numbers
from protofleet.lab.trackers.destinations import Destination
from protofleet.lab.trackers.following import follow
from protofleet.lab.trackers.tracked_file import TrackedFile
from tests.lab.local.test_run import command, furnished, protofleet
from tests.support.held_run import HeldRun
from tests.support.mlflow_server import MLflowServer

pytestmark = pytest.mark.slow
ROUNDS = 4
KEPT = {"rounds.jsonl", "summary.json", "experiment.toml"}
OURS = ("tensorboard", "mlflow")
TRACKERS = ("--track", "tensorboard", "--track", "mlflow", "--track", "mlflow=http://127.0.0.1:9/")


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    pytest.importorskip("mlflow")
    found = MLflowServer(tmp_path_factory.mktemp("server") / "mlflow")
    yield found
    found.kill()


@pytest.fixture(scope="module")
def tracked(server, tmp_path_factory):
    """Run an experiment that Ctrl-C stops after two written rounds and the same command finishes.

    While the second command runs, the tracking server dies when it has three rounds.
    """
    place = furnished(tmp_path_factory.mktemp("tracked"))
    options = ("run", "small.toml", "--set", f"rounds={ROUNDS}", "--set", "devices.count=2", *TRACKERS)
    run = place / "runs" / "small"
    first, _ = held_at(2, options, place)
    wait_until_tracked(run, 3, first, OURS)
    first.send_signal(signal.SIGINT)
    _, said = first.communicate(timeout=120)
    state = run_in(database(place)).info.status
    server.wait()
    second, held = held_at(3, (*options, "--track", f"mlflow={server.address}"), place)
    wait_until_tracked(run, 4, second, [*OURS, f"mlflow={server.address}"])
    server.kill()
    held.let_go()
    server.start()  # the start takes longer than the rest of the run
    out, errors = second.communicate(timeout=240)
    assert second.returncode == 0, out + errors
    return SimpleNamespace(place=place, run=run, stopped=said, state=state, out=out, said=errors)


def held_at(rounds, options, place):
    held = HeldRun(place / f"held-{rounds}", rounds)
    process = subprocess.Popen(
        command(*options),
        cwd=place,
        env=held.environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    return process, held


def wait_until_tracked(run, next_round, process, trackers):
    while process.poll() is None:
        if {TrackedFile(run).of(one).next_round for one in trackers} == {next_round}:
            return
        time.sleep(0.05)
    raise AssertionError(process.communicate())


def client(address):
    from mlflow.tracking import MlflowClient

    return MlflowClient(tracking_uri=address)


def database(place):
    return f"sqlite:///{place / 'runs' / 'mlflow.db'}"


def run_in(address, name="small"):
    found = client(address)
    runs = found.search_runs([found.get_experiment_by_name("protofleet").experiment_id])
    (run,) = (one for one in runs if one.info.run_name == name)
    return run


def metrics_in(address, run):
    """Return (round, name) -> value, and check that each pair is there once."""
    read = {}
    for name in run.data.metrics:
        for metric in client(address).get_metric_history(run.info.run_id, name):
            assert (metric.step, name) not in read
            read[metric.step, name] = metric.value
    return read


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
    run = run_in(database(tracked.place))
    assert metrics_in(database(tracked.place), run) == pytest.approx(numbers_of(tracked.run))
    assert (run.info.run_name, tracked.state, run.info.status) == ("small", "KILLED", "FINISHED")
    assert run.data.params["method.name"] == "fedavg" and run.data.params["rounds"] == str(ROUNDS)


def test_mlflow_stores_the_files_of_a_run_in_the_folder_of_the_runs(tracked):
    run = run_in(database(tracked.place))
    names = [one.path for one in client(database(tracked.place)).list_artifacts(run.info.run_id)]
    assert names == ["experiment.toml", "report.html", "rounds.jsonl", "summary.json"]
    kept = tracked.place / "runs" / "mlartifacts" / run.info.run_id / "artifacts" / "report.html"
    assert kept.read_bytes() == (tracked.run / "report.html").read_bytes()
    assert sorted(path.name for path in tracked.place.iterdir()) == [
        "data", "held-2", "held-3", "runs", "small.toml",
    ]  # fmt: skip


def test_an_unreachable_tracking_server_is_reported_in_one_line_and_the_run_succeeds(tracked):
    for said in (tracked.stopped, tracked.said):
        lines = [line for line in said.splitlines() if "mlflow=http://127.0.0.1:9/" in line]
        assert len(lines) == 1 and "mlflow=http://127.0.0.1:9/ is left out from round 1 on (" in lines[0], (
            said
        )
        assert "Traceback" not in said
    assert len(tracked.stopped.splitlines()) == 2, tracked.stopped  # the two lines of the stop
    assert tracked.out.splitlines()[-1] == "report: runs/small/report.html" and "http" not in tracked.out


def test_the_named_command_sends_the_rounds_that_a_killed_tracking_server_missed(tracked, server):
    (line,) = (line for line in tracked.said.splitlines() if server.address in line)
    to = f"protofleet track runs/small --to mlflow={server.address}"
    assert line.startswith(f"protofleet: mlflow={server.address} is left out from round 4 on (")
    assert line.endswith(f"; {to} sends the later rounds")
    server.wait()
    assert run_in(server.address).info.status == "RUNNING", "no process could set the state"
    done = protofleet(*to.split()[1:], cwd=tracked.place)
    there = f"runs/small: rounds 1 to {ROUNDS + 1} are in mlflow={server.address}\n"
    assert (done.returncode, done.stdout, done.stderr) == (0, there, "")
    run = run_in(server.address)
    assert run.info.status == "FINISHED"
    assert metrics_in(server.address, run) == pytest.approx(numbers_of(tracked.run))
    files = [one.path for one in client(server.address).list_artifacts(run.info.run_id)]
    assert files == ["experiment.toml", "report.html", "rounds.jsonl", "summary.json"]


@pytest.mark.parametrize("dies_at", [0, 2, 5, 7])
def test_mlflow_has_each_number_once_after_an_error_at_any_call(tracked, tmp_path, monkeypatch, dies_at):
    """A finished run makes calls with few numbers each. The next follower sends the numbers after a failed call."""
    from mlflow.exceptions import MlflowException
    from mlflow.tracking import MlflowClient

    run = tmp_path / f"dies-{dies_at}"
    shutil.copytree(tracked.run, run, ignore=lambda folder, names: {*names} - KEPT)
    monkeypatch.setattr("protofleet.lab.trackers.mlflow.MOST_METRICS", 70)
    calls = itertools.count(1)

    def dying(method):
        def call(*arguments, **options):
            if next(calls) > dies_at:
                raise MlflowException("the server is away")
            return method(*arguments, **options)

        return call

    said, to = [], Destination("mlflow", database(tracked.place))
    with monkeypatch.context() as dead:
        for name in ("log_batch", "log_artifact", "log_text", "set_terminated"):
            dead.setattr(MlflowClient, name, dying(getattr(MlflowClient, name)))
        assert follow(to, run, said.append, to_the_end=False).failed and "the server is away" in said[0]
    assert not follow(to, run, said.append, to_the_end=False).failed and len(said) == 1
    found = run_in(database(tracked.place), run.name)
    assert metrics_in(database(tracked.place), found) == pytest.approx(numbers_of(run))
    assert found.info.status == "FINISHED"


def test_a_finished_run_can_be_tracked_into_another_folder(tracked, tmp_path):
    done = protofleet("track", tracked.run, "--to", f"tensorboard={tmp_path / 'board'}", cwd=tmp_path)
    assert done.stdout == f"{tracked.run}: rounds 1 to {ROUNDS + 1} are in tensorboard={tmp_path / 'board'}\n"
    names = events(tmp_path / "board" / "small").Tags()["scalars"]
    assert set(names) == {name for _, name in numbers_of(tracked.run)}


def test_a_follower_ends_when_the_run_of_another_process_has_ended(tracked, tmp_path):
    """The run is like that of a service: only the coordinator's own files are there."""
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
    wait_until_tracked(run, 3, follower, ["tensorboard"])
    with (run / "rounds.jsonl").open("a") as file:
        file.writelines(lines[2:])
    (run / "report.html").write_text("its report")
    (run / "summary.json").write_bytes((tracked.run / "summary.json").read_bytes())
    said, _ = follower.communicate(timeout=60)
    assert follower.returncode == 0 and said == f"{run}: rounds 1 to {ROUNDS + 1} are in tensorboard\n"
