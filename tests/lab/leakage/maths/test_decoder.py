import numpy as np
import pytest
import torch

from protofleet.lab.leakage.maths.decoder import chosen_network, fitted_decoder, missed, with_means
from protofleet.lab.leakage.maths.recovery import fitted_ridge, psnr

RNG = np.random.default_rng(0)


def rows_and_pixels(seed, count=300):
    """Return rows, and pixels that are not linear in them."""
    rng = np.random.default_rng(seed)
    rows = rng.normal(size=(count, 4))
    return rows, np.tanh(np.abs(rows) @ np.random.default_rng(99).normal(size=(4, 12)))


@pytest.mark.slow
def test_a_decoder_is_better_than_a_linear_map_on_unseen_images():
    others, true = rows_and_pixels(1)
    decoded = psnr(fitted_decoder(*rows_and_pixels(0))(others), true).mean()
    assert decoded > psnr(fitted_ridge(*rows_and_pixels(0))(others), true).mean() + 3


def test_a_decoder_of_random_rows_is_as_good_as_the_mean_image():
    """It is not worse either, because the network is chosen on rows that it was not trained on."""
    pixels, true = rows_and_pixels(0, 150)[1], rows_and_pixels(1)[1]
    decode = fitted_decoder(RNG.normal(size=(150, 20)), pixels)
    mean = np.tile(pixels.mean(0), (len(true), 1))
    gain = psnr(decode(RNG.normal(size=(300, 20))), true).mean() - psnr(mean, true).mean()
    assert -0.5 < gain < 0.1


def test_an_overfitted_network_is_not_chosen():
    """A network that is chosen on its training rows looks good on them, and is worse on other rows."""
    x, targets, held, held_targets = (torch.from_numpy(RNG.normal(size=(80, 6))).float() for _ in range(4))
    assert chosen_network(x, targets, held, held_targets, 0) is None
    fault = chosen_network(x, targets, x, targets, 0)
    assert missed(fault, x, targets) < 0.5 * float(targets.square().mean()), (
        "the overfitted network must look good on its own rows"
    )
    assert missed(fault, held, held_targets) > 1.1 * float(held_targets.square().mean())


def test_each_mean_for_class_rows_is_a_mean_of_samples_of_one_class():
    classes = np.arange(40) % 2
    rows = np.where(classes == 0, -1.0, 1.0)[:, None]
    both, pixels = with_means(rows, 3 * rows, classes)
    assert len(both) == 80 and set(both[40:, 0]) == {-1.0, 1.0}
    assert np.allclose(pixels, 3 * both)
