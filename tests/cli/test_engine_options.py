"""Tests of options for engines: a mistake gives one line and exit code 2, before anything is written."""

import pytest

from protofleet.cli.main import main
from protofleet.lab.local.batch import name_of_runs, plan_runs
from tests.lab.engines.told_slurm import ToldSlurm
from tests.lab.local.test_sweep import FILE

GRID = ["--grid", "method.lr=0.02,0.1"]


def errors(capfd):
    return capfd.readouterr().err.splitlines()


@pytest.fixture
def file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "base.toml").write_text(FILE)
    return "base.toml"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--pack", "2"], "--pack is for an engine, and the trials run on this machine; add --on slurm"),
        (["--cancel"], "--cancel is for an engine"),
        (["--on", "slurm", "--slurm", "array=1"], "slurm has array, which protofleet sets itself"),
        (["--on", "slurm", "--page"], "--page shows a run on this machine"),
        (["--ray", "num_gpus=1"], "--ray is for an engine"),
        (
            ["--on", "ray", "--slurm", "mem=4G"],
            "--slurm has options of another engine than --on ray; leave out",
        ),
        (["--on", "slurm", "--ray", "num_gpus=1"], "--ray has options of another engine than --on slurm"),
        (
            ["--on", "ray", "--ray", "num_cpu=2"],
            "--ray: ray.num_cpu is not a setting; did you mean num_cpus",
        ),
        (["--on", "ray", "--ray", "num_gpus"], "--ray 'num_gpus' is not of the form KEY=VALUE, for example"),
        (["--on", "ray", "--detach"], "--detach and --cancel need tasks that go on without this command"),
        (["--on", "ray", "--cancel"], "tasks of ray end with it; leave them out"),
        (["--on", "slrm"], "--on is 'slrm'; did you mean slurm?"),
        (["--on", "slurm", "--pack", "0"], "--pack: it is '0', it must be a whole number"),
    ],
)
def test_a_wrong_option_is_refused_in_one_line_before_anything_is_written(file, capfd, tmp_path, words, said):
    assert main(["sweep", file, *GRID, *words]) == 2
    found = errors(capfd)
    assert len(found) == 1 and said in found[0]
    assert not (tmp_path / "runs").exists()


def test_the_error_on_a_machine_without_slurm_contains_a_fix(file, capfd, monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert main(["sweep", file, *GRID, "--on", "slurm"]) == 2
    assert (
        "there is no scontrol on PATH, so no job can be given to Slurm; run the command on a login"
        in errors(capfd)[-1]
    )


def test_the_file_names_the_engine_and_the_option_on_here_overrides_it(file, capfd, monkeypatch, tmp_path):
    (tmp_path / file).write_text(FILE + '[engine]\non = "slurm"\nslurm = { partition = "nope" }\n')
    told = ToldSlurm(tmp_path / "told")
    told.tell("sbatch", error="sbatch: error: invalid partition specified: nope\n", code=1)
    monkeypatch.setenv("PATH", told.environment["PATH"])
    assert main(["sweep", file, *GRID]) == 2
    assert "Slurm refuses the job: invalid partition specified: nope; correct it with" in errors(capfd)[-1]
    assert main(["sweep", file, *GRID, "--on", "here", "--detach"]) == 2
    assert "--detach is for an engine" in errors(capfd)[-1]


def test_the_error_for_a_missing_ray_names_the_extra_to_install(file, capfd, monkeypatch):
    monkeypatch.setattr("protofleet.lab.engines.ray.missing", lambda extra: ["ray"])
    assert main(["sweep", file, *GRID, "--on", "ray"]) == 2
    (line,) = errors(capfd)
    assert line.startswith(
        "protofleet: --on ray needs the extra ray: pip install protofleet[ray], or pip install ray=="
    )


def test_a_setting_of_the_engine_is_refused_as_an_axis(file, capfd):
    assert main(["sweep", file, "--grid", "engine.pack=1,2"]) == 2
    assert "engine.pack cannot be an axis, because it changes no result" in errors(capfd)[-1]


def test_a_single_run_is_refused_for_an_engine(file, capfd):
    assert main(["run", file, "--on", "slurm"]) == 2
    assert "this is one run; name several files or --seeds, or give --on here" in errors(capfd)[-1]


def test_files_with_different_engine_tables_are_refused(file, capfd, tmp_path):
    (tmp_path / "other.toml").write_text(FILE.replace("base", "other") + "[engine]\npack = 3\n")
    assert main(["run", file, "other.toml", "--on", "slurm"]) == 2
    assert "base and other have different tables [engine]" in errors(capfd)[-1]


def test_the_same_files_in_any_order_have_the_same_name_for_the_engine(file, tmp_path):
    paths = [tmp_path / file, tmp_path / "other.toml"]
    paths[1].write_text(FILE.replace("base", "other"))
    seeds = plan_runs(paths[:1], [1, 2], [])
    assert name_of_runs(seeds, paths[:1]) == "run-base"
    both = [name_of_runs(plan_runs(order, [], []), order) for order in (paths, paths[::-1])]
    assert both[0] == both[1] != name_of_runs(plan_runs(paths, [1], []), paths)
