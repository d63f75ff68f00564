"""The three synthetic domains, [N, 32, 32, 3].

`synth` looks like SynthDigits, `street` looks like SVHN, and `mnistm` is made by the formula of MNIST-M. The test
images use other fonts and other areas of the photographs than the training images. In mnistm, they also use other
digits.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from protofleet.edge_client.data.domain import Labels
from protofleet.edge_client.data.images.photos import crops, draw_places
from protofleet.edge_client.data.images.resize import Pixels
from protofleet.edge_client.data.images.transforms import (
    AffineLimits,
    IntPixels,
    add_noise,
    blend,
    blur,
    per_image,
    to_pixels,
    warp,
)
from protofleet.edge_client.data.stable_random import Integers, StableRandom

GLYPHS: Final = Path(__file__).with_name("glyphs.npz")
TEST_FONTS: Final = ("STIX", "cmss")  # font families that only test images use
SIDE: Final = 32  # side of an image, in pixels
BOX: Final = 64  # side of a glyph, in pixels
CHUNK: Final = (
    250  # number of images that are made in one step; a different number would change the random images
)
TRIES: Final = 16  # number of random colours that are made for an image; only one of them is used


def mnistm(digits: Pixels, photos: list[Pixels], test: bool, rng: StableRandom) -> Pixels:
    """Return |photo - digit| for each digit, with a random crop of a photograph."""
    backgrounds = crops(photos, draw_places(len(digits), rng), SIDE, test).astype(np.int32)
    return to_pixels(np.abs(backgrounds - digits))


def synth(labels: Labels, test: bool, rng: StableRandom) -> Pixels:
    glyphs = read_glyphs(test)
    return _in_chunks(labels, lambda part: _synth(part, glyphs, rng))


def street(labels: Labels, photos: list[Pixels], test: bool, rng: StableRandom) -> Pixels:
    glyphs = read_glyphs(test)
    return _in_chunks(labels, lambda part: _street(part, glyphs, photos, test, rng))


def read_glyphs(test: bool) -> Pixels:
    """Return the shapes of the digits for training or for the test, [fonts, 10, BOX, BOX], with values 0 and 255."""
    with np.load(GLYPHS, allow_pickle=False) as file:
        for_test = np.array([str(name).startswith(TEST_FONTS) for name in file["names"]])
        bits: Pixels = np.unpackbits(file["bits"][for_test == test], axis=-1)
    bits *= 255
    return bits


def _in_chunks(labels: Labels, draw: Callable[[Labels], Pixels]) -> Pixels:
    return np.concatenate([draw(labels[i : i + CHUNK]) for i in range(0, len(labels), CHUNK)])


def _synth(labels: Labels, glyphs: Pixels, rng: StableRandom) -> Pixels:
    n = len(labels)
    shapes = glyphs[rng.below(len(glyphs), n), labels]
    # The box has a height of 64 pixels, and the digit in the box has a height of 54 pixels. With a scale of 666 to
    # 1111, the digit has a height of 18 to 30 pixels in an image of 32 pixels.
    mask = warp(shapes, AffineLimits(turn=180, shear=250, scale=(666, 1111), shift=5), rng)
    background, foreground = _colours(n, 60, rng)
    image = blend(background + _gradient(n, rng), foreground, mask[..., None].astype(np.int32))
    image = blur(image, np.maximum(rng.between(-16, 16, n), 0))
    return to_pixels(add_noise(image, rng.between(0, 12, n), rng))


def _street(labels: Labels, glyphs: Pixels, photos: list[Pixels], test: bool, rng: StableRandom) -> Pixels:
    n = len(labels)
    strips = _add_neighbours(labels, glyphs, rng)
    mask = warp(strips, AffineLimits(turn=72, shear=150, scale=(720, 1080), shift=4), rng).astype(np.int32)
    # This makes the digits partly transparent.
    mask = mask[..., None] * per_image(rng.between(166, 256, n)) >> 8
    background = _background(crops(photos, draw_places(n, rng), SIDE, test), rng)
    image = blend(background, _contrasting_colours(background, 45, rng), mask)
    contrast, light = per_image(rng.between(128, 256, n)), per_image(rng.between(-30, 30, n))
    image = ((image - 128) * contrast >> 8) + 128 + light
    image = add_noise(image, rng.between(0, 8, n), rng)
    return to_pixels(blur(image, rng.between(2, 16, n)))


def _add_neighbours(labels: Labels, glyphs: Pixels, rng: StableRandom) -> Pixels:
    """Return each digit in the middle of a strip, with other digits beside it, [N, BOX, 2 BOX].

    On each side there is a digit of the same font with a probability of 3/5. The two sides are drawn separately.
    """
    n = len(labels)
    fonts, neighbours = rng.below(len(glyphs), n), rng.below(10, n, 2)
    there, gap, drop = rng.below(5, n, 2) < 3, rng.between(40, 52, n), rng.between(-4, 4, n, 2)
    strips = np.zeros((n, BOX, 2 * BOX), np.uint8)
    strips[:, :, BOX // 2 : BOX // 2 + BOX] = glyphs[fonts, labels]
    for i, side in np.argwhere(there):
        neighbour = np.roll(glyphs[fonts[i], neighbours[i, side]], drop[i, side], axis=0)
        left = BOX // 2 + (gap[i] if side else -gap[i])
        first, last = max(left, 0), min(left + BOX, 2 * BOX)
        target = strips[i, :, first:last]
        np.maximum(target, neighbour[:, first - left : last - left], out=target)
    return strips


def _background(photo: Pixels, rng: StableRandom) -> IntPixels:
    """Return a photograph blended with one colour, so that the result has little contrast."""
    n = len(photo)
    tint = rng.below(256, n, 1, 1, 3).astype(np.int32)
    return blend(tint, photo.astype(np.int32), per_image(rng.between(64, 178, n)))


def _contrasting_colours(background: IntPixels, gap: int, rng: StableRandom) -> IntPixels:
    """Return colours [N, 1, 1, 3] whose brightness differs from the background's mean by `gap` levels or more."""
    # The sum of the three channels, averaged over all pixels of an image.
    mean = background.sum((1, 2, 3)) // (SIDE * SIDE)
    foregrounds = rng.below(256, len(background), TRIES, 3)
    return _first(foregrounds, np.abs(foregrounds.sum(2) - mean[:, None]) >= 3 * gap)


def _colours(n: int, gap: int, rng: StableRandom) -> tuple[IntPixels, IntPixels]:
    """Return the colours of N backgrounds and of N foregrounds, [N, 1, 1, 3] each.

    The brightness of the two colours of an image differs by at least `gap` grey levels. If all TRIES pairs of colours
    have smaller differences, the first pair is used.
    """
    backgrounds, foregrounds = rng.below(256, n, TRIES, 3), rng.below(256, n, TRIES, 3)
    differ = np.abs(backgrounds.sum(2) - foregrounds.sum(2)) >= 3 * gap
    return _first(backgrounds, differ), _first(foregrounds, differ)


def _first(colours: Integers, mask: NDArray[np.bool_]) -> IntPixels:
    """Return, for each image, the first colour that `mask` allows, or the first colour if `mask` allows no colour."""
    chosen: Integers = colours[np.arange(len(colours)), mask.argmax(1)]
    return chosen.astype(np.int32).reshape(-1, 1, 1, 3)


def _gradient(n: int, rng: StableRandom) -> IntPixels:
    """Return random gradients of brightness, [N, SIDE, SIDE, 3].

    A gradient changes the brightness of a corner by at most 40 grey levels.
    """
    axis = (2 * np.arange(SIDE) + 1 - SIDE).astype(np.int32)
    across, down = per_image(rng.between(-20, 20, n)), per_image(rng.between(-20, 20, n))
    colour = rng.below(257, n, 1, 1, 3).astype(np.int32)
    gradient: IntPixels = across * axis[None, None, :, None] + down * axis[None, :, None, None]
    gradient = gradient * colour // (256 * SIDE)
    return gradient
