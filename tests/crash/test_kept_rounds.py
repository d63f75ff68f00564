"""A coordinator that crashes while it writes or deletes kept answers loses no file and leaves no torn file."""

import functools
import json
import random
import tempfile
from pathlib import Path

import pytest

from protofleet.coordinator.spool.kept_rounds import KEPT, kept_folders
from protofleet.protocol.wire.arrays import Body
from tests.crash.points import METHODS
from tests.crash.world import crashing, outcome

KEEP = ("last",)  # Round 1 is written as the last one at its time, and deleted when round 2 is written.
EVERY = 13  # The test takes every thirteenth point; with 1, it takes all of them.


def content_of(run):
    """Return the kept files, without the enrolments, which are drawn anew in each simulation."""
    found = {}
    for folder in kept_folders(run.folder / "coordinator" / KEPT):
        for path in folder.iterdir():
            content = path.read_bytes()
            if path.suffix == ".json":
                content = {key: value for key, value in json.loads(content).items() if key != "holders"}
            else:  # A torn file has no table, or fewer bytes than its table says.
                dict(Body(lambda start, stop, content=content: content[start:stop], len(content)))
            found[f"{folder.name}/{path.name}"] = content
    return found


def hidden_in(run):
    return [path.name for path in (run.folder / "coordinator" / KEPT).glob(".*")]


@functools.cache
def unbroken(method):
    with tempfile.TemporaryDirectory() as folder:
        run = crashing(Path(folder), method, keep=KEEP).live()
        passed = run.points["coordinator"].passed
        points = [number for number, words in enumerate(passed, 1) if f"/{KEPT}" in words]
        return outcome(run), content_of(run), points, passed


@pytest.mark.parametrize("fate", ["killed", "unplugged", "torn"])
@pytest.mark.parametrize(
    "method", [m if m == "fedavg" else pytest.param(m, marks=pytest.mark.slow) for m in METHODS]
)
def test_a_crash_at_any_write_changes_no_kept_answers(tmp_path, method, fate):
    whole, kept, points, passed = unbroken(method)
    phases = ("train", "mix") if method == "fedpall" else ("train",)
    names = ["answers.json", "broadcast.body", *(f"device-{i}.answer" for i in range(3))]
    assert sorted(kept) == sorted(f"2.{p}/{name}" for p in phases for name in names)
    assert len(points) > 10, "a folder is made, files are synced, and the folder is renamed"
    for point in points[::EVERY]:
        dice = random.Random(point) if fate == "torn" else None
        deadly = {"coordinator": frozenset({point})}
        run = crashing(tmp_path / str(point), method, deadly, keep=KEEP, power=fate != "killed", dice=dice)
        run.live()
        assert run.points["coordinator"].deaths == 1
        assert list(whole.differences(outcome(run))) == [], f"before '{passed[point - 1]}'"
        assert content_of(run) == kept and not hidden_in(run), f"before '{passed[point - 1]}'"


def test_kept_answers_change_no_bit_of_a_run(tmp_path):
    run = crashing(tmp_path, "fedpall").live()
    assert list(unbroken("fedpall")[0].differences(outcome(run))) == []
    assert not (tmp_path / "coordinator" / KEPT).exists()
