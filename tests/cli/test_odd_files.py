"""Tests that invalid files of a run and commands that come too late give one line of error and no traceback."""

import json
import os
import shutil
import subprocess
import sys
import time

import pytest

from tests.support.enrol import ROOT
from tests.support.small_federation import simulation


def command(folder, *words):
    done = subprocess.run(
        [sys.executable, "-m", "protofleet", *words], cwd=folder, capture_output=True, text=True, timeout=120,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert "Traceback" not in done.stderr, done.stderr
    return done.returncode, done.stdout + done.stderr


SUMMARY = {
    "name": "a", "method": "fedavg", "paper": "p", "network": "cnn23", "reports": "global", "rounds": 2, "seed": 0,
    "devices": {}, "seconds": 1.0, "payload": {"up": {}, "down": {}}, "wire": {"up": {}, "down": {}},
    "fedavg": {"up": 0, "down": 0}, "broker": "b", "security": "off",
    "accuracy": {"start": {}, "final": {}, "pooled": None, "best_by_validation": {}},
}  # fmt: skip
ODD = [
    "[]",
    "[1]",
    '"x"',
    "3",
    "null",
    "",
    "{",
    "[" * 10_000,
    "{}",
    '{"name": 3}',
    '{"seal": 3}',
    '{"rounds": 1e9}',
]
ODD += [json.dumps({**SUMMARY, key: odd}) for key in SUMMARY for odd in (3.5, [], "x", {"x": 1}, None) if key]
ODD += [json.dumps({**SUMMARY, "accuracy": {"start": {}, "final": {}, "best_by_validation": {"x": 1.0}}})]
ODD += [json.dumps({**SUMMARY, "views": {"a": {}, "b": {"final": {"mean": 1e999}}}})]


def is_readable(text):
    """Return whether this summary without a seal, as earlier versions wrote it, may be read."""
    try:
        return json.loads(text).keys() >= SUMMARY.keys()
    except (ValueError, AttributeError, RecursionError):
        return False


@pytest.mark.slow
@pytest.mark.parametrize("text", [*ODD[:3], ODD[8], json.dumps({**SUMMARY, "accuracy": []})])
def test_a_report_of_an_invalid_summary_gives_one_line(tmp_path, text):
    (tmp_path / "summary.json").write_text(text)
    code, said = command(tmp_path, "report", ".")
    assert code == 1 and len(said.splitlines()) == 1 and "summary.json" in said
    code, said = command(tmp_path, "compare", ".")
    assert code == 1 and len(said.splitlines()) == 1 and "summary.json" in said


LINES = [
    "[1]",
    "3",
    '"x"',
    "null",
    "{}",
    '{"round": []}',
    '{"round": {"a": 1}}',
    '{"round": 1e300}',
    '{"round": -1}',
]
LINES += [
    json.dumps({"round": 1, "kind": "training", key: odd})
    for key in (
        "kind",
        "phases",
        "participants",
        "late",
        "dropped",
        "payload",
        "wire",
        "fedavg",
        "accuracy",
        "loss",
    )
    for odd in (3.5, ["x"], [3], {"x": 3}, {"up": 3}, {"x": {"y": "z"}}, None)
]


@pytest.mark.slow
def test_a_report_leaves_out_invalid_lines_and_states_this(tmp_path):
    (tmp_path / "summary.json").write_text(json.dumps(SUMMARY))
    for text in ("\n".join(LINES), "\xff\xfe\n\0", "[" * 100_000):
        (tmp_path / "rounds.jsonl").write_bytes(text.encode("latin-1"))
        code, said = command(tmp_path, "report", ".")
        assert code == 0 and "damaged lines" in said


def test_each_invalid_summary_gives_a_report_or_one_line(tmp_path, capsys):
    """The commands run in this process, because there are many of them."""
    from protofleet.cli.main import main

    for i, text in enumerate(ODD):
        folder = tmp_path / str(i)
        folder.mkdir()
        (folder / "summary.json").write_text(text)
        for job in ("report", "compare"):
            code = main([job, str(folder)])
            said = capsys.readouterr().err.strip().splitlines()
            assert code in (0, 1) and (code == 0 or len(said) == 1), (text, said)
            assert code == 1 or is_readable(text) or job == "compare"


@pytest.mark.parametrize("job", ["run", "sweep", "centralised"])
def test_a_file_after_the_seeds_is_refused_with_the_correct_order(job, capsys):
    from protofleet.cli.main import main

    assert main([job, "--seeds", "1", "2", "demo.toml"]) == 2
    assert "argument --seeds: it is 'demo.toml'" in (said := capsys.readouterr().err)
    assert "name the file before --seeds" in said


@pytest.mark.parametrize("name", ["summary.json", "rounds.jsonl", "rounds.copy.jsonl", "experiment.toml"])
def test_a_folder_in_place_of_a_file_gives_one_line(tmp_path, name):
    (tmp_path / "summary.json").write_text(json.dumps(SUMMARY))
    (tmp_path / name).unlink(missing_ok=True)
    (tmp_path / name).mkdir()
    code, said = command(tmp_path, "report", ".")
    assert code == 1 and len(said.splitlines()) == 1 and name in said


def test_invalid_files_among_the_bans_do_not_prevent_an_unban(tmp_path):
    banned = tmp_path / "run" / "coordinator" / "banned"
    (banned / "a-folder" / "inside").mkdir(parents=True)
    (banned / "loud").write_text(f"{int(time.time())} 1\n")
    (banned / "bytes").write_bytes(b"\xff\xfe")
    (banned / "far").write_text("9" * 400 + " 1")
    (banned / "often").write_text(f"{int(time.time())} " + "9" * 400)
    (banned / "gone").symlink_to("nowhere")
    code, said = command(tmp_path, "unban", "--folder", "run")
    assert code == 0 and "loud: until" in said and "a-folder" not in said
    code, said = command(tmp_path, "unban", "a-folder", "--folder", "run")
    assert code == 2 and said.startswith("protofleet: a-folder is not banned in run")
    assert command(tmp_path, "unban", "loud", "--folder", "run")[0] == 0 and not (banned / "loud").exists()
    shutil.rmtree(banned)
    banned.write_text("no folder")
    assert command(tmp_path, "unban", "--folder", "run")[0] == 0


def test_go_on_with_a_finished_run_is_refused_and_does_not_take_over_the_run(tmp_path):
    run = simulation(tmp_path / "run", "fedavg")
    run.run()
    before = run.service.run.spool.index.epoch
    run.service.run.spool.close()
    code, said = command(tmp_path, "go-on", "run", "--from-round", "2")
    assert code == 2 and len(said.splitlines()) == 1
    assert "has the final evaluation" in said and "a finished run needs nothing" in said
    assert epoch_of(tmp_path / "run" / "coordinator") == before


def epoch_of(folder):
    import sqlite3

    with sqlite3.connect(folder / "spool.sqlite") as db:
        return db.execute("SELECT epoch FROM run").fetchone()[0]


@pytest.mark.slow
def test_the_error_for_an_unusable_index_contains_the_steps_with_a_backup(tmp_path):
    run = simulation(tmp_path / "run", "fedavg")
    run.run()
    run.service.run.spool.close()
    folder = tmp_path / "run" / "coordinator"
    for name in ("spool.sqlite", "spool.copy.sqlite"):
        (folder / name).write_bytes(b"no database")
        code, said = command(tmp_path, "go-on", "run", "--from-round", "2")
        last = said.strip().splitlines()[-1]
        assert code == (2 if name == "spool.sqlite" else 1)
        if name == "spool.sqlite":
            assert "its copy has taken its place" in said  # Then both files are made unusable again.
            shutil.copyfile(folder / "spool.copy.sqlite", folder / "spool.sqlite")
            (folder / "spool.sqlite").write_bytes(b"no database")
    assert "spool.copy.sqlite" in last and "protofleet go-on" in last and "under another name" in last
    assert "remove" not in last
