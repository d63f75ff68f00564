"""Installed packages can contain trackers, and each run of a sweep becomes a run in the tracker."""

import json
import shutil
import sys

import pytest

from protofleet.cli.main import main
from protofleet.coordinator.observe.rounds_file import sealed_line
from protofleet.lab.local import batch
from tests.lab.local.test_sweep import finish
from tests.lab.report.finished import whole_line, whole_run
from tests.support.plug_ins import block, installed_package
from tests.support.small_experiment import TWO

FILES = {
    "notes/__init__.py": "",
    "notes/book.py": block("trackers.md", "book"),
    "notes/broken.py": "x = 1\nraise SystemExit(3)\n",
    "notes/half.py": "def half(place, run):\n    return object()\n",
}
ENTRIES = {
    "trackers": "book = notes.book:Book\nbroken = notes.broken:B\nhalf = notes.half:half\n"
    "mlflow = notes.broken:B\ntensorboard = notes.broken:B"
}


@pytest.fixture
def site(tmp_path, monkeypatch):
    installed_package(tmp_path / "site", "notes", FILES, ENTRIES)
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    yield tmp_path / "site"
    for name in [name for name in sys.modules if name.split(".")[0] == "notes"]:
        del sys.modules[name]


@pytest.fixture
def run(tmp_path):
    (tmp_path / "runs" / "demo").mkdir(parents=True)
    return whole_run(tmp_path / "runs" / "demo")


def test_the_tracker_of_the_page_writes_a_run_and_continues_it(site, run, tmp_path, capsys):
    lines = (run / "rounds.jsonl").read_text().splitlines(keepends=True)
    summary = (run / "summary.json").read_bytes()
    (run / "rounds.jsonl").write_text("".join(lines[:2]))
    (run / "summary.json").unlink()
    book = tmp_path / "book.txt"
    assert main(["track", str(run), "--to", f"book={book}"]) == 0
    (run / "rounds.jsonl").write_text("".join(lines))
    (run / "summary.json").write_bytes(summary)
    assert main(["track", str(run), "--to", f"book={book}"]) == 0
    written = [line.split()[:2] for line in book.read_text().splitlines()]
    assert written == [*(["demo", str(number)] for number in (1, 2, 3, 4, 5)), ["demo", "finished"]]
    assert f"rounds 1 to 5 are in book={book}" in capsys.readouterr().out


def test_a_broken_tracker_is_reported_in_one_line_and_does_not_stop_others(site, run, tmp_path, capsys):
    to = ["--to", "broken", "--to", "half", "--to", f"book={tmp_path / 'book.txt'}"]
    assert main(["track", str(run), *to]) == 1
    said = capsys.readouterr()
    first, second = said.err.splitlines()
    assert (
        f"broken is left out from round 1 on (PlugInError: {site}/notes/broken.py:2: SystemExit: 3)" in first
    )
    assert "tracker half of notes 1.2 makes an object without the method begin()" in second
    assert said.out == f"{run}: rounds 1 to 5 are in book={tmp_path / 'book.txt'}\n"


def test_a_tracker_that_was_changed_after_its_installation_is_not_run(site, run, tmp_path, capsys):
    (site / "notes" / "book.py").write_text("raise SystemExit(9)\n")
    assert main(["track", str(run), "--to", f"book={tmp_path / 'book.txt'}"]) == 1
    assert "was changed since it was installed" in capsys.readouterr().err


def test_the_error_for_a_wrong_name_lists_packaged_trackers_and_imports_none(site, run, capsys):
    assert main(["track", str(run), "--to", "bok"]) == 2
    said = capsys.readouterr().err
    assert (
        said == "protofleet: no tracker has the name 'bok'; did you mean book? "
        "there are book, broken, half, mlflow, tensorboard\n"
    )
    assert not [name for name in sys.modules if name.startswith("notes")]


def test_a_packaged_tracker_with_a_built_in_name_is_reported_once_and_not_used(site, run, tmp_path, capsys):
    pytest.importorskip("tensorboard")
    board, book = f"tensorboard={tmp_path / 'board'}", f"book={tmp_path / 'book.txt'}"
    assert main(["track", str(run), "--to", board, "--to", book, "--to", f"{board}-2"]) == 0
    said = capsys.readouterr()
    assert (
        said.err
        == "protofleet: tracker tensorboard of notes 1.2 is not used: protofleet has one of this name\n"
    )
    assert said.out.startswith(f"{run}: rounds 1 to 5 are in {board}\n")
    assert main(["track", str(run), "--to", book]) == 0 and not capsys.readouterr().err


TRIALS = ("base-mu-0", "base-mu-1")


def test_each_trial_of_a_sweep_is_sent_once_to_the_tracker(site, tmp_path, monkeypatch, capsys):
    file, book, runs = tmp_path / "two.toml", tmp_path / "book.txt", tmp_path / "runs"
    file.write_text(TWO)
    tracked = []

    def run(experiment, runs, launcher, track=()):
        tracked.append([str(one) for one in track])
        shutil.rmtree(runs / experiment.name)
        finish(runs, experiment, 0.5, 0.5)

    monkeypatch.setattr(batch, "run_experiment", run)
    sweep = [
        "sweep",
        str(file),
        "--grid",
        "method.lr=0.1,0.2",
        "--runs",
        str(runs),
        "--track",
        f"book={book}",
    ]
    assert main(sweep) == 0 and tracked == [[f"book={book}"]] * 2
    for _ in range(2):
        assert main(sweep) == 0 and len(tracked) == 2
    told = [line.split()[:2] for line in book.read_text().splitlines()]
    names = ("two-lr-0.1-s1", "two-lr-0.2-s1")
    assert told == [[name, end] for name in names for end in ("1", "2", "3", "finished")], "each number once"


def test_track_with_the_folder_of_a_sweep_sends_all_its_trials(site, tmp_path, capsys):
    folder, book = tmp_path / "runs" / "sweeps" / "base", tmp_path / "book.txt"
    folder.mkdir(parents=True)
    rows = [{"runs": [name]} for name in (*TRIALS, "not-begun")]
    (folder / "trials.json").write_text(json.dumps({"trials": rows}))
    assert main(["track", str(folder), "--to", f"book={book}"]) == 2
    assert "is the folder of a sweep, but none of its runs is in" in capsys.readouterr().err
    for name in TRIALS:
        (tmp_path / "runs" / name).mkdir()
        (tmp_path / "runs" / name / "rounds.jsonl").write_text(sealed_line(whole_line(1, 4)))
    assert main(["track", str(folder), "--to", f"book={book}"]) == 0
    assert [line.split()[:2] for line in book.read_text().splitlines()] == [[name, "1"] for name in TRIALS]
