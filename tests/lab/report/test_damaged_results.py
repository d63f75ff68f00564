"""A run's results on a disk that damages files: no wrong figure is shown, and the damage is reported."""

import json
import shutil
from pathlib import Path

import pytest

from protofleet.coordinator.observe.rounds_file import UNSEALED
from protofleet.lab.report.finished_run import read_run
from protofleet.lab.report.run_page import final_table, write_report
from protofleet.runtime.command.errors import RunError
from tests.lab.local.test_run import furnished, protofleet


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """Return a folder with a finished run of real processes."""
    made = furnished(tmp_path_factory.mktemp("finished"))
    done = protofleet("run", "small.toml", cwd=made)
    assert done.returncode == 0, done.stderr
    return made


@pytest.fixture
def run(finished, tmp_path) -> Path:
    """Return a copy of the run that the test may damage."""
    shutil.copytree(finished, tmp_path / "place")
    return tmp_path / "place" / "runs" / "small"


def flips(data):
    """Yield the data with one bit flipped, once for each byte; the place of the bit changes from byte to byte."""
    for at, byte in enumerate(data):
        yield data[:at] + bytes([byte ^ (1 << (5 * at % 8))]) + data[at + 1 :]


@pytest.mark.slow
def test_a_flipped_bit_in_a_summary_never_changes_a_shown_figure(run):
    path, honest = run / "summary.json", read_run(run).summary
    for spoiled in flips(path.read_bytes()):
        path.write_bytes(spoiled)
        try:
            found = read_run(run).summary
        except RunError as error:
            assert "put it back from a copy, or remove it and run the same command again" in str(error)
            assert "\n" not in str(error)
        else:
            assert found == honest


@pytest.mark.parametrize("copied", [pytest.param(True, marks=pytest.mark.slow), False])
def test_a_flipped_bit_in_a_line_never_changes_a_figure_and_lost_rounds_are_reported(run, copied):
    path, honest = run / "rounds.jsonl", read_run(run).rounds
    if not copied:
        (run / "rounds.copy.jsonl").unlink()
    for spoiled in list(flips(path.read_bytes()))[::7]:
        path.write_bytes(spoiled)
        found = read_run(run)
        assert all(line in honest for line in found.rounds)
        assert len(found.rounds) == len(honest) or "nothing is known of rounds" in found.faults
        assert list(found.rounds) == list(honest) or not copied
        assert found.faults or list(found.rounds) == list(honest)


def test_a_missing_line_is_reported(run):
    path = run / "rounds.jsonl"
    path.write_text("".join(line for line in path.read_text().splitlines(True)[:-1]))
    assert read_run(run).faults == "rounds 3 are taken from rounds.copy.jsonl"
    (run / "rounds.copy.jsonl").unlink()
    assert "nothing is known of rounds 3" in read_run(run).faults


def test_a_damaged_line_of_the_copy_is_not_used(run):
    honest, copy = read_run(run).rounds, run / "rounds.copy.jsonl"
    first, second, third = copy.read_text().splitlines(True)
    copy.write_text(
        first.replace('"attempt": 0', '"attempt": 1') + second.replace('"payload"', '"payl0ad"') + third
    )
    (run / "rounds.jsonl").unlink()
    found = read_run(run)
    assert list(found.rounds) == [honest[2]]
    assert found.faults == (
        "rounds 3 are taken from rounds.copy.jsonl; nothing is known of rounds 1, 2: no figure has them in it"
    )


@pytest.mark.parametrize("ended", ["finished", "stopped"])
def test_every_line_of_a_finished_or_stopped_run_is_read_from_the_copy(run, ended):
    before = read_run(run)
    (run / "summary.json").write_text(json.dumps({**before.summary, "ended": ended}))
    (run / "rounds.jsonl").unlink()
    found = read_run(run)
    assert list(found.rounds) == list(before.rounds)
    assert found.faults == "rounds 1, 2, 3 are taken from rounds.copy.jsonl"


def test_a_run_of_an_earlier_version_is_read_without_seals_and_without_a_copy(run):
    """Its summary and its lines have no seal, there is no copy of them, and an unknown file is in the folder."""
    before = read_run(run)
    (run / "summary.json").write_text(json.dumps(before.summary))
    lines = [{key: value for key, value in line.items() if key in UNSEALED} for line in before.rounds]
    (run / "rounds.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (run / "rounds.copy.jsonl").unlink()
    (run / "ledger.sqlite").write_bytes(b"what an earlier version kept for people")
    found = read_run(run)
    assert found.summary == before.summary
    later = set(before.rounds[0]) - UNSEALED
    assert [{k: v for k, v in line.items() if k not in later} for line in found.rounds] == lines
    assert not any(line[key] for line in found.rounds for key in later & set(line)), (
        "values that no version wrote are empty"
    )


@pytest.mark.slow
def test_the_report_names_damaged_lines_and_a_damaged_summary_gives_one_line(run):
    path = run / "rounds.jsonl"
    first, *rest = path.read_text().splitlines(True)
    path.write_text(first.replace('"seconds": ', '"seconds": 9', 1) + "".join(rest))
    told = protofleet("report", "runs/small", cwd=run.parents[1])
    assert (
        told.returncode == 0
        and "damaged lines of runs/small/rounds.jsonl, left out: 1; rounds 1 are" in told.stdout
    )
    assert '<p class="danger">damaged lines of' in write_report(
        run
    ).read_text() and "left out: 1" in final_table(run)
    summary = run / "summary.json"
    summary.write_text(summary.read_text().replace('"seed": ', '"seed": 7', 1))
    told = protofleet("report", "runs/small", cwd=run.parents[1])
    assert told.returncode == 1 and "Traceback" not in told.stderr
    assert "summary.json is damaged: its content does not match its checksum; put it back" in told.stderr


@pytest.mark.slow
def test_the_same_command_writes_a_removed_summary_again(run):
    before = read_run(run).summary
    (run / "summary.json").unlink()
    done = protofleet("run", "small.toml", cwd=run.parents[1])
    assert done.returncode == 0, done.stderr
    assert read_run(run).summary == before
