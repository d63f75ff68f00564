"""A run with a budget has the same rounds and bits, within the budget, wherever its coordinator crashes.

The budget of device-1 holds two rounds of four, because its answers are sent in small blocks. The quorum
is all devices.
"""

from dataclasses import replace
from functools import lru_cache

import pytest

from protofleet.methods.contract.plan import Network
from protofleet.protocol.settings.budget import BudgetSettings
from tests.crash.world import DEVICES, POLICY, SERVES, TURN_SECONDS, Crashing, outcome
from tests.support.small_federation import plan, shard

LIMIT = 252_000
ROUNDS = 4


def crashing(folder, deadly=(), **more):
    shards = {name: shard(i, 12) for i, name in enumerate(DEVICES)}
    made = replace(plan("fedavg", ROUNDS, epochs=1), network=Network("mlp", 40))
    return Crashing(
        made, shards, replace(POLICY, rounds=ROUNDS), folder, deadly={"coordinator": frozenset(deadly)},
        serves=SERVES, turn_seconds=TURN_SECONDS, budget=BudgetSettings(bytes_per_device=LIMIT), **more,
    )  # fmt: skip


def charged(run):
    return dict(run.service.run.budget.spent.of_all())


@lru_cache
def unbroken(folder):
    run = crashing(folder / "unbroken").live()
    return outcome(run), run.points["coordinator"].passed, charged(run), run.service.run.view.ended_early


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    return unbroken(tmp_path_factory.mktemp("whole"))


def test_a_run_without_crashes_ends_after_two_of_four_rounds_and_an_evaluation(whole):
    found, _, sizes, words = whole
    assert [(line["round"], line["kind"]) for line in found.rounds] == [
        (1, "training"), (2, "training"), (3, "evaluation"),
    ]  # fmt: skip
    assert "the budget of 1 of 3 devices does not hold one more round" in words
    assert sizes["device-0"] < sizes["device-1"] <= LIMIT


@pytest.mark.parametrize(
    ("first", "every", "power"),
    [(3, 41, False), *(pytest.param(1, 3, power, marks=pytest.mark.slow) for power in (False, True))],
)
def test_a_crash_at_any_point_changes_neither_the_rounds_nor_their_bits(whole, tmp_path, first, every, power):
    found, passed, sizes, _ = whole
    for point in range(first, len(passed), every):
        broken = crashing(tmp_path / str(point), {point}, power=power).live()
        assert broken.points["coordinator"].deaths == 1
        assert list(found.differences(outcome(broken))) == [], f"before '{passed[point - 1]}'"
        assert "does not hold one more round" in broken.service.run.view.ended_early
        for device, size in charged(broken).items():
            assert size <= LIMIT and (power or size >= sizes[device] - LIMIT // 50)
