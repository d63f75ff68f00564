"""Simulated federations whose devices have budgets keep all promises, and some runs end early."""

from dataclasses import replace

import pytest

from tests.simulator.run import run_scenario
from tests.simulator.scenario import draw

SIZES = (
    15_000,
    40_000,
    90_000,
)  # Bytes; depending on the scenario, enough for no round, for some rounds or for all rounds.


def budgeted(seed):
    scenario = draw(seed)
    return replace(scenario, budget=SIZES[seed % 3]) if scenario.method == "tally" else scenario


@pytest.mark.parametrize(
    "seeds", [(1, 5), *(pytest.param(range(i, i + 25), marks=pytest.mark.slow) for i in (0, 30, 60))]
)
def test_federations_with_a_budget_keep_all_promises(seeds):
    for seed in seeds:
        verdict = run_scenario(budgeted(seed))
        assert not verdict.problem, f"seed {seed} with a budget of {budgeted(seed).budget}\n{verdict.details}"
