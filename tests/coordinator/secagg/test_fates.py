"""All drop-outs of small fleets: each device may drop out at any step, or never (its fate)."""

import itertools
import random
from itertools import repeat

import numpy as np
import pytest

from protofleet.coordinator.secagg.steps import AttemptEndedError
from protofleet.protocol.secagg.terms import threshold
from tests.support.secagg_fleet import NAMES, STEPS, Fleet, numbers, plain_sum, terms


def gives_a_sum(fate):
    """Return whether enough devices answer each step, if device i drops out at step fate[i]."""
    left = [sum(one is None or STEPS.index(one) > place for one in fate) for place in range(len(STEPS))]
    return left[0] >= 3 and min(left[1:]) >= threshold(left[0])


def checked(devices, fate):
    """Run an attempt in which device i drops out at step fate[i]; return whether there is a sum."""
    falls = {name: step for name, step in zip(NAMES, fate, strict=False) if step}
    fleet = Fleet(terms(devices), numbers(devices), falls, restarts=True)
    if not gives_a_sum(fate):
        with pytest.raises(AttemptEndedError, match="needed|must have"):
            fleet.run()
        return False
    found = fleet.run()
    assert found.survivors == tuple(
        name for name in NAMES[:devices] if name not in falls or STEPS.index(falls[name]) > 2
    )
    assert np.array_equal(found.words, plain_sum(fleet.terms, fleet.vectors, found.survivors))
    assert not found.wrong_shares
    return True


def all_fates(devices):
    return itertools.product((None, *STEPS), repeat=devices)


def fates_up_to_names(devices):
    """Yield each fate once up to the names of the devices, with shuffled names."""
    dice = random.Random(devices)
    for fate in itertools.combinations_with_replacement((None, *STEPS), devices):
        shuffled = list(fate)
        dice.shuffle(shuffled)
        yield shuffled


@pytest.mark.parametrize(("devices", "sums"), [(3, 1), (4, 6)])
def test_up_to_two_devices_drop_out_and_the_sum_is_plain_or_the_attempt_ends(devices, sums):
    fates = [fate for fate in fates_up_to_names(devices) if fate.count(None) >= devices - 2]
    assert len(fates) == 21
    assert sum(map(checked, repeat(devices), fates)) == sums


@pytest.mark.slow
@pytest.mark.parametrize("last", list(itertools.product((None, *STEPS), repeat=2)), ids=str)
@pytest.mark.parametrize("devices", [3, 4, 5])
def test_each_pattern_of_drop_outs_gives_the_plain_sum_or_ends_the_attempt(devices, last):
    """Split the fates by those of the last two devices, because all fates of five devices take minutes."""
    fates = [fate for fate in all_fates(devices) if fate[-2:] == last]
    assert len(fates) == 6 ** (devices - 2)
    for fate in fates:
        checked(devices, fate)


@pytest.mark.parametrize(("devices", "sums"), [(3, 1), (4, 21), (5, 116)])
def test_the_number_of_drop_out_patterns_that_give_a_sum_is_as_expected(devices, sums):
    assert sum(map(gives_a_sum, all_fates(devices))) == sums


@pytest.mark.slow
def test_each_pattern_of_drop_outs_of_six_devices_gives_the_plain_sum_or_ends_the_attempt():
    found = [checked(6, fate) for fate in fates_up_to_names(6)]
    assert len(found) == 462
    assert 0 < sum(found) < 462


def test_twenty_devices_of_which_four_drop_out_give_the_plain_sum():
    falls = dict(zip(NAMES[3:7], STEPS[1:], strict=True))
    fleet = Fleet(terms(20, length=1000, bits=32), numbers(20, length=1000), falls, restarts=True)
    found = fleet.run()
    assert len(found.survivors) == 18
    assert np.array_equal(found.words, plain_sum(fleet.terms, fleet.vectors, found.survivors))
