"""Whoever dies, and wherever: the run comes to the same bits. `make crash` has all points, here are some."""

import re
from pathlib import Path

import pytest

from tests.crash.points import FATES, METHODS, Death, deaths, unbroken

SOME = {"coordinator": 17, "device-1": 8}


@pytest.mark.parametrize("party", ["coordinator", "device-1"])
@pytest.mark.parametrize("method", METHODS)
def test_a_death_at_any_point_changes_no_bit(method, party):
    fates = list(FATES)
    some = list(deaths(method, party, ("killed",)))[:: SOME[party]]
    for i, death in enumerate(some):
        death = Death(method, party, death.point, fates[i % len(fates)])
        assert death.differences() == [], f"{death} before '{unbroken(method)[1][party][death.point - 1]}'"


def test_the_points_are_those_at_which_something_comes_to_last_or_leaves():
    _, passed = unbroken("fedavg")
    steps = {name: {words.split()[0] for words in points} for name, points in passed.items()}
    assert steps["coordinator"] == {"make", "sync", "rename", "remove", "commit", "publish"}
    assert steps["device-1"] == {"make", "sync", "rename", "remove", "publish"}
    chapter = (Path(__file__).parents[2] / "docs" / "reliability.md").read_text()
    table = chapter.split("| point |")[1].split("\n\n")[0]
    assert set(re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE)) == steps["coordinator"] | steps["device-1"]
    assert passed == unbroken.__wrapped__("fedavg")[1], (
        "the same in every run, or a number would mean nothing"
    )
