"""Backgrounds: crops of the photographs and textures that scikit-image carries.

Only those kept as PNG: every decoder makes the same pixels of a PNG, and not of a JPEG.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from edge_client.data.draws import Draws
from edge_client.data.packages import checked, package_file
from edge_client.data.resize import Pixels

PHOTOS: Final = {  # file -> fingerprint of its pixels
    "astronaut": "", "brick": "", "camera": "", "chelsea": "", "coffee": "",
    "coins": "", "grass": "", "gravel": "", "ihc": "", "motorcycle_left": "",
}  # fmt: skip
SIDE: Final = 32  # pixels of a crop


def read_photos() -> list[Pixels]:
    """[h, w, 3] each; grey ones have three equal channels."""
    return [_photo(name, expected) for name, expected in PHOTOS.items()]


def crops(photos: list[Pixels], n: int, test: bool, draws: Draws) -> Pixels:
    """[n, SIDE, SIDE, 3], half of them mirrored. Test crops come from the right fifth of each photograph and
    training crops from the rest, so that no texture is seen in training and tested on."""
    found = np.empty((n, SIDE, SIDE, 3), np.uint8)
    which, mirrored = draws.below(len(photos), n), draws.below(2, n)
    across, down = draws.below(1 << 20, n), draws.below(1 << 20, n)
    for i in range(n):
        photo = photos[which[i]]
        height, width = photo.shape[:2]
        border = width * 4 // 5
        first, last = (border, width - SIDE) if test else (0, border - SIDE)
        x = first + int(across[i]) % (last - first + 1)
        y = int(down[i]) % (height - SIDE + 1)
        crop = photo[y : y + SIDE, x : x + SIDE]
        found[i] = crop[:, ::-1] if mirrored[i] else crop
    return found


def _photo(name: str, expected: str) -> Pixels:
    from PIL import Image

    path = package_file("skimage", f"data/{name}.png")
    with Image.open(path) as image:
        pixels = np.asarray(image.convert("RGB"))
    checked(pixels, expected, path)
    return pixels
