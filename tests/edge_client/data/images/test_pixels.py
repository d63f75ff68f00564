"""Resizing and painting with integers agree, pixel by pixel, with the same operations in floating point."""

import math

import numpy as np
import pytest
from PIL import Image

from protofleet.edge_client.data.images.resize import resize
from protofleet.edge_client.data.images.transforms import ONE, AffineLimits, affine_maps, blend, blur, warp
from protofleet.edge_client.data.stable_random import StableRandom


def pictures(n, *shape):
    return np.random.default_rng(n).integers(0, 256, (n, *shape), np.uint8)


@pytest.mark.parametrize(
    ("old", "new"), [((8, 8), 28), ((16, 15), 28), ((32, 32), 28), ((28, 28), 8), ((7, 9), 7)]
)
def test_resize_equals_pillows_bilinear_filter_up_to_rounding(old, new):
    images = pictures(3, *old, 3)
    plain = np.stack(
        [np.asarray(Image.fromarray(image).resize((new, new), Image.Resampling.BILINEAR)) for image in images]
    )
    difference = np.abs(resize(images, new, new).astype(int) - plain)
    assert difference.max() <= 2


def test_a_resized_image_of_one_colour_keeps_that_colour():
    for size in (8, 31, 32, 100):
        assert (resize(np.full((2, 32, 20, 1), 201, np.uint8), size, size) == 201).all()


def test_images_resized_in_chunks_equal_images_resized_one_by_one():
    images = pictures(300, 5, 5, 1)
    one_by_one = np.concatenate([resize(images[i : i + 1], 7, 7) for i in range(300)])
    assert (resize(images, 7, 7) == one_by_one).all()


def test_a_warp_without_motion_averages_blocks_of_four_pixels():
    images = pictures(4, 64, 64)
    still = warp(images, AffineLimits(turn=0, shear=0, scale=(1000, 1000), shift=0), StableRandom("still"))
    means = images.reshape(4, 32, 2, 32, 2).astype(int).sum((2, 4))
    assert (still == (means + 2) // 4).all()


def test_a_warp_equals_a_plain_warp_in_floating_point():
    images, slant = pictures(3, 16, 24), AffineLimits(turn=180, shear=250, scale=(700, 1200), shift=3)
    plain = np.stack(
        [naive_warp(*each) for each in zip(images, *affine_maps(3, slant, StableRandom("warp")), strict=True)]
    )
    difference = np.abs(warp(images, slant, StableRandom("warp")) - plain)
    assert difference.max() < 3  # 1/256 of a pixel between black and white, and rounding


def naive_warp(image, matrix, shift):
    """Warp an image in floating point, one output pixel after the other, with four samples each."""
    height, width = image.shape
    xx, xy, yx, yy = (value / ONE for value in matrix)

    def at(row, column):
        return image[row, column] if 0 <= row < height and 0 <= column < width else 0

    def sample(x, y):
        column, row = xx * x + xy * y + width / 2 - 0.5, yx * x + yy * y + height / 2 - 0.5
        left, top = math.floor(column), math.floor(row)
        right, below = column - left, row - top
        return (at(top, left) * (1 - right) + at(top, left + 1) * right) * (1 - below) + (
            at(top + 1, left) * (1 - right) + at(top + 1, left + 1) * right
        ) * below

    fine = [
        [
            sample(j + 0.5 - height / 2 - shift[0] / 2, i + 0.5 - height / 2 - shift[1] / 2)
            for j in range(height)
        ]
        for i in range(height)
    ]
    return np.array(fine).reshape(height // 2, 2, height // 2, 2).mean((1, 3))


def test_a_warp_matrix_without_shear_is_a_rotation_and_a_scale():
    matrices, _ = affine_maps(
        200, AffineLimits(turn=180, shear=0, scale=(800, 800), shift=0), StableRandom("turn")
    )
    turns = matrices.reshape(-1, 2, 2) * 0.8 / ONE
    assert np.abs(turns @ turns.transpose(0, 2, 1) - np.eye(2)).max() < 1e-3
    angles = np.degrees(np.arctan2(turns[:, 1, 0], turns[:, 0, 0]))
    assert 15 < angles.max() <= 20 and -20 <= angles.min() < -15  # tan 10 degrees is 180/1024


def test_blend_mixes_two_pixels_in_proportion_to_the_mask():
    behind, before = np.array([10, 10, 10]), np.array([250, 250, 250])
    assert blend(behind, before, np.array([0, 255, 51])).tolist() == [10, 250, 58]


def test_a_full_blur_is_the_binomial_mean_and_a_zero_blur_changes_nothing():
    image = np.pad(pictures(1, 6, 6, 1), ((0, 1), (0, 0), (0, 0), (0, 0))).astype(np.int32)
    image[1] = image[0]
    soft = blur(image, np.array([16, 0]))
    weights = np.outer([1, 2, 1], [1, 2, 1])
    for i in range(1, 5):
        for j in range(1, 5):
            mean = (image[0, i - 1 : i + 2, j - 1 : j + 2, 0] * weights).sum() / 16
            assert soft[0, i, j, 0] == pytest.approx(mean, abs=0.51)
    assert (soft[1] == image[1]).all()
