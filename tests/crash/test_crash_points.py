"""Tests that a run ends with the same bits after a crash of any party at any point.

`make crash` has all points; here are some.
"""

import itertools
import re
from pathlib import Path

import numpy as np
import pytest

from protofleet.edge_client.state.device import DeviceState
from protofleet.edge_client.state.file import Answer
from tests.crash.platter import FrailDisk, Platter
from tests.crash.points import FATES, METHODS, Death, deaths, unbroken
from tests.crash.world import crashing, outcome

SOME = {"coordinator": 17, "device-1": 17}


@pytest.mark.parametrize("party", ["coordinator", "device-1"])
@pytest.mark.parametrize(
    "method", [m if m == "fedavg" else pytest.param(m, marks=pytest.mark.slow) for m in METHODS]
)
def test_a_crash_at_any_point_changes_no_bit_of_the_run(method, party):
    fates = list(FATES)
    some = list(deaths(method, party, ("killed",)))[:: SOME[party]]
    for i, death in enumerate(some):
        death = Death(method, party, death.point, fates[i % len(fates)])
        assert death.differences() == [], f"{death} before '{unbroken(method)[1][party][death.point - 1]}'"


def test_a_crash_while_answers_are_in_memory_changes_no_bit_of_the_run(tmp_path):
    whole, _ = unbroken("fedavg")
    run = crashing(tmp_path / "unbroken", "fedavg", memory=1 << 20).live()
    points = run.points["coordinator"].passed
    assert list(whole.differences(outcome(run))) == [] and not any(".part" in words for words in points)
    for point in range(5, len(points), 17):
        deadly = {"coordinator": frozenset({point})}
        broken = crashing(tmp_path / str(point), "fedavg", deadly, memory=1 << 20, power=True).live()
        assert broken.points["coordinator"].deaths == 1
        assert list(whole.differences(outcome(broken))) == [], f"before '{points[point - 1]}'"


def test_the_crash_points_are_the_disk_and_network_steps_that_the_docs_list():
    _, passed = unbroken("fedavg")
    steps = {name: {words.split()[0] for words in points} for name, points in passed.items()}
    assert steps["coordinator"] == {
        "make", "sync", "rename", "link", "remove", "commit", "merge", "publish",
    }  # fmt: skip
    assert steps["device-1"] == {"make", "sync", "rename", "link", "point", "overwrite", "remove", "publish"}
    chapter = (Path(__file__).parents[2] / "docs" / "reliability.md").read_text()
    table = chapter.split("| point |")[1].split("\n\n")[0]
    assert set(re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE)) == steps["coordinator"] | steps["device-1"]
    assert passed == unbroken.__wrapped__("fedavg")[1], (
        "the points are the same in every run, so that a number names a point"
    )


class Thrown:
    """Random numbers that decide for each name whether its newest version survives a power cut.

    After `names` each newest version survives.
    """

    def __init__(self, names):
        self.names = itertools.chain(names, itertools.repeat(True))

    def random(self):
        return 0.0 if next(self.names) else 1.0


class PowerCut(Exception):
    pass


class Fused(FrailDisk):
    """A disk whose power fails just before a step on a path."""

    blows_at = ("", Path())

    def before_step(self, step, what):
        if (step, what) == self.blows_at:
            raise PowerCut


@pytest.mark.parametrize("names", list(itertools.product((False, True), repeat=5)))
@pytest.mark.parametrize("step", ["rename device.json", "sync ."])
def test_a_device_keeps_its_answers_whichever_file_names_survive_a_power_cut(tmp_path, step, names):
    """Each name is the old or the new one, independent of the others: a file system need not keep their order."""
    platter = Platter(tmp_path / "device", tmp_path / "shelf")
    state = DeviceState(platter.folder, disk=(disk := Fused(platter)))
    state.boot(1)
    state.begin("spring", "ab" * 32)
    answers = [
        Answer(f"{n:064x}", n, "train", "ab" * 32, state.store.put({"w": np.full(3, n)}).object.hex(), 5, {})
        for n in (1, 2, 3)
    ]
    for answer in answers[:2]:
        state.save_answer(answer, {})
    state.keep_only({bytes.fromhex(answers[2].object)})
    what, name = step.split()
    disk.blows_at = what, platter.folder / name
    with pytest.raises(PowerCut):
        state.save_answer(answers[2], {})
    platter.cut(Thrown(names))
    assert DeviceState(platter.folder, durable=False).saved.answers[-1].round in (2, 3)
