"""One command runs each file with each seed: no run starts twice, and a failed run does not stop the others."""

import pytest

from protofleet.lab.local import batch
from protofleet.protocol.settings.reader import SettingsError, encode, write_toml
from protofleet.runtime.command.errors import RunError, StoppedError

FILE = 'name = "{name}"\nrounds = 1\n[method]\nname = "fedavg"\n[network]\nname = "mlp"\n'


@pytest.fixture
def files(tmp_path):
    found = [tmp_path / f"{name}.toml" for name in ("one", "two")]
    for path in found:
        path.write_text(FILE.format(name=path.stem))
    return found


@pytest.fixture
def started(monkeypatch):
    """Replace each run by a run that ends at once, and return the names of the started runs."""
    names = []

    def run(experiment, runs, launcher, track=()):
        names.append(experiment.name)
        if experiment.name == "one-s2":
            raise RunError("the broker is gone")
        folder = runs / experiment.name
        (folder / "experiment.toml").write_text(write_toml(encode(experiment)))
        (folder / "summary.json").write_text("{}")

    monkeypatch.setattr(batch, "run_experiment", run)
    return names


def test_each_file_runs_with_each_seed_and_a_failed_run_does_not_stop_the_others(
    tmp_path, files, started, capsys
):
    assert batch.Batch(tmp_path / "runs").run_all(batch.plan_runs(files, [1, 2], [])) == 1
    assert started == ["one-s1", "one-s2", "two-s1", "two-s2"]
    said = capsys.readouterr().out
    assert "failed: one-s2: the broker is gone" in said and "3 of 4 runs are finished" in said


def test_a_finished_run_is_run_again_only_if_its_settings_have_changed(tmp_path, files, started):
    for _ in range(2):
        batch.Batch(tmp_path / "runs").run_all(batch.plan_runs(files[1:], [1], []))
    assert started == ["two-s1"]
    batch.Batch(tmp_path / "runs").run_all(batch.plan_runs(files[1:], [1], ["rounds=2"]))
    batch.Batch(tmp_path / "runs", fresh=True).run_all(batch.plan_runs(files[1:], [1], ["rounds=2"]))
    assert started == ["two-s1"] * 3
    assert (tmp_path / "runs" / "two-s1.2").exists()


def test_each_run_gets_its_seed_and_a_name_with_the_seed(files):
    assert [(e.name, e.seed) for e in batch.plan_runs(files[:1], [3, 5], [])] == [
        ("one-s3", 3),
        ("one-s5", 5),
    ]
    assert [e.name for e in batch.plan_runs(files, [], [])] == ["one", "two"]


def test_a_mistake_in_the_last_file_is_found_before_the_first_run(tmp_path, files, started):
    files[1].write_text(FILE.format(name="two").replace("fedavg", "fedfoo"))
    with pytest.raises(SettingsError, match="no method 'fedfoo'"):
        batch.Batch(tmp_path / "runs").run_all(batch.plan_runs(files, [1], []))
    assert started == []


def test_two_runs_with_the_same_name_are_refused(files):
    with pytest.raises(SettingsError, match="two of the runs have the name one"):
        batch.plan_runs([files[0], files[0]], [], [])


def test_an_interrupt_ends_the_batch_and_the_error_names_the_command_to_continue(
    tmp_path, files, started, monkeypatch
):
    whole = batch.run_experiment

    def interrupted(experiment, runs, launcher, track):
        if experiment.name == "one-s3":
            raise StoppedError("stopped; the same command resumes it")
        whole(experiment, runs, launcher)

    monkeypatch.setattr(batch, "run_experiment", interrupted)
    with pytest.raises(
        StoppedError, match="stopped in one-s3; 1 of 4 runs are finished, and the same command goes on"
    ):
        batch.Batch(tmp_path / "runs").run_all(batch.plan_runs(files, [1, 3], []))
    assert started == ["one-s1"]
