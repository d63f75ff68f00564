"""Tests of the origin of a figure: the commit, the sources, and the resolved experiment."""

import shutil
import subprocess

import pytest

from protofleet.lab.local.experiment import experiment_table, read_experiment, recorded
from protofleet.runtime.installation import provenance
from protofleet.runtime.installation.checkout import ROOT
from protofleet.runtime.installation.provenance import digest_of_experiment, digest_of_sources, software

TOML = 'name = "small"\nrounds = 2\n[method]\nname = "fedavg"\nlr = 0.05\n[data]\nsource = "digits"\nsamples = 40\n'


def digest(tmp_path, *assignments, text=TOML, name="small.toml"):
    (tmp_path / name).write_text(text)
    return digest_of_experiment(recorded(read_experiment(tmp_path / name, list(assignments))))


@pytest.mark.parametrize(
    "other", ["name=other", "seed=3", "data.root=/elsewhere", "metrics_port=9000", "compute=cpu"]
)
def test_a_setting_that_affects_no_result_does_not_change_the_digest(tmp_path, other):
    assert digest(tmp_path, other) == digest(tmp_path)


@pytest.mark.parametrize(
    "other", ["method.lr=0.1", "rounds=3", "data.samples=41", "data.seed=1", "policy.quorum=1"]
)
def test_a_setting_that_affects_results_changes_the_digest(tmp_path, other):
    assert digest(tmp_path, other) != digest(tmp_path)


def test_an_experiment_with_a_base_file_has_the_digest_of_the_complete_table(tmp_path):
    (tmp_path / "base.toml").write_text(TOML.replace("lr = 0.05", "lr = 0.2"))
    based = digest(
        tmp_path, text='base = "base.toml"\nname = "based"\n[method]\nlr = 0.05\n', name="based.toml"
    )
    assert based == digest(tmp_path)
    assert experiment_table(tmp_path / "based.toml")["rounds"] == 2


def test_the_digest_of_the_sources_changes_with_the_code_that_decides_results(tmp_path, monkeypatch):
    for folder in ("methods", "lab/report"):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "one.py").write_text("a = 1\n")
    monkeypatch.setattr(provenance, "ROOT", tmp_path)
    before = digest_of_sources()
    (tmp_path / "lab/report/one.py").write_text("a = 2\n")
    assert digest_of_sources() == before
    (tmp_path / "methods/one.py").write_text("a = 2\n")
    assert digest_of_sources() != before


@pytest.mark.skipif(shutil.which("git") is None, reason="there is no git")
def test_the_commit_of_a_changed_checkout_has_a_mark(tmp_path, monkeypatch):
    def git(*arguments):
        done = subprocess.run(["git", "-C", tmp_path, *arguments], check=True, capture_output=True, text=True)
        return done.stdout.strip()

    (tmp_path / "methods").mkdir()
    (tmp_path / "methods/one.py").write_text("a = 1\n")
    (tmp_path / "pyproject.toml").write_text("")
    git("init", "-q")
    git("add", ".")
    git("-c", "user.name=a", "-c", "user.email=a@b.c", "commit", "-qm", "First")
    monkeypatch.setattr(provenance, "ROOT", tmp_path)
    commit = git("rev-parse", "--short=12", "HEAD")
    assert provenance.commit_of_checkout() == commit
    (tmp_path / "methods/one.py").write_text("a = 2\n")
    assert provenance.commit_of_checkout() == f"{commit}+"


def test_the_software_has_a_digest_of_its_sources():
    assert len(software()["sources"]) == provenance.DIGITS
    assert all((ROOT / folder).is_dir() for folder in provenance.DECIDING)
