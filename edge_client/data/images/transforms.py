"""Warps, blends, blurs and noise in integers, for many images at once: [N, h, w] or [N, h, w, C].

Floating-point results may differ between processors and libraries, for example if a processor multiplies and adds in
one step. With floating point, the devices of one fleet might have different data.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from protofleet.edge_client.data.images.resize import Pixels
from protofleet.edge_client.data.stable_random import NOISE_ONE, Integers, StableRandom

# Pixel values during a computation. They may be outside 0..255; `to_pixels` limits them to 0..255.
IntPixels = NDArray[np.int32]

ONE: Final = 1 << 14  # the number 1.0 in the fixed-point numbers of a warp
TURN: Final = 1024  # number that stands for 1.0 in `AffineLimits.turn`


@dataclass(frozen=True)
class AffineLimits:
    """The limits of the random parameters of a warp.

    The angle, the shear and the shift may be positive or negative.
    """

    # The tangent of half of the largest angle, multiplied by TURN. For example, 90 stands for an angle of 10 degrees.
    turn: int
    shear: int  # largest shear, times 1000
    scale: tuple[int, int]  # smallest and largest scale, times 1000
    shift: int  # largest shift, in pixels of the warped image before its size is halved


def warp(images: Pixels, limits: AffineLimits, rng: StableRandom) -> Pixels:
    """Turn, shear, scale and shift grey images [N, h, w], and reduce them to [N, h/2, h/2].

    Each pixel is the mean of four points, so the edges are smooth. The area outside the image is black.
    """
    matrix, shift = affine_maps(len(images), limits, rng)
    side = images.shape[1]
    fine = _sample(images, matrix, shift, side)
    sums: IntPixels = fine.reshape(-1, side // 2, 2, side // 2, 2).sum((2, 4), dtype=np.int32)
    return ((sums + 2) >> 2).astype(np.uint8)


def blend(background: IntPixels, foreground: IntPixels, mask: NDArray[np.int32]) -> IntPixels:
    """Blend two images: mask 0 means only the background, and mask 255 means only the foreground."""
    return (background * (255 - mask) + foreground * mask + 127) // 255


def blur(images: IntPixels, strength: Integers) -> IntPixels:
    """Mix each image [N, h, w, C] with a blurred copy of the image; a 3x3 binomial filter makes the copy.

    The blurred copy has the weight `strength` / 16, and the original image has the remaining weight.
    """
    padded = np.pad(images, ((0, 0), (1, 1), (1, 1), (0, 0)), mode="edge")
    rows = padded[:, :-2] + 2 * padded[:, 1:-1] + padded[:, 2:]
    soft = (rows[:, :, :-2] + 2 * rows[:, :, 1:-1] + rows[:, :, 2:] + 8) >> 4
    share = per_image(strength)
    mixed: IntPixels = (images * (16 - share) + soft * share + 8) >> 4
    return mixed


def add_noise(images: IntPixels, deviation: Integers, rng: StableRandom) -> IntPixels:
    """Add independent noise to each value; `deviation` is the noise's deviation for each image, in grey levels."""
    return images + rng.noise(*images.shape) * per_image(deviation) // NOISE_ONE


def per_image(values: Integers) -> IntPixels:
    """Reshape [N] to [N, 1, 1, 1]."""
    return values.astype(np.int32).reshape(-1, 1, 1, 1)


def to_pixels(images: IntPixels) -> Pixels:
    return images.clip(0, 255).astype(np.uint8)


def affine_maps(n: int, limits: AffineLimits, rng: StableRandom) -> tuple[IntPixels, IntPixels]:
    """Return random maps from a point of the result to a point of the source image.

    A map is a matrix (xx, xy, yx, yy) in units of 1/ONE and a shift (x, y) in half pixels; the results are [N, 4] and
    [N, 2]. The cosine and the sine of the angle are (1 - t^2) / (1 + t^2) and 2 t / (1 + t^2), where t is the tangent
    of half the angle. So the cosine and the sine are computed with integers and are the same on every machine.
    """
    turn = rng.between(-limits.turn, limits.turn, n)
    shear = rng.between(-limits.shear, limits.shear, n)
    scale = rng.between(*limits.scale, n)
    shift = rng.between(-2 * limits.shift, 2 * limits.shift, n, 2)
    whole = TURN * TURN + turn * turn
    cosine, sine = (TURN * TURN - turn * turn) * ONE // whole, 2 * turn * TURN * ONE // whole
    xx, xy = cosine, cosine * shear // 1000 - sine
    yx, yy = sine, sine * shear // 1000 + cosine
    matrix = np.stack([xx, xy, yx, yy], 1) * 1000 // scale[:, None]
    return matrix.astype(np.int32), shift.astype(np.int32)


def _sample(images: Pixels, matrix: IntPixels, shift: IntPixels, side: int) -> IntPixels:
    """Return the values of the images at the mapped points, [N, side, side], by bilinear interpolation."""
    n, height, width = images.shape
    axis = (2 * np.arange(side) + 1 - side).astype(np.int32)  # Distances from the centre, in half pixels.
    x = axis[None, None, :] - shift[:, 0, None, None]
    y = axis[None, :, None] - shift[:, 1, None, None]
    xx, xy, yx, yy = (matrix[:, i, None, None] for i in range(4))
    # Points outside an image are black, because each image gets a black frame.
    columns = _framed_position(xx * x + xy * y, width)
    rows = _framed_position(yx * x + yy * y, height)
    framed = np.pad(images, ((0, 0), (1, 1), (1, 1))).astype(np.int32).ravel()
    row = width + 2
    corner = np.arange(n, dtype=np.int32)[:, None, None] * (row * (height + 2))
    corner = corner + (rows >> 8) * row + (columns >> 8)
    right, below = columns & 255, rows & 255
    top = framed.take(corner) * (256 - right) + framed.take(corner + 1) * right
    bottom = framed.take(corner + row) * (256 - right) + framed.take(corner + row + 1) * right
    samples: IntPixels = (top * (256 - below) + bottom * below + (1 << 15)) >> 16
    return samples


def _framed_position(offset: IntPixels, size: int) -> IntPixels:
    """Convert an offset from the centre to a position in the framed image. The offset is half pixels times ONE.

    The position is measured in 1/256 pixels from the centre of the first pixel of the framed image.
    """
    # The shift by 7 bits converts units of 1/(2 ONE) pixel to units of 1/256 pixel.
    position = (offset >> 7) + (size + 1) * 128
    return position.clip(0, (size + 1) * 256 - 1)
