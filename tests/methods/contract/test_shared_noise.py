"""Noise that devices share: its size in the sum, the settings that cannot have it, and an attack on the sum."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from protofleet.methods.contract.plan import Network, read_plan
from protofleet.methods.contract.shared_noise import (
    demand_room,
    most_colluders,
    most_samples,
    noise_field,
    shared_noise,
)
from protofleet.protocol.privacy import mechanism
from protofleet.protocol.privacy.accountant import log_ratio_of_a_sum
from protofleet.protocol.privacy.mechanism import SIGMA
from protofleet.protocol.privacy.noise import REACH, discrete_gaussian
from protofleet.protocol.secagg.terms import enough_of, threshold
from protofleet.protocol.settings.dp import DpSettings
from protofleet.protocol.settings.reader import SettingsError
from protofleet.protocol.settings.secagg import MOST_DEVICES, SecaggSettings
from tests.support.empirical_epsilon import best_bound
from tests.support.small_federation import plan

DP = DpSettings("device", 8.0, 1e-5, 1.0, 3)
SAMPLES = DpSettings("sample", 8.0, 1e-5, 3.0, 1)
SECAGG = SecaggSettings()


def made(dp=DP, secagg=SECAGG, method="fedavg"):
    rounds = 3 if dp.unit == "device" else 1
    return replace(plan(method, rounds), network=Network("mlp", 8), dp=dp, secagg=secagg)


def parts(noise, devices, enough):
    """Return the noise of each device, from fixed keys."""
    return [noise.part(enough, bytes([number]) * 32) for number in range(1, devices + 1)]


@pytest.mark.parametrize("colluders", [0, 1])
@pytest.mark.parametrize("roster, largest", [(3, 3), (4, 4), (10, 10), (5, 10)])
def test_the_fewest_devices_without_the_colluders_add_the_full_noise(roster, largest, colluders):
    noise = shared_noise(replace(DP, colluders=colluders), SECAGG, 20_000, largest)
    enough = enough_of(roster, SECAGG.least)
    total = np.sum(parts(noise, enough - colluders, enough), axis=0)
    assert total.std() == pytest.approx(SIGMA, rel=0.02)
    assert noise.mechanism.noise.sigma == SIGMA


def test_the_same_key_gives_the_same_noise_and_another_key_other_noise():
    noise = shared_noise(DP, SECAGG, 50, 4)
    one, again, other = (noise.part(3, key) for key in (b"a" * 32, b"a" * 32, b"b" * 32))
    assert np.array_equal(one, again) and not np.array_equal(one, other)


@pytest.mark.parametrize("devices, bits", [(3, 24), (20, 24), (100, 32), (MOST_DEVICES, 32)])
def test_the_field_holds_the_longest_vectors_and_the_largest_noise_of_all_devices(devices, bits):
    dp, secagg = replace(DP, colluders=1), SecaggSettings(bits=bits)
    field = noise_field(dp, secagg, devices)
    noise = shared_noise(dp, secagg, 10, devices)
    longest = noise.mechanism.whole(np.array([1e9, *[0.0] * 9])).max()
    largest = REACH * SIGMA / math.sqrt(secagg.least - 1)
    assert devices * (longest + largest) <= field.limit * devices < 2 ** (bits - 1)


@pytest.mark.parametrize("bits, devices", [(16, 3), (24, 100)])
def test_a_field_that_could_wrap_is_refused_with_its_bits(bits, devices):
    with pytest.raises(SettingsError, match=rf"secagg\.bits is {bits}, but .*bits; set secagg\.bits = 32"):
        noise_field(DP, SecaggSettings(bits=bits), devices)


def test_a_plan_whose_sum_could_wrap_is_refused():
    with pytest.raises(SettingsError, match="set secagg.bits = 32"):
        made(secagg=SecaggSettings(bits=16, limit=1.0))


@pytest.mark.parametrize("least", range(3, 20))
def test_the_most_colluders_cannot_get_two_sums_signed_in_any_roster(least):
    most = most_colluders(least)
    fits = [most < least and most < 2 * threshold(n) - n for n in range(least, 100)]
    more = [most + 1 < least and most + 1 < 2 * threshold(n) - n for n in range(least, 100)]
    assert all(fits) and not all(more)


def test_too_many_colluders_are_refused_with_both_settings():
    assert made(replace(DP, colluders=1)).dp.colluders == 1
    with pytest.raises(
        SettingsError, match=r"colluders is 2, but with secagg\.least = 3 it must be at most 1"
    ):
        made(replace(DP, colluders=2))
    assert made(replace(DP, colluders=2), SecaggSettings(least=5)).dp.colluders == 2


def test_colluders_without_masked_sums_are_refused():
    with pytest.raises(SettingsError, match="leave dp.colluders out"):
        made(replace(DP, colluders=1), secagg=None)


@pytest.mark.parametrize("method, products", [("fedncm", False), ("fed3r", True)])
@pytest.mark.parametrize("bits, devices", [(24, 3), (32, 6), (32, MOST_DEVICES)])
def test_the_words_hold_the_sum_over_the_most_samples_with_the_largest_noise(method, products, bits, devices):
    dp, secagg = replace(SAMPLES, epsilon=2.0, colluders=1), SecaggSettings(bits=bits)
    one = made(dp, secagg, method).sums
    most = most_samples(dp, secagg, devices, one)
    with pytest.raises(SettingsError, match=f"a device may have {most:,}, or the sum could wrap"):
        demand_room(dp, secagg, devices, one, most + 1)
    demand_room(dp, secagg, devices, one, most)
    # A sample whose only feature is not 0 has the largest number: the clip.
    longest = torch.zeros(1, one.of_classes.width)
    longest[0, 0] = 100.0
    vector = one.vector(longest, torch.tensor([0])).numpy() * most
    noise = shared_noise(dp, secagg, one.numbers, devices, one)
    part = REACH * SIGMA / math.sqrt(secagg.least - 1)
    assert one.of_classes.products is products and vector.max() == pytest.approx(most * dp.clip)
    steps = noise.mechanism.whole(vector).max() + part
    assert 0.95 * 2 ** (bits - 1) < devices * steps < 2 ** (bits - 1)


def test_words_without_room_for_one_sample_and_the_noise_are_refused_with_the_bits():
    with pytest.raises(
        SettingsError, match=r"no room for a single sample beside the noise; set secagg\.bits = 32"
    ):
        made(SAMPLES, SecaggSettings(bits=16), "fedncm")
    assert made(SAMPLES, method="fedncm").sums is not None


@pytest.mark.parametrize("colluders", [0, 1])
@pytest.mark.parametrize("least", [3, 7])
def test_the_server_half_knows_the_largest_noise_that_a_sum_over_samples_can_have(least, colluders):
    dp, secagg = replace(SAMPLES, colluders=colluders), SecaggSettings(least=least)
    plan = made(dp, secagg, "fedncm")
    largest = 0.0
    for devices in [*range(least, least + 6), *range(MOST_DEVICES - 3, MOST_DEVICES + 1)]:
        mechanism_of_roster = shared_noise(dp, secagg, plan.sums.numbers, devices, plan.sums).mechanism
        own = mechanism_of_roster.deviation / math.sqrt(enough_of(devices, least) - colluders)
        largest = max(largest, own * math.sqrt(devices))
    assert plan.server_half().noise.deviation == pytest.approx(largest, rel=1e-4)


def test_each_round_of_sums_over_samples_is_a_release():
    with pytest.raises(
        SettingsError, match="dp.rounds is 1, but the run has 2 rounds, and each is a release"
    ):
        replace(made(SAMPLES, method="fedncm"), rounds=2)


def test_a_plan_names_colluders_only_if_there_are_any():
    some = made(replace(DP, colluders=1))
    assert b"colluders" not in made().encode() and b"colluders" in some.encode()
    assert [read_plan(one.encode()) for one in (made(), some)] == [made(), some]


def test_the_bound_for_the_sum_of_parts_is_smaller_than_any_float_for_every_roster(monkeypatch):
    assert log_ratio_of_a_sum(SIGMA, MOST_DEVICES) == 0
    monkeypatch.setattr(mechanism, "SIGMA", 4.0)
    with pytest.raises(AssertionError, match="4 parts are too small for a sum"):
        mechanism.Mechanism("device", 1.0, 1, 1.0, parties=4)


# The attack: a coordinator that knows the colluders' parts compares the sum with and without the longest vector.

TRIALS, DELTA, EPSILON = 200_000, 0.01, 1.0


class OneNumber:
    """Sums of one number over the samples of a device, whose largest length is 2."""

    numbers, sensitivity, largest = 1, 2.0, 2.0


def attack(colluders, unit="device"):
    """Return a lower bound of epsilon from sums of one number of the fewest devices of a roster of 4."""
    dp = DpSettings(unit, EPSILON, DELTA, 1.0, 1, colluders)
    noise = shared_noise(dp, SECAGG, 1, 4, OneNumber() if unit == "sample" else None)
    # The longest update of a device, or one sample whose part has the largest length.
    longest = int(noise.mechanism.whole(np.array([50.0 if unit == "device" else 2.0]))[0])
    many = replace(noise, mechanism=replace(noise.mechanism, clip=1e6, numbers=TRIALS))
    absent = np.sum(parts(many, 3 - colluders, 3), axis=0)
    present = longest + np.sum([many.part(3, bytes([9, n]) * 16) for n in range(3 - colluders)], axis=0)
    return best_bound(present, absent, DELTA)


@pytest.mark.parametrize("colluders, unit", [(0, "device"), (1, "device"), (1, "sample")])
def test_the_epsilon_that_an_attack_on_the_sum_finds_is_at_most_the_stated_epsilon(colluders, unit):
    assert 0.4 < attack(colluders, unit) <= EPSILON


@pytest.mark.parametrize("colluders, unit", [(0, "device"), (1, "device"), (1, "sample")])
def test_the_same_attack_finds_that_half_of_the_noise_is_too_little(colluders, unit, monkeypatch):
    monkeypatch.setattr(mechanism, "discrete_gaussian", lambda sigma: discrete_gaussian(sigma / 2))
    assert attack(colluders, unit) > EPSILON
