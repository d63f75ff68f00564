"""Tests that other users cannot read the files of runs in real processes, except the report."""

import os
import stat
import subprocess
from pathlib import Path

import pytest

from tests.lab.local.test_run import ROOT, SMALL, command, place

__all__ = ["place"]  # A fixture.

pytestmark = pytest.mark.slow  # Each test runs a federation in processes.


def run_with(place: Path, umask: int) -> Path:
    (place / "small.toml").write_text(SMALL.format(data=place / "data", broker="auto"))
    done = subprocess.run(
        command("run", "small.toml"), cwd=place, env={**os.environ, "PYTHONPATH": str(ROOT)}, umask=umask,
        capture_output=True, text=True, timeout=200,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return place / "runs" / "small"


def open_to_others(folder: Path) -> set[str]:
    """Return the files and folders that other users could read, write or list."""
    found = [folder, *folder.rglob("*")]
    return {str(path.relative_to(folder)) for path in found if stat.S_IMODE(path.lstat().st_mode) & 0o077}


def test_updates_snapshots_and_states_are_readable_only_by_their_owner(place):
    folder = run_with(place, 0o022)
    kept = folder / "coordinator"
    assert list(kept.glob("answers/*.log")) and list(kept.glob("snapshots/*.body"))
    assert open_to_others(kept) == set()
    for device in (folder / "devices").iterdir():
        assert list(device.glob("objects/*.body"))
        assert open_to_others(device) <= {"device.toml"}, "its settings, which `protofleet run` has written"
    for name in ("rounds.jsonl", "rounds.copy.jsonl", "summary.json"):
        assert stat.S_IMODE((folder / name).stat().st_mode) == 0o600, name
    assert {
        p.name for p in (folder / "enrolled").rglob("*key*") if stat.S_IMODE(p.stat().st_mode) & 0o077
    } == set()


def test_a_report_is_readable_by_others_with_any_umask(place):
    folder = run_with(place, 0o077)
    assert stat.S_IMODE((folder / "report.html").stat().st_mode) == 0o644


def test_folders_that_are_open_to_others_are_closed_at_the_next_start(place):
    for name in ("coordinator", "devices/device-1"):
        (place / "runs" / "small" / name).mkdir(parents=True, mode=0o755)
    folder = run_with(place, 0o022)
    for name in ("coordinator", "devices/device-1"):
        assert stat.S_IMODE((folder / name).stat().st_mode) == 0o700, name
