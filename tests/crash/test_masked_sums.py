"""Whichever party of a masked sum dies at whatever point, the run ends with the same bits, and no secret is left.

No vector is masked twice with other words under the keys of one attempt. `make crash` has the deaths of other runs.
"""

import pytest

from tests.crash.masked_world import METHODS, VICTIMS, MaskedDeath, masked_deaths, unbroken
from tests.crash.points import FATES
from tests.support.few_methods import few

SOME = {"fedavg": 61, "fedproto": 113}  # Every such point is in the quick test.
MANY = 29  # Every such point of a fate is in the slow test; the fates begin at other points.


@pytest.mark.parametrize("method", METHODS)
def test_an_unbroken_run_masks_each_vector_once_and_keeps_no_secret(method):
    assert unbroken(method).problems == ()


@pytest.mark.parametrize("party", few(VICTIMS, 2))
@pytest.mark.parametrize("method", METHODS)
def test_a_death_in_a_masked_sum_changes_no_bit_and_leaves_no_secret(method, party):
    fates = list(FATES)
    for i, death in enumerate(list(masked_deaths(method, party, "killed"))[5 :: SOME[method]]):
        death = MaskedDeath(method, party, death.point, fates[i % len(fates)])
        assert death.differences() == [], f"{death} before '{death.step}'"


@pytest.mark.slow
@pytest.mark.parametrize("fate", FATES)
@pytest.mark.parametrize("party", VICTIMS)
@pytest.mark.parametrize("method", METHODS)
def test_deaths_at_many_points_of_a_masked_sum_change_no_bit(method, party, fate):
    first = list(FATES).index(fate)
    some = list(masked_deaths(method, party, fate))[first::MANY]
    found = {death.step: differences for death in some if (differences := death.differences())}
    assert found == {}
