"""A run's folder belongs to one process: a second start is refused, and a failed start blocks no later one."""

import errno
import os
import signal
import socket
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from protofleet.cli.main import main
from protofleet.lab.local import batch
from protofleet.lab.local.experiment import read_experiment, recorded
from protofleet.lab.local.run import giving_back, prepare_folder
from protofleet.lab.local.sole_use import InUseError, cannot_be_made, sole_use
from protofleet.protocol.settings.reader import SettingsError, write_toml
from protofleet.runtime.command.errors import RunError, StoppedError
from tests.lab.local.test_run import ROOT, ROUNDS, lines, place, protofleet, start, wait_for_rounds
from tests.support.held_run import HeldRun
from tests.support.small_experiment import TWO

__all__ = ["place"]  # a fixture
HOLDER = (
    "import sys, time; from pathlib import Path; from protofleet.lab.local.sole_use import sole_use\n"
    "with sole_use(Path(sys.argv[1])): print(flush=True); time.sleep(600)"
)


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "two.toml"
    path.write_text(TWO)
    return path


def holder(folder):
    """Start a process and return it when it holds the folder."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(folder)], stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    process.stdout.readline()
    return process


def test_a_second_command_is_refused_until_the_process_that_uses_the_folder_ends(file, tmp_path, capsys):
    runs = tmp_path / "runs"
    first = holder(runs / "two")
    try:
        assert main(["run", str(file), "--runs", str(runs), "--fresh"]) == 2
        said = capsys.readouterr().err
        assert f"runs/two is in use by process {first.pid} on " in said and " since 20" in said
        assert (
            said.count("\n") == 1
            and "wait until that process has ended, or" in said
            and "--set name=..." in said
        )
    finally:
        first.kill()
        first.wait()
    with sole_use(runs / "two"), pytest.raises(InUseError), sole_use(runs / "two"):
        pass
    assert not (runs / "two").exists(), "the refused start has made no folder"


def test_a_batch_is_refused_before_its_first_run_if_one_of_its_runs_is_in_use(file, tmp_path, monkeypatch):
    started = []
    monkeypatch.setattr(batch, "run_experiment", lambda experiment, *rest: started.append(experiment.name))
    with sole_use(tmp_path / "runs" / "two-s2"):
        with pytest.raises(InUseError):
            batch.Batch(tmp_path / "runs").run_all(batch.plan_runs([file], [1, 2], []))
        assert started == []
        assert main(["sweep", str(file), "--grid", "method.lr=0.1", "--runs", str(tmp_path / "runs")]) == 0
    with sole_use(tmp_path / "runs" / "two-centralised"):
        assert main(["centralised", str(file), "--runs", str(tmp_path / "runs")]) == 2


def test_a_sweep_starts_no_trial_if_the_runs_folder_cannot_be_made(file, tmp_path, capsys):
    (tmp_path / "afile").touch()
    assert main(["sweep", str(file), "--grid", "method.lr=0.1,1", "--runs", str(tmp_path / "afile")]) == 2
    out, err = capsys.readouterr()
    assert "---" not in out and "failed" not in out
    assert err.endswith("afile cannot be made: Not a directory; name another folder with --runs\n")
    assert not list(tmp_path.glob(".*.probe"))


def test_a_full_disk_is_a_run_error_and_a_read_only_disk_is_a_settings_error():
    full, read_only = OSError(errno.ENOSPC, "No space left"), OSError(errno.EROFS, "Read-only file system")
    assert isinstance(cannot_be_made(Path("runs"), full), RunError)
    assert isinstance(cannot_be_made(Path("runs"), read_only), SettingsError)


def test_a_batch_ends_at_a_run_that_another_command_uses(file, tmp_path, monkeypatch):
    def run(experiment, *rest):
        raise InUseError("in use")

    monkeypatch.setattr(batch, "run_experiment", run)
    with pytest.raises(InUseError):
        batch.Batch(tmp_path / "runs").run_all(batch.plan_runs([file], [1, 2], []))


def unfinished(runs, round_of_snapshot):
    """Write the folder that a start with other settings leaves before it writes a line."""
    (runs / "two" / "coordinator").mkdir(parents=True)
    (runs / "two" / "experiment.toml").write_text("rounds = 99\n")
    with sqlite3.connect(runs / "two" / "coordinator" / "spool.sqlite") as db:
        db.execute("CREATE TABLE checkpoint (id INTEGER PRIMARY KEY, round INTEGER)")
        db.execute("INSERT INTO checkpoint (round) VALUES (?)", [round_of_snapshot])


def test_a_run_without_a_finished_round_is_renamed_for_other_settings(file, tmp_path, capsys):
    experiment, runs = read_experiment(file, []), tmp_path / "runs"
    unfinished(runs, 1)
    prepare_folder(experiment, runs, fresh=False)
    assert "the earlier run is now in " in capsys.readouterr().out
    assert (runs / "two.1" / "experiment.toml").exists() and not any((runs / "two").iterdir())


@pytest.mark.parametrize("how", ["by its lines", "by its copied lines", "by its snapshots"])
def test_a_run_with_a_finished_round_is_not_renamed_for_other_settings(file, tmp_path, how):
    unfinished(tmp_path, 2 if how == "by its snapshots" else 1)
    if how != "by its snapshots":
        name = "rounds.jsonl" if how == "by its lines" else "rounds.copy.jsonl"
        (tmp_path / "two" / name).write_text("torn")
    with pytest.raises(SettingsError, match="holds an unfinished run with other settings"):
        prepare_folder(read_experiment(file, []), tmp_path, fresh=False)


def test_a_run_is_resumed_with_another_budget_but_not_with_other_rounds(file, tmp_path, capsys):
    (tmp_path / "two").mkdir()
    written = read_experiment(file, ["budget.bytes_per_device=5 MB"])
    (tmp_path / "two" / "experiment.toml").write_text(write_toml(recorded(written)))
    (tmp_path / "two" / "rounds.jsonl").write_text("torn")
    raised = ["budget.bytes_per_device=9 MB", "budget.month_bytes_per_device=1 GB"]
    for other in (raised, []):
        prepare_folder(read_experiment(file, other), tmp_path, fresh=False, resume=True)
        assert "with another budget; the bytes so far count" in capsys.readouterr().out
    with pytest.raises(SettingsError, match="continue this run with the new budget with --resume, rename"):
        prepare_folder(read_experiment(file, raised), tmp_path, fresh=False)
    with pytest.raises(SettingsError, match="other settings; rename the folder of this run"):
        prepare_folder(read_experiment(file, [*raised, "rounds=7"]), tmp_path, fresh=False, resume=True)


def finished(runs):
    """Write the files of an earlier run that had other settings."""
    (runs / "two").mkdir(parents=True)
    (runs / "two" / "experiment.toml").write_text("rounds = 99\n")
    (runs / "two" / "summary.json").write_text("{}")


def test_an_unreachable_broker_is_reported_before_an_earlier_run_is_renamed(file, tmp_path, capsys):
    finished(tmp_path / "runs")
    with socket.socket() as closed:  # bound, but no process listens
        closed.bind(("127.0.0.1", 0))
        address = f"broker.address.port={closed.getsockname()[1]}"
        words = ["--set", "broker.kind=external", "--set", address, "--runs", str(tmp_path / "runs")]
        assert main(["run", str(file), *words]) == 1
        assert main(["run", str(file), *words, "--seeds", "1"]) == 1
    out, err = capsys.readouterr()
    assert "refused" in err and "the earlier run is now" not in out
    assert [path.name for path in (tmp_path / "runs").iterdir() if path.is_dir()] == ["two"]
    assert (tmp_path / "runs" / "two" / "summary.json").exists()


def test_the_earlier_run_gets_its_folder_back_if_a_start_fails(file, tmp_path, capsys):
    finished(tmp_path)
    folder = tmp_path / "two"
    earlier = prepare_folder(read_experiment(file, []), tmp_path, fresh=False)
    with pytest.raises(RunError, match=r"see \S+/two\.2/logs"), giving_back(earlier, folder):
        raise RunError(f"see {folder}/logs")
    assert (folder / "summary.json").exists() and not earlier.exists()
    assert f"the earlier run is in {folder} again" in capsys.readouterr().out


@pytest.mark.parametrize("how", ["it was stopped", "it has ended a round"])
def test_a_start_that_can_be_continued_keeps_its_folder(file, tmp_path, how):
    finished(tmp_path)
    earlier = prepare_folder(read_experiment(file, []), tmp_path, fresh=False)
    error = StoppedError("stopped") if how == "it was stopped" else RunError("a device failed")
    if how == "it has ended a round":
        (tmp_path / "two" / "rounds.jsonl").write_text("{}\n")
    with pytest.raises(RunError), giving_back(earlier, tmp_path / "two"):
        raise error
    assert (earlier / "summary.json").exists() and not (tmp_path / "two" / "summary.json").exists()


@pytest.mark.slow
def test_a_run_in_use_is_refused_and_the_next_command_continues_it_after_a_kill(place):
    first = start(place, held := HeldRun(place / "held", 3))
    wait_for_rounds(place, 2)
    for more in ([], ["--fresh"], ["--resume"]):
        second = protofleet("run", "small.toml", "--set", f"rounds={ROUNDS}", *more, cwd=place)
        assert second.returncode == 2 and f"in use by process {first.pid} on " in second.stderr
        assert second.stderr.count("\n") == 1 and second.stdout == ""
    first.send_signal(signal.SIGKILL)
    first.communicate(timeout=30)
    held.let_go()
    third = protofleet("run", "small.toml", "--set", f"rounds={ROUNDS}", cwd=place)
    assert third.returncode == 0 and "continuing the unfinished run" in third.stdout, third.stderr
    assert [r["round"] for r in lines(place)] == list(range(1, ROUNDS + 2))


@pytest.mark.slow
@pytest.mark.skipif(torch.cuda.is_available(), reason="what fails here needs a machine without CUDA")
def test_the_corrected_command_runs_after_a_failed_start(place):
    failed = protofleet("run", "small.toml", "--set", "compute=cuda", cwd=place)
    assert failed.returncode == 1 and "cuda" in failed.stderr.lower()
    done = protofleet("run", "small.toml", cwd=place)
    assert done.returncode == 0, done.stderr
    assert "the earlier run is now in runs/small.1" in done.stdout
