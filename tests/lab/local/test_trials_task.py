"""A task of an engine runs its line of a list. If the engine repeats the task, a finished trial does not change."""

import json

import pytest

from protofleet.cli.main import main, parser
from protofleet.lab.local.engine_folder import EngineFolder, TaskFiles
from protofleet.lab.local.grid import plan_grid, read_axis
from protofleet.lab.local.sole_use import sole_use
from protofleet.lab.local.trials_task import TrialsTask
from protofleet.protocol.settings.reader import SettingsError
from protofleet.runtime.installation.version import installed_version
from tests.lab.local.test_sweep import FILE, finish


def errors(capfd):
    return capfd.readouterr().err.splitlines()


@pytest.fixture
def trials(tmp_path):
    path = tmp_path / "base.toml"
    path.write_text(FILE)
    return plan_grid(path, [read_axis("method.lr=0.02,0.1")], [1], []).trials


@pytest.fixture
def folder(tmp_path, trials):
    found = EngineFolder(tmp_path / "runs" / "sweeps" / "base")
    found.make()
    found.write_trials(trials)
    assert found.write_list(trials, 2) == 1
    return found


def task(folder, version="", index=0):
    runs = folder.root.parent.parent
    return TrialsTask(TaskFiles(folder.list, index), runs, version or installed_version())


def test_a_finished_trial_is_not_changed_if_the_engine_repeats_its_task(folder, trials, capfd):
    runs = folder.root.parent.parent
    for trial in trials:
        finish(runs, trial, 0.5, 0.5)
    before = {path: path.stat().st_mtime_ns for path in runs.rglob("*") if path.is_file()}
    assert task(folder).run() == 0
    assert {path: path.stat().st_mtime_ns for path in runs.rglob("*") if path.is_file()} == before
    assert capfd.readouterr().out.count("this run has already ended: finished") == 2


def test_a_trial_that_another_process_runs_is_not_reported_as_failed(folder, trials, capfd):
    runs = folder.root.parent.parent
    finish(runs, trials[1], 0.5, 0.5)
    with sole_use(runs / trials[0].name):
        assert task(folder).run() == 0
    out = capfd.readouterr().out
    assert f"in use elsewhere: {runs / trials[0].name} is in use by process" in out
    assert "this run has already ended" in out  # The task has continued with its next trial.
    assert folder.failures() == {}


def test_the_reason_of_a_failure_is_written_for_the_command(folder, trials):
    runs = folder.root.parent.parent
    finish(runs, trials[0], 0.5, 0.5, ended="diverged")
    finish(runs, trials[1], 0.5, 0.5)
    assert task(folder).run() == 1
    assert folder.failures() == {trials[0].name: "diverged; --fresh runs it again"}


def test_a_task_with_another_version_than_the_command_runs_no_trial(folder, trials):
    with pytest.raises(SettingsError, match="this node has protofleet .*, and the command has 9.9"):
        task(folder, "9.9").run()
    assert folder.failures().keys() == {trial.name for trial in trials}


def test_a_task_number_that_the_list_does_not_have_is_refused(folder, capfd):
    words = ["trials", str(folder.list), "7", "--runs", str(folder.root.parent.parent)]
    assert main(words) == 2
    assert "has 1 tasks, and there is no task 7" in errors(capfd)[0]


def test_an_incomplete_file_of_failures_is_skipped(folder):
    (folder.engine / "0.failed").write_text('{"a"')
    (folder.engine / "1.failed").write_text(json.dumps({"b": "no data"}))
    assert folder.failures() == {"b": "no data"}


def test_the_commands_of_tasks_are_not_in_the_help():
    text = parser().format_help()
    assert "sweep" in text and "trials" not in text.replace("the trials", "") and "node-check" not in text
