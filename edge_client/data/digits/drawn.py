"""The three made domains, [N, 32, 32, 3].

`synth` looks like SynthDigits, `street` like SVHN, and `mnistm` is MNIST-M's formula. Training and test differ in
their fonts, in their areas of the photographs and, for mnistm, in their handwriting.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from protofleet.edge_client.data.domain import Labels
from protofleet.edge_client.data.images.paint import (
    AffineLimits,
    Canvas,
    blend,
    blurred,
    per_image,
    to_pixels,
    warped,
    with_noise,
)
from protofleet.edge_client.data.images.photos import crops, draw_places
from protofleet.edge_client.data.images.resize import Pixels
from protofleet.edge_client.data.stable_random import Integers, StableRandom

GLYPHS: Final = Path(__file__).with_name("glyphs.npz")
TEST_FONTS: Final = ("STIX", "cmss")  # families of which training sees nothing
SIDE: Final = 32  # pixels of an image
BOX: Final = 64  # pixels of a glyph
CHUNK: Final = 250  # images at a time; another number would give other images
TRIES: Final = 16  # colours to choose from


def mnistm(digits: Pixels, photos: list[Pixels], test: bool, rng: StableRandom) -> Pixels:
    """|photo - digit|"""
    behind = crops(photos, draw_places(len(digits), rng), SIDE, test).astype(np.int32)
    return to_pixels(np.abs(behind - digits))


def synth(labels: Labels, test: bool, rng: StableRandom) -> Pixels:
    glyphs = read_glyphs(test)
    return _in_chunks(labels, lambda part: _synth(part, glyphs, rng))


def street(labels: Labels, photos: list[Pixels], test: bool, rng: StableRandom) -> Pixels:
    glyphs = read_glyphs(test)
    return _in_chunks(labels, lambda part: _street(part, glyphs, photos, test, rng))


def read_glyphs(test: bool) -> Pixels:
    """[fonts, 10, BOX, BOX] of 0 and 255: the shapes for training or those for the test."""
    with np.load(GLYPHS, allow_pickle=False) as file:
        for_test = np.array([str(name).startswith(TEST_FONTS) for name in file["names"]])
        bits: Pixels = np.unpackbits(file["bits"][for_test == test], axis=-1)
    bits *= 255
    return bits


def _in_chunks(labels: Labels, paint: Callable[[Labels], Pixels]) -> Pixels:
    return np.concatenate([paint(labels[i : i + CHUNK]) for i in range(0, len(labels), CHUNK)])


def _synth(labels: Labels, glyphs: Pixels, rng: StableRandom) -> Pixels:
    n = len(labels)
    shapes = glyphs[rng.below(len(glyphs), n), labels]
    # A digit is 54 of its box's 64 pixels high; 666 to 1111 makes that 18 to 30 of 32.
    mask = warped(shapes, AffineLimits(turn=180, shear=250, scale=(666, 1111), shift=5), rng)
    paper, ink = _colours(n, 60, rng)
    image = blend(paper + _ramp(n, rng), ink, mask[..., None].astype(np.int32))
    image = blurred(image, np.maximum(rng.between(-16, 16, n), 0))
    return to_pixels(with_noise(image, rng.between(0, 12, n), rng))


def _street(labels: Labels, glyphs: Pixels, photos: list[Pixels], test: bool, rng: StableRandom) -> Pixels:
    n = len(labels)
    signs = _with_neighbours(labels, glyphs, rng)
    mask = warped(signs, AffineLimits(turn=72, shear=150, scale=(720, 1080), shift=4), rng).astype(np.int32)
    mask = mask[..., None] * per_image(rng.between(166, 256, n)) >> 8  # paint lets the wall through
    wall = _wall(crops(photos, draw_places(n, rng), SIDE, test), rng)
    image = blend(wall, _ink_for(wall, 45, rng), mask)
    contrast, light = per_image(rng.between(128, 256, n)), per_image(rng.between(-30, 30, n))
    image = ((image - 128) * contrast >> 8) + 128 + light
    image = with_noise(image, rng.between(0, 8, n), rng)
    return to_pixels(blurred(image, rng.between(2, 16, n)))


def _with_neighbours(labels: Labels, glyphs: Pixels, rng: StableRandom) -> Pixels:
    """[N, BOX, 2 BOX]: the digit in the middle and, three times in five, another one of its font at each side."""
    n = len(labels)
    fonts, strangers = rng.below(len(glyphs), n), rng.below(10, n, 2)
    there, gap, drop = rng.below(5, n, 2) < 3, rng.between(40, 52, n), rng.between(-4, 4, n, 2)
    signs = np.zeros((n, BOX, 2 * BOX), np.uint8)
    signs[:, :, BOX // 2 : BOX // 2 + BOX] = glyphs[fonts, labels]
    for i, side in np.argwhere(there):
        stranger = np.roll(glyphs[fonts[i], strangers[i, side]], drop[i, side], axis=0)
        left = BOX // 2 + (gap[i] if side else -gap[i])
        first, last = max(left, 0), min(left + BOX, 2 * BOX)
        place = signs[i, :, first:last]
        np.maximum(place, stranger[:, first - left : last - left], out=place)
    return signs


def _wall(photo: Pixels, rng: StableRandom) -> Canvas:
    """A photograph washed with one colour, so that it is a wall and not a scene."""
    n = len(photo)
    tint = rng.below(256, n, 1, 1, 3).astype(np.int32)
    return blend(tint, photo.astype(np.int32), per_image(rng.between(64, 178, n)))


def _ink_for(wall: Canvas, gap: int, rng: StableRandom) -> Canvas:
    """[N, 1, 1, 3]: a colour at least so many grey levels from the wall's mean brightness."""
    mean = wall.sum((1, 2, 3)) // (SIDE * SIDE)  # of the three channels together
    inks = rng.below(256, len(wall), TRIES, 3)
    return _first(inks, np.abs(inks.sum(2) - mean[:, None]) >= 3 * gap)


def _colours(n: int, gap: int, rng: StableRandom) -> tuple[Canvas, Canvas]:
    """Paper and ink, [N, 1, 1, 3] each, that differ in brightness by so many grey levels."""
    papers, inks = rng.below(256, n, TRIES, 3), rng.below(256, n, TRIES, 3)
    far = np.abs(papers.sum(2) - inks.sum(2)) >= 3 * gap
    return _first(papers, far), _first(inks, far)


def _first(colours: Integers, good: NDArray[np.bool_]) -> Canvas:
    """Of each image's candidates the first good one, else the first."""
    chosen: Integers = colours[np.arange(len(colours)), good.argmax(1)]
    return chosen.astype(np.int32).reshape(-1, 1, 1, 3)


def _ramp(n: int, rng: StableRandom) -> Canvas:
    """[N, SIDE, SIDE, 3]: light that falls from one side, up to 40 grey levels at a corner."""
    axis = (2 * np.arange(SIDE) + 1 - SIDE).astype(np.int32)
    across, down = per_image(rng.between(-20, 20, n)), per_image(rng.between(-20, 20, n))
    colour = rng.below(257, n, 1, 1, 3).astype(np.int32)
    slope: Canvas = across * axis[None, None, :, None] + down * axis[None, :, None, None]
    slope = slope * colour // (256 * SIDE)
    return slope
