"""Background images: crops of the photographs and textures that scikit-image contains.

Only PNG files are used, because all decoders give the same pixels for a PNG, but may give different pixels for a
JPEG.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from protofleet.edge_client.data.errors import reading
from protofleet.edge_client.data.images.picture import read_picture
from protofleet.edge_client.data.images.resize import Pixels
from protofleet.edge_client.data.packages import REFETCH, checked, package_file
from protofleet.edge_client.data.stable_random import Integers, StableRandom

PACKAGE: Final = "skimage"
PHOTOS: Final = {  # file -> fingerprint of its pixels
    "astronaut": "7605af19ba2b975845037d479d9429d3fbc334ff78c7b51f67f112d50f85ed65",
    "brick": "99a19145a42e52da5b5b773b8119c94ea04cf5c0242e95ffbaa0293713878bb7",
    "camera": "bf98e824a0e89e0e5fc9883963758bfd21453203a3fb1f22a32c108d939ffac6",
    "chelsea": "2a48da897e30584d1ae09abf8802730963e97735ab7f4ccede25b412ab11e5dd",
    "coffee": "013a8175a6f60538e29aa8bee676f3e4b4c9a4388defc9a81368b20fc7b3fe9c",
    "coins": "8b1c53f5b1e7777136997a7597388c6a234c1306d77175d0de5cbd8ec72b0c20",
    "grass": "4893a5041b9268d1c29dcc9cdf6e79f40c66c5c37f3c7a5c0dcfecfa3e73bb50",
    "gravel": "53724b7da1e0a01104d6e14da4dd2ca65a3ead9a2a69f0eb6f20121f8bb7b2ec",
    "ihc": "d5e9af0ebdb1dc92a7d75c8ab96cea1d3a319323027d0c7926060f8f4eba9519",
    "motorcycle_left": "6a51b16e82babbafbffdff644108b2085a8ee609f08cfdc0d60bff950e42b6fc",
}


def file_of(photo: str) -> str:
    return f"data/{photo}.png"


def read_photos() -> list[Pixels]:
    """Return the photographs, [h, w, 3] each; a grey photograph has three equal channels."""
    return [_photo(name, expected) for name, expected in PHOTOS.items()]


def draw_places(n: int, rng: StableRandom) -> Integers:
    """Draw n places of crops at random, [n, 4]: photograph, horizontal place, vertical place, mirrored or not."""
    return rng.below(1 << 20, n, 4)


def crops(photos: list[Pixels], places: Integers, side: int, test: bool) -> Pixels:
    """Return the crops at these places, [n, side, side, 3]; about half of them are mirrored.

    Test crops are cut from the right fifth of each photograph, and training crops from the rest. So no part of a
    photograph is used both for training and for the test.
    """
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
    path = package_file(PACKAGE, file_of(name))
    with reading(path, REFETCH):
        pixels = read_picture(path)
    checked(pixels, expected, path)
    return pixels
