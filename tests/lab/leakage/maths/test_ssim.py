import numpy as np
import pytest

from protofleet.lab.leakage.maths.recovery import psnr
from protofleet.lab.leakage.maths.ssim import SMALL_MEAN, SMALL_VARIANCE, ssim, window

RNG = np.random.default_rng(0)
TRUE = RNG.uniform(-1, 1, size=(3, 2, 14, 12))


def plain_ssim(a, b):
    """Return the SSIM of two images of one channel, window by window."""
    weights = np.outer(window(a.shape[0]), window(a.shape[1]))
    rows, columns = weights.shape
    values = []
    for i in range(a.shape[0] - rows + 1):
        for j in range(a.shape[1] - columns + 1):
            x, y = (image[i : i + rows, j : j + columns] for image in (a, b))
            mean, other = (weights * x).sum(), (weights * y).sum()
            variance, spread = (weights * (x - mean) ** 2).sum(), (weights * (y - other) ** 2).sum()
            both = (weights * (x - mean) * (y - other)).sum()
            light = (2 * mean * other + SMALL_MEAN) / (mean**2 + other**2 + SMALL_MEAN)
            values.append(light * (2 * both + SMALL_VARIANCE) / (variance + spread + SMALL_VARIANCE))
    return np.mean(values)


def test_ssim_is_the_mean_over_windows_and_channels():
    found = np.clip(TRUE + RNG.normal(0, 0.3, TRUE.shape), -1, 1)
    expected = [
        np.mean([plain_ssim(a, b) for a, b in zip(*pair, strict=True)])
        for pair in zip(found, TRUE, strict=True)
    ]
    assert ssim(found, TRUE) == pytest.approx(np.array(expected))


def test_ssim_is_1_for_equal_images_and_about_0_for_other_noise():
    assert ssim(TRUE, TRUE) == pytest.approx(1)
    assert np.abs(ssim(RNG.permuted(TRUE, axis=2), TRUE)).max() < 0.3


def test_ssim_is_higher_for_a_lighter_image_than_for_noise_of_the_same_psnr():
    true = 0.5 + 0.3 * TRUE
    lighter, noisy = true + 0.2, true + 0.2 * RNG.choice([-1.0, 1.0], true.shape)
    flat = [one.reshape(3, -1) for one in (lighter, noisy, true)]
    assert psnr(flat[0], flat[2]) == pytest.approx(psnr(flat[1], flat[2]))
    assert (ssim(lighter, true) > ssim(noisy, true) + 0.1).all()


@pytest.mark.parametrize(("side", "size"), [(16, 11), (11, 11), (8, 7), (7, 7), (1, 1)])
def test_a_small_image_has_a_window_of_an_odd_number_of_pixels(side, size):
    assert len(window(side)) == size and window(side).sum() == pytest.approx(1)
