"""Backgrounds: crops of the photographs and textures that scikit-image carries.

Only those kept as PNG: every decoder makes the same pixels of a PNG, and not of a JPEG.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from edge_client.data.draws import Draws, Integers
from edge_client.data.errors import reading
from edge_client.data.packages import REINSTALL, checked, package_file
from edge_client.data.resize import Pixels

PHOTOS: Final = {  # file -> fingerprint of its pixels
    "astronaut": "", "brick": "", "camera": "", "chelsea": "", "coffee": "",
    "coins": "", "grass": "", "gravel": "", "ihc": "", "motorcycle_left": "",
}  # fmt: skip


def read_photos() -> list[Pixels]:
    """[h, w, 3] each; grey ones have three equal channels."""
    return [_photo(name, expected) for name, expected in PHOTOS.items()]


def draw_places(n: int, draws: Draws) -> Integers:
    """[n, 4], where crops come from: photograph, across, down, mirrored."""
    return draws.below(1 << 20, n, 4)


def crops(photos: list[Pixels], places: Integers, side: int, test: bool) -> Pixels:
    """[n, side, side, 3], half of them mirrored. Test crops come from the right fifth of each photograph and
    training crops from the rest, so that no texture is seen in training and tested on."""
    found = np.empty((len(places), side, side, 3), np.uint8)
    for i, (which, across, down, mirrored) in enumerate(places.tolist()):
        photo = photos[which % len(photos)]
        height, width = photo.shape[:2]
        border = width * 4 // 5
        first, last = (border, width - side) if test else (0, border - side)
        x, y = first + across % (last - first + 1), down % (height - side + 1)
        crop = photo[y : y + side, x : x + side]
        found[i] = crop[:, ::-1] if mirrored % 2 else crop
    return found


def _photo(name: str, expected: str) -> Pixels:
    from PIL import Image

    path = package_file("skimage", f"data/{name}.png")
    with reading(path, REINSTALL), Image.open(path) as image:
        pixels = np.asarray(image.convert("RGB"))
    checked(pixels, expected, path)
    return pixels
