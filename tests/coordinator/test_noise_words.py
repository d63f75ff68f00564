"""The words about the noise of a run with `[dp]`, which are printed before the run begins."""

import math
import re
from dataclasses import replace

import pytest

from protofleet.coordinator.noise_words import noise_words
from protofleet.methods.contract.plan import Network, Plan
from protofleet.methods.contract.shared_noise import most_samples
from protofleet.protocol.settings.dp import DpSettings
from protofleet.protocol.settings.secagg import SecaggSettings

PLAN = Plan("fedavg", 3, 2, network=Network("mlp"), dp=DpSettings("device", 8.0, 1e-5, 1.0, 2))


def length(devices, plan=PLAN):
    """Return how many times as long as the longest update the noise in the mean of so many devices is."""
    return float(re.search(r"the noise is ([\d.e+]+) times", noise_words(plan, devices))[1])


def test_the_noise_in_a_mean_decreases_with_the_root_of_the_number_of_devices():
    assert 9.9 < length(4) / length(400) < 10.1


@pytest.mark.parametrize("method, width", [("fedproto", PLAN.model().embedding_size), ("feddistill", 3)])
def test_a_row_of_each_class_has_noise(method, width):
    assert f"to each of {3 * width:,} numbers" in noise_words(replace(PLAN, method=method), 4)


def test_the_words_warn_while_the_noise_is_longer_than_the_updates():
    assert "so the result of a round is mostly noise; more devices" in noise_words(PLAN, 4)
    assert length(10**7) < 1 and "mostly noise" not in noise_words(PLAN, 10**7)


def test_shared_noise_decreases_with_the_root_of_the_fewest_devices_without_the_colluders():
    for colluders, parts in ((0, 7), (1, 6)):  # 7 of 10 devices are the fewest.
        shared = replace(PLAN, dp=replace(PLAN.dp, colluders=colluders), secagg=SecaggSettings())
        assert length(10) / length(10, shared) == pytest.approx(math.sqrt(parts), rel=0.02)
        assert "share noise: 7 devices, the fewest in a sum" in noise_words(shared, 10)


def test_the_words_give_the_largest_number_of_samples_of_a_device_in_a_masked_sum_over_samples():
    dp = DpSettings("sample", 8.0, 1e-5, 1.0, 2)
    shared = replace(PLAN, method="fedncm", dp=dp, secagg=SecaggSettings())
    words = noise_words(shared, 10)
    most = most_samples(dp, SecaggSettings(), 10, shared.sums)
    assert most > 1000 and words.endswith(f". A device with more than {most:,} samples takes no part")
    assert "for each sample" in words and "The devices share noise: 7 devices" in words
