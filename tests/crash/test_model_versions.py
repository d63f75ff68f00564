"""After a crash at any point, each version with a final name is complete, and `current` names one."""

import json
import random
import re

import pytest

from protofleet.edge_client.serving.versions import ModelVersions, Version
from protofleet.protocol.storage.disk import Disk
from tests.crash.platter import Platter
from tests.crash.world import CountedDisk, Killed, Points
from tests.rooms import ROOT

PLAN = "ab" * 32
FATES = ("killed", "unplugged", "torn", "torn otherwise")


def files_of(number, waits):
    """Return a card and its files; the content of each can be computed from the other."""
    card = {
        "plan_sha256": PLAN, "round": number, "tensors": f"{number:064x}", "validation": 0.5 + 0.01 * (number % 4),
        "device": "owl" if waits else None,
    }  # fmt: skip
    return card, {"card.json": json.dumps(card).encode(), "model.safetensors": bytes([number]) * 999}


def wrote(versions, number, waits=False):
    card, files = files_of(number, waits)

    def fill(folder):
        for name, content in files.items():  # A death may come in the middle of each file.
            (folder / name).write_bytes(content[: len(content) // 2])
            versions.disk.before_step("write", folder / name)
            (folder / name).write_bytes(content)

    fresh = Version(
        0,
        versions.folder,
        PLAN,
        number,
        card["validation"],
        card["tensors"],
        "personal" if waits else "global",
    )
    versions.write(fresh, fill, waits=waits)


def unpins(versions):
    if versions.named("pinned"):  # The process unpinned it, and died before it could report it.
        versions.unpin()


def rolls_back(versions):
    if not versions.named("pinned"):
        versions.rollback()


STEPS = [
    lambda v: wrote(v, 1),
    lambda v: wrote(v, 2, waits=True),
    lambda v: wrote(v, 3, waits=True),
    lambda v: v.accept(PLAN, 3),
    rolls_back,
    lambda v: wrote(v, 4),
    unpins,
    lambda v: wrote(v, 5),
]


def life(folder, shelf, deadly=frozenset(), fate="killed", look=lambda folder: None):
    """Run all steps; the next process repeats a step in which the board died.

    Return the points and the versions.
    """
    points, platter = Points(deadly), Platter(folder, shelf)
    platter.folder.mkdir()
    dice = random.Random(f"{deadly} {fate}") if fate.startswith("torn") else None
    steps = list(STEPS)
    versions = ModelVersions(folder / "models", 1, CountedDisk(points, platter))
    while steps:
        try:
            steps[0](versions)
            steps.pop(0)
        except Killed:
            points.dead = False
            if fate != "killed":
                platter.cut(dice)
            versions = ModelVersions(folder / "models", 1, CountedDisk(points, platter))
            look(folder / "models")
            versions.settle()
        look(folder / "models")
    return points, versions


def look_through(folder, served_before):
    """Check the files that a reader may find at any moment."""
    if not folder.is_dir():
        return
    for entry in folder.iterdir():
        if re.fullmatch(r"v\d{6}", entry.name):
            card = json.loads((entry / "card.json").read_bytes())
            assert (entry / "model.safetensors").read_bytes() == bytes([card["round"]]) * 999, entry
    current = folder / "current"
    if served_before or current.is_symlink():
        assert re.fullmatch(r"v\d{6}", str(current.readlink())) and (current / "card.json").is_file()
    for link in ("champion", "pinned"):
        if (folder / link).is_symlink():
            assert (folder / link / "card.json").is_file()


def ended(versions):
    found = {link: versions.named(link) for link in ("current", "champion", "pinned")}
    return {link: version and version.round for link, version in found.items()}


@pytest.mark.parametrize("first", [0, *(pytest.param(first, marks=pytest.mark.slow) for first in (1, 2, 3))])
def test_current_names_a_complete_version_after_a_crash_at_any_point(tmp_path, first):
    """Each point has one of four deaths; slow runs add the other three."""
    points, whole = life(tmp_path / "unbroken", tmp_path / "shelf")
    assert {words.split()[0] for words in points.passed} == {
        "make",
        "write",
        "sync",
        "rename",
        "point",
        "remove",
    }
    page = (ROOT / "docs" / "serving.md").read_text()
    assert f"the tests try each of the {len(points.passed)} steps" in page
    served_from = (
        points.passed.index("point unbroken/models/current") + 3
    )  # The name is synced one step later.
    for point in range(1, len(points.passed) + 1):
        served, fate = point >= served_from, FATES[(first + point) % len(FATES)]
        where = tmp_path / str(point)
        _, versions = life(
            where, tmp_path / f"{point}.shelf", frozenset({point}), fate,
            lambda folder, served=served: look_through(folder, served),
        )  # fmt: skip
        assert ended(versions) == ended(whole), f"{fate} before {points.passed[point - 1]}"


class Full(Disk):
    """A disk that has no room from a step on."""

    def __init__(self, left):
        super().__init__(durable=False)
        self.left = left

    def before_step(self, step, what):
        self.left -= 1
        if self.left < 0 and step != "remove":
            raise OSError(28, "No space left on device")


def test_a_disk_that_becomes_full_at_any_step_holds_only_complete_versions(tmp_path):
    for left in range(12):
        folder = tmp_path / str(left) / "models"
        wrote(ModelVersions(folder, disk=Disk(durable=False)), 1)
        with pytest.raises(OSError, match="No space left"):
            for number in range(2, 9):
                wrote(ModelVersions(folder, disk=Full(left)), number)
        look_through(folder, served_before=True)
        assert not [entry for entry in folder.iterdir() if entry.name.endswith((".new", ".old"))] or left > 4
