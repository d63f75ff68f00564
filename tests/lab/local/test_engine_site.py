"""A run in tasks of an engine is refused in one line if it cannot work, and its patience time is not stored."""

import json
from dataclasses import dataclass

import pytest

from protofleet.cli.main import main
from protofleet.lab.engines.engine import TaskState
from protofleet.lab.engines.submission import write_job
from protofleet.lab.local.experiment import names_patience, read_experiment
from protofleet.lab.local.nodes import PATIENCE_SECONDS, EngineSite, TaskPlace
from protofleet.lab.local.run import same_settings, write_experiment
from protofleet.lab.local.share import MOST_FAILURES
from protofleet.protocol.settings.reader import SettingsError
from protofleet.runtime.restart_backoff import STABLE_SECONDS
from tests.lab.engines.told_engine import ToldEngine
from tests.support.small_experiment import TWO


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "two.toml"
    path.write_text(TWO)
    return path


@dataclass
class NoEngine:
    """An engine that gets no job in these tests."""

    name: str = "none"
    cluster: str = ""


def site(tasks=2, **options):
    return EngineSite(NoEngine(), tasks, "127.0.0.2", **options)


def divided(folder, groups):
    (folder / "engine").mkdir(parents=True)
    (folder / "engine" / "groups.json").write_text(json.dumps(groups))
    return folder


def test_devices_are_divided_among_the_tasks_in_turn(file, tmp_path, broker):
    experiment = read_experiment(file, ["devices.clients.optdigits=5"])
    groups = site().groups(experiment, tmp_path / "runs" / "two", False)
    assert [[name[-1] for name in group] for group in groups] == [["1", "3", "5"], ["2", "4"]]


def test_groups_of_an_earlier_start_are_kept(file, tmp_path, broker):
    given = [["optdigits-2"], ["optdigits-1"]]
    folder = divided(tmp_path / "two", given)
    assert site().groups(read_experiment(file, []), folder, False) == given


def test_tasks_are_submitted_before_the_broker_and_cancelled_if_it_does_not_start(tmp_path):
    engine, groups = ToldEngine(), [["a"], ["b"]]
    (tmp_path / "engine").mkdir()
    (tmp_path / "engine" / "broker.json").write_text("{}")
    begin = EngineSite(engine, 2, "h").begun(tmp_path, groups)
    with pytest.raises(LookupError, match="no broker"), begin as begun:
        assert begun.submitted == "1" and engine.jobs["1"].tasks == 2
        assert json.loads((tmp_path / "engine" / "groups.json").read_text()) == groups
        assert not (tmp_path / "engine" / "broker.json").exists(), "the tasks would use the earlier broker"
        raise LookupError("no broker")
    assert engine.left == {"1": []} and engine.cancelled["1"]


def test_tasks_of_an_earlier_start_keep_their_broker_file(tmp_path):
    engine = ToldEngine()
    job = EngineSite(engine, 2, "h").job(tmp_path, 2)
    job.folder.mkdir()
    write_job(engine, job, engine.submit(job))
    (tmp_path / "engine" / "broker.json").write_text("{}")
    engine.told.append([TaskState(0, "runs", "n1")])
    with EngineSite(engine, 2, "h").begun(tmp_path, [["a"], ["b"]]) as begun:
        assert begun.submitted == "" and (tmp_path / "engine" / "broker.json").exists()
    assert list(engine.jobs) == ["1"] and not engine.cancelled


@pytest.mark.parametrize(
    ("groups", "words"),
    [
        ([["optdigits-1"], ["mnist-1"]], r"other devices than those of the experiment .* --fresh"),
        (
            [["optdigits-1", "optdigits-2"]],
            r"--tasks is 2, but .* among 1 tasks; use --tasks 1, or .* --fresh",
        ),
    ],
)
def test_groups_of_other_devices_or_tasks_are_refused(file, tmp_path, broker, groups, words):
    folder = divided(tmp_path / "two", groups)
    with pytest.raises(SettingsError, match=words):
        site().groups(read_experiment(file, []), folder, False)


def test_more_tasks_than_devices_are_refused(file, broker):
    with pytest.raises(SettingsError, match="--tasks is 3, but the experiment has 2 devices, .* at most 2"):
        site(3).demand_fit(read_experiment(file, []))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("broker.tls=off", r'broker\.tls is "off", but a broker that other nodes reach must use TLS'),
        ("broker.kind=embedded", r"cannot use TLS, .*install Mosquitto"),
    ],
)
def test_a_broker_without_tls_is_refused(file, broker, embedded, change, words):
    with pytest.raises(SettingsError, match=words):
        site().demand_fit(read_experiment(file, [change]))


def test_the_patience_of_an_engine_is_not_stored_in_the_settings_of_the_run(file, tmp_path):
    experiment = read_experiment(file, [])
    assert site().policy(experiment).patience_seconds == PATIENCE_SECONDS == 86_400
    assert site(keeps_patience=True).policy(experiment) == experiment.effective_policy
    write_experiment(experiment, tmp_path / "two")
    assert same_settings(tmp_path / "two" / "experiment.toml", experiment)
    assert "86400" not in (tmp_path / "two" / "experiment.toml").read_text()


def test_the_patience_is_found_in_a_file_in_its_base_or_in_an_option(file, tmp_path):
    assert not names_patience(file, []) and not names_patience(file, ["policy.quorum=1"])
    assert names_patience(file, ["policy.patience_seconds=600"])
    other = tmp_path / "other.toml"
    other.write_text('base = "two.toml"\n[policy]\npatience_seconds = 600\n')
    assert names_patience(other, [])


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--tasks", "2"], "--tasks is 2, but no engine is named; add --on slurm"),
        (["--tasks", "2", "--on", "here"], "--tasks is 2, but no engine is named; add --on slurm"),
        (["--tasks", "0"], "argument --tasks: it is '0', it must be a whole number, at least 1"),
        (["--host", "h"], "--host is h, but the run has no tasks"),
        (["--on", "slurm", "--tasks", "2", "--host", ""], "--host is empty"),
        (["--head", "job"], "--head is job, but the run has no tasks"),
        (["--on", "slurm", "--tasks", "2", "--pack", "2"], "--pack and --at-once are for several runs"),
        (
            ["--on", "slurm", "--tasks", "2", "--detach"],
            "--detach and --cancel need a run without this command",
        ),
        (
            ["--on", "ray", "--tasks", "2", "--head", "job"],
            "--head is job, but the tasks of ray end with this",
        ),
        (["--on", "slurm", "--tasks", "2", "--seeds", "1", "2"], "--tasks divides the devices of one run"),
        (
            ["--on", "slurm", "--tasks", "2", "--head", "job", "--track", "tensorboard"],
            "--track does not work with --head job",
        ),
    ],
)
def test_options_that_do_not_fit_together_are_refused_in_one_line(file, tmp_path, capsys, options, words):
    assert main(["run", str(file), "--runs", str(tmp_path / "runs"), *options]) == 2
    assert words in capsys.readouterr().err.splitlines()[-1]
    assert not (tmp_path / "runs").exists()


def test_several_files_are_refused_with_tasks(file, capsys):
    assert main(["run", str(file), str(file), "--on", "slurm", "--tasks", "2"]) == 2
    assert "--tasks divides the devices of one run, but several" in capsys.readouterr().err


def test_a_task_has_ended_only_if_it_is_missing_in_two_checks():
    place = TaskPlace("1", 0)
    place.seen(0.0, runs=True)
    assert not place.ended(100.0)
    place.seen(105.0, runs=True)
    assert not place.ended(110.0)
    assert place.ended(120.0) or place.ended(120.0 + place.backoff.seconds)


def test_a_task_that_ran_for_a_minute_resets_the_count_of_failures():
    place = TaskPlace("1", 0)
    for started, ran, failures in [
        (0.0, 5.0, 1),
        (20.0, 5.0, 2),
        (40.0, STABLE_SECONDS + 1, 1),
        (200.0, 5.0, 2),
    ]:
        place.seen(started, runs=True)
        place.ended(started + ran)
        place.ended(started + ran)
        assert place.backoff.failures == failures < MOST_FAILURES
        place.moved("2")
