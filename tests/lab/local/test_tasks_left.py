"""A run on one machine begins only if no task of an engine still works on the files of the same devices."""

import json

import pytest

from protofleet.cli.main import main
from protofleet.lab.engines.engine import EngineAwayError, EngineJob
from protofleet.lab.engines.submission import write_job
from protofleet.lab.local.share import HAND_OVER_SECONDS, Owner
from protofleet.lab.local.sole_use import InUseError, sole_use
from protofleet.lab.local.tasks_left import keep_tasks_away
from protofleet.protocol.settings.reader import SettingsError
from tests.lab.engines.told_engine import ToldEngine
from tests.lab.engines.told_slurm import ToldSlurm
from tests.support.small_experiment import TWO


@pytest.fixture
def run(tmp_path):
    """Make the folder of a run whose command was killed while two tasks had the devices."""
    folder = tmp_path / "runs" / "two"
    for name in ("engine/head", "engine/task-1", "logs"):
        (folder / name).mkdir(parents=True)
    (folder / "engine" / "groups.json").write_text(json.dumps([["optdigits-1"], ["optdigits-2"]]))
    (folder / "engine" / "broker.json").write_text("{}")
    return folder


@pytest.fixture
def engine():
    return ToldEngine()


@pytest.fixture
def said():
    return []


@pytest.fixture
def waited():
    return []


@pytest.fixture
def keep(run, engine, said, waited):
    return lambda: keep_tasks_away(run, said.append, lambda name: engine, waited.append)


def job_in(engine, folder):
    job = EngineJob("two", folder, 2, ("true",))
    number = engine.submit(job)
    write_job(engine, job, number)
    return number


@pytest.mark.parametrize(
    ("folder", "words"),
    [
        ("", "still has devices of .*/runs/two; go on with --on slurm --tasks 2, or .* scancel 1"),
        ("task-1", "still has devices of .*/runs/two; go on with --on slurm --tasks 2, or .* scancel 1"),
        ("head", "runs .*/runs/two already; add --on slurm --tasks 2 --head job .* --cancel to end it"),
    ],
)
def test_a_run_is_refused_with_a_fix_while_the_engine_still_has_its_job(run, engine, keep, folder, words):
    owner = Owner(run / "logs" / "devices-0.owner")
    owner.claim()
    assert job_in(engine, run / "engine" / folder) == "1"
    with pytest.raises(SettingsError, match=f"^job 1 of slurm {words}") as refused:
        keep()
    assert (
        "\n" not in str(refused.value) and not owner.is_lost() and (run / "engine" / "broker.json").exists()
    )


def test_a_run_starts_at_once_if_its_job_has_ended(run, engine, keep, said, waited):
    engine.left[job_in(engine, run / "engine")] = []
    keep()
    assert said == waited == []


def unknown(name):
    raise KeyError(name)


def without_commands(name):
    raise SettingsError("there is no squeue on PATH")


def away(name):
    raise EngineAwayError("Unable to contact slurm controller")


@pytest.mark.parametrize(
    ("engine_of", "words"),
    [
        (unknown, "this version does not know the engine slurm"),
        (without_commands, "there is no squeue on PATH"),
        (away, "Unable to contact slurm controller"),
    ],
)
def test_tasks_of_an_engine_that_does_not_answer_get_a_request_to_end(
    run, engine, said, waited, engine_of, words
):
    owner = Owner(run / "logs" / "devices-0.owner")
    owner.claim()
    job_in(engine, run / "engine")
    keep_tasks_away(run, said.append, engine_of, waited.append)
    assert owner.is_lost() and waited == [HAND_OVER_SECONDS]
    assert words in said[0] and "tasks that still run the devices" in said[1] and len(said) == 2
    assert not (run / "engine" / "broker.json").exists(), "a task that starts later would start devices"
    keep_tasks_away(run, said.append, engine_of, waited.append)
    assert len(said) == 2 and len(waited) == 1, "a second start need not wait"
    assert Owner(run / "logs" / "devices-0.owner").claim() is False, "a later task need not wait"


def test_a_task_on_a_lost_node_gets_a_request_to_end(run, engine, keep, waited):
    owner = Owner(run / "logs" / "devices-1.owner")
    owner.claim()
    engine.left[job_in(engine, run / "engine")] = []
    keep()
    assert owner.is_lost() and waited == [HAND_OVER_SECONDS]


def test_tasks_of_a_command_that_still_runs_get_no_request_to_end(run, engine, keep):
    owner = Owner(run / "logs" / "devices-0.owner")
    owner.claim()
    with sole_use(run), pytest.raises(InUseError, match="is in use by process"):
        keep()
    assert not owner.is_lost() and (run / "engine" / "broker.json").exists()


def test_a_run_that_never_had_tasks_is_not_changed(tmp_path, said):
    keep_tasks_away(tmp_path / "none", said.append, unknown)
    assert said == [] and not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("name", "more", "code"), [("two", (), 2), ("two", ("--fresh",), 2), ("two-s1", ("--seeds", "1"), 1)]
)
def test_the_command_run_refuses_a_run_with_a_job_and_renames_no_folder(
    run, tmp_path, monkeypatch, capsys, name, more, code
):
    slurm = ToldSlurm(tmp_path / "slurm")
    monkeypatch.setenv("PATH", slurm.environment["PATH"])
    slurm.tell("squeue", "0|RUNNING|n1|None\n1|RUNNING|n2|None\n")
    record = {"engine": "slurm", "cluster": "probe", "job": "7", "submitted": ""}
    (run / "engine" / "job").write_text(json.dumps(record))
    run.rename(run.with_name(name))
    (tmp_path / "two.toml").write_text(TWO)
    assert main(["run", str(tmp_path / "two.toml"), "--runs", str(tmp_path / "runs"), *more]) == code
    found = "".join(capsys.readouterr())
    assert f"job 7 of slurm still has devices of {run.with_name(name)}; go on with --on slurm" in found
    assert [path.name for path in (tmp_path / "runs").glob("two*")] == [name], "no folder was renamed"
