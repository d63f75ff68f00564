"""A run with masked sums ends with the same bits and keeps no secret after a crash of any party at any point.

No two different vectors are masked with the keys of one attempt. `make crash` has the deaths of other runs.
"""

import pytest

from tests.crash.masked_world import METHODS, VICTIMS, MaskedDeath, masked_deaths, unbroken
from tests.crash.points import FATES
from tests.support.few_methods import few

SOME = {"fedavg": 61, "fedproto": 113}  # Every such point is in the quick test.
MANY = 29  # Every such point of a fate is in the slow test; the fates begin at other points.


@pytest.mark.parametrize("method", METHODS)
def test_a_run_without_crashes_masks_each_vector_once_and_keeps_no_secret(method):
    assert unbroken(method).problems == ()


@pytest.mark.parametrize("party", few(VICTIMS, 2))
@pytest.mark.parametrize("method", METHODS)
def test_a_crash_in_a_masked_sum_changes_no_bit_and_leaves_no_secret(method, party):
    fates = list(FATES)
    for i, death in enumerate(list(masked_deaths(method, party, "killed"))[5 :: SOME[method]]):
        death = MaskedDeath(method, party, death.point, fates[i % len(fates)])
        assert death.differences() == [], f"{death} before '{death.step}'"


@pytest.mark.slow
@pytest.mark.parametrize("fate", FATES)
@pytest.mark.parametrize("party", VICTIMS)
@pytest.mark.parametrize("method", METHODS)
def test_crashes_at_many_points_of_a_masked_sum_change_no_bit_and_leave_no_secret(method, party, fate):
    first = list(FATES).index(fate)
    some = list(masked_deaths(method, party, fate))[first::MANY]
    found = {death.step: differences for death in some if (differences := death.differences())}
    assert found == {}
