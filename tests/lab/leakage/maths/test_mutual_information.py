import math

import pytest
import torch

from protofleet.lab.leakage.maths.mutual_information import (
    Bound,
    chosen_critic,
    gaussian_control,
    info_nce,
    mutual_information,
    reduced,
)

pytestmark = pytest.mark.slow


def gaussian_pairs(correlation, seed=0, rows=1_200, width=4):
    """Return pairs of Gaussian rows, and their true mutual information in nats."""
    generator = torch.Generator().manual_seed(seed)
    x, noise = torch.randn(rows, width, generator=generator), torch.randn(rows, width, generator=generator)
    y = correlation * x + math.sqrt(1 - correlation**2) * noise
    return x, y, -width / 2 * math.log(1 - correlation**2)


@pytest.mark.parametrize("correlation", [0.8, 0.95])
def test_the_bound_of_gaussian_pairs_is_above_0_and_below_the_truth(correlation):
    x, y, true = gaussian_pairs(correlation)
    found = mutual_information(x, y)
    assert 0.2 * min(true, found.cap) < found.nats < true


def test_the_bound_of_shuffled_pairs_is_0():
    for seed in range(3):
        x, y, _ = gaussian_pairs(0.95, seed)
        shuffled = y[torch.randperm(len(y), generator=torch.Generator().manual_seed(seed))]
        assert mutual_information(x, shuffled, seed).nats < 0.1


def test_a_critic_chosen_on_its_own_pairs_is_far_below_0_on_independent_rows():
    """A separate part of the pairs, on which the critic is chosen, prevents this."""
    generator = torch.Generator().manual_seed(0)
    x, y = (reduced(torch.randn(120, 30, generator=generator).double()).float() for _ in range(2))
    overfitted = chosen_critic(x[:96].repeat(2, 1), y[:96].repeat(2, 1), 96, 64, generator)
    assert info_nce(overfitted, x[96:], y[96:], 24) < -0.5
    honest = chosen_critic(x, y, 72, 24, generator)
    assert info_nce(honest, x[96:], y[96:], 24) > -0.5


def test_a_value_near_the_cap_is_marked_saturated():
    x, _, _ = gaussian_pairs(0.0)
    found = mutual_information(x, x)
    assert found.cap == pytest.approx(math.log(64)) and found.saturated and found.nats <= found.cap
    assert not Bound(1.0, found.cap).saturated


def test_the_printed_control_of_gaussian_pairs_is_above_0_and_below_the_truth():
    true, found = gaussian_control(1_200)
    assert 0.2 * true < found.nats < true
    assert found.low <= found.nats <= found.high <= found.cap
