"""Warps, blends, blurs and noise in whole numbers, for many images at once: [N, h, w] or [N, h, w, C].

Floating point would round differently where a processor fuses multiply and add, or a library vectorises
otherwise; then devices of one fleet would hold different data.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from protofleet.edge_client.data.images.resize import Pixels
from protofleet.edge_client.data.stable_random import NOISE_ONE, Integers, StableRandom

Canvas = NDArray[np.int32]  # pixel values on their way, 0..255 unless someone overshoots

ONE: Final = 1 << 14  # 1.0 in the fixed point of a warp
TURN: Final = 1024  # a half-angle tangent of 1.0


@dataclass(frozen=True)
class AffineLimits:
    """The limits from which a warp is drawn: symmetric but for the scale."""

    turn: int  # tangent of half the angle, in 1/TURN: 90 is 10 degrees
    shear: int  # in 1/1000
    scale: tuple[int, int]  # in 1/1000
    shift: int  # pixels of the window


def warped(images: Pixels, slant: AffineLimits, rng: StableRandom) -> Pixels:
    """Grey images [N, h, w] turned, sheared, scaled and shifted about their centre, then halved to
    [N, h/2, h/2]: four samples a pixel keep the edges smooth. What lies outside is black."""
    matrix, shift = affine_maps(len(images), slant, rng)
    side = images.shape[1]
    fine = _sampled(images, matrix, shift, side)
    sums: Canvas = fine.reshape(-1, side // 2, 2, side // 2, 2).sum((2, 4), dtype=np.int32)
    return ((sums + 2) >> 2).astype(np.uint8)


def blend(behind: Canvas, before: Canvas, mask: NDArray[np.int32]) -> Canvas:
    """mask 0 shows what is behind, 255 what is before."""
    return (behind * (255 - mask) + before * mask + 127) // 255


def blurred(images: Canvas, strength: Integers) -> Canvas:
    """A 3x3 binomial blur [N, h, w, C], mixed in by strength/16 per image."""
    padded = np.pad(images, ((0, 0), (1, 1), (1, 1), (0, 0)), mode="edge")
    rows = padded[:, :-2] + 2 * padded[:, 1:-1] + padded[:, 2:]
    soft = (rows[:, :, :-2] + 2 * rows[:, :, 1:-1] + rows[:, :, 2:] + 8) >> 4
    share = per_image(strength)
    mixed: Canvas = (images * (16 - share) + soft * share + 8) >> 4
    return mixed


def with_noise(images: Canvas, deviation: Integers, rng: StableRandom) -> Canvas:
    """Independent noise on each value; the deviation is per image, in grey levels."""
    return images + rng.noise(*images.shape) * per_image(deviation) // NOISE_ONE


def per_image(values: Integers) -> Canvas:
    """[N] -> [N, 1, 1, 1]"""
    return values.astype(np.int32).reshape(-1, 1, 1, 1)


def to_pixels(images: Canvas) -> Pixels:
    return images.clip(0, 255).astype(np.uint8)


def affine_maps(n: int, slant: AffineLimits, rng: StableRandom) -> tuple[Canvas, Canvas]:
    """From a point of the result to one of the source: [N, 4] (xx, xy, yx, yy) in 1/ONE and [N, 2] (x, y) in
    half pixels. Cosine and sine come from the tangent t of half the angle, (1 - t^2, 2 t) / (1 + t^2), and
    are exact so: no machine's sine is asked."""
    turn = rng.between(-slant.turn, slant.turn, n)
    shear = rng.between(-slant.shear, slant.shear, n)
    scale = rng.between(*slant.scale, n)
    shift = rng.between(-2 * slant.shift, 2 * slant.shift, n, 2)
    whole = TURN * TURN + turn * turn
    cosine, sine = (TURN * TURN - turn * turn) * ONE // whole, 2 * turn * TURN * ONE // whole
    xx, xy = cosine, cosine * shear // 1000 - sine
    yx, yy = sine, sine * shear // 1000 + cosine
    matrix = np.stack([xx, xy, yx, yy], 1) * 1000 // scale[:, None]
    return matrix.astype(np.int32), shift.astype(np.int32)


def _sampled(images: Pixels, matrix: Canvas, shift: Canvas, side: int) -> Canvas:
    """[N, side, side] between the pixels of the images, bilinear."""
    n, height, width = images.shape
    axis = (2 * np.arange(side) + 1 - side).astype(np.int32)  # half pixels from the centre
    x = axis[None, None, :] - shift[:, 0, None, None]
    y = axis[None, :, None] - shift[:, 1, None, None]
    xx, xy, yx, yy = (matrix[:, i, None, None] for i in range(4))
    # The images stand in a black frame, so that what is out of sight is read from there.
    across = _place(xx * x + xy * y, width)
    down = _place(yx * x + yy * y, height)
    framed = np.pad(images, ((0, 0), (1, 1), (1, 1))).astype(np.int32).ravel()
    row = width + 2
    corner = np.arange(n, dtype=np.int32)[:, None, None] * (row * (height + 2))
    corner = corner + (down >> 8) * row + (across >> 8)
    right, below = across & 255, down & 255
    top = framed.take(corner) * (256 - right) + framed.take(corner + 1) * right
    bottom = framed.take(corner + row) * (256 - right) + framed.take(corner + row + 1) * right
    found: Canvas = (top * (256 - below) + bottom * below + (1 << 15)) >> 16
    return found


def _place(offset: Canvas, size: int) -> Canvas:
    """Half pixels x ONE from the centre -> where in the framed image, in 1/256 pixels from its first centre."""
    place = (offset >> 7) + (size + 1) * 128  # 2 ONE a pixel, to 256 a pixel
    return place.clip(0, (size + 1) * 256 - 1)
