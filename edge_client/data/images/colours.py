"""What the colours of a picture file are, however many bits it has."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from protofleet.edge_client.data.images.resize import Pixels

if TYPE_CHECKING:
    from PIL import Image

DEEP: Final = ("I", "F")  # Pillow's modes of 32 bits, of which nobody knows what is white


def rgb_pixels(image: Image.Image, height: int, width: int) -> Pixels:
    """[height, width, 3]. ValueError for a picture of 32 bits."""
    from PIL import Image

    if image.mode in DEEP:
        raise ValueError("it has 32 bits a pixel, of which nobody knows what is white; save it with 8 or 16")
    if image.mode.startswith("I;16"):  # of industrial cameras; Pillow would make white of all above 255
        grey = (np.asarray(image).astype(np.uint32) + 128) // 257
        image = Image.fromarray(grey.astype(np.uint8))
    return np.asarray(image.convert("RGB").resize((width, height), Image.Resampling.BILINEAR))
