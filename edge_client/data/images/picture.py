"""The decoder of pictures: no other module of protofleet opens a picture.

Pillow by itself guesses the format of a file from its first bytes, and starts other programs for some formats
(Ghostscript for PostScript). Here the formats are fixed, and the size is compared with the limits before
anything is decoded.
"""

from __future__ import annotations

import io
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np

from protofleet.edge_client.data.images.resize import Pixels
from protofleet.edge_client.data.images.tiff_tables import tile_pixels
from protofleet.edge_client.data.plain_file import UnusableError, content_of

if TYPE_CHECKING:
    from PIL import Image

FORMATS: Final = {
    "BMP": (".bmp",), "GIF": (".gif",), "JPEG": (".jpeg", ".jpg"), "PNG": (".png",), "PPM": (".pgm", ".ppm"),
    "TIFF": (".tif", ".tiff"), "WEBP": (".webp",),
}  # fmt: skip
SUFFIXES: Final = frozenset(suffix for suffixes in FORMATS.values() for suffix in suffixes)
MOST_PIXELS: Final = 100_000_000
# Largest memory, in bytes, for decoding and converting a picture. The memory of the file itself is not counted.
MOST_MEMORY: Final = 640_000_000
DECODERS: Final = {"JPEG": 8, "MPO": 8, "WEBP": 12}  # additional bytes per pixel that the decoder may take
DEEP: Final = ("I", "F")  # Pillow's modes of 32 bits, in which the value of white is unknown
BAND: Final = 1 << 20  # number of pixels that are converted at a time from 16 bits to 8 bits
EXIF: Final = b"Exif\0\0"
# Largest number of EXIF blocks in a JPEG. Pillow makes a Python object of each number in an EXIF block.
MOST_NOTES: Final = 8


def read_picture(path: Path, size: tuple[int, int] | None = None) -> Pixels:
    """Decode a picture file to [height, width, 3], and resize the picture to `size` (height, width) if it is given.

    Raise FileNotFoundError if there is no file, and UnusableError if the file cannot be used.
    """
    return decoded_picture(content_of(path), size)


def decoded_picture(content: bytes, size: tuple[int, int] | None = None) -> Pixels:
    """Decode a picture to [height, width, 3] in the same way as `read_picture`."""
    from PIL import Image, UnidentifiedImageError

    tile = tile_pixels(content)
    if content[:2] == b"\xff\xd8" and content.count(EXIF) > MOST_NOTES:
        raise UnusableError(f"it has more than {MOST_NOTES} EXIF blocks; save the picture without EXIF")
    try:
        with Image.open(io.BytesIO(content), formats=list(FORMATS)) as image:  # noqa: TID251 - the one place
            _demand_limits(image, size, tile)
            return _rgb(image, size)
    except UnusableError:
        raise
    except UnidentifiedImageError:
        raise UnusableError(f"it is not a picture in one of the formats {', '.join(FORMATS)}") from None
    except Exception as error:  # noqa: BLE001 - Pillow raises whatever its decoders do
        reason = (str(error).splitlines() or [type(error).__name__])[0][:100]
        raise UnusableError(f"it is not a complete picture ({reason})") from None


def _demand_limits(image: Image.Image, size: tuple[int, int] | None, tile: int) -> None:
    width, height = image.size
    if image.mode in DEEP:
        raise UnusableError(
            "it has 32 bits for each pixel, so it is unknown which value is white; save it with 8 or 16 bits"
        )
    if width * height > MOST_PIXELS:
        raise UnusableError(
            f"it has {width} x {height} pixels, but the limit is {MOST_PIXELS:,}; save a smaller picture"
        )
    memory = max(width * height, tile) * bytes_per_pixel(image.mode, image.format or "")
    # Pillow resizes the rows first, so for a moment the picture has the new width and the old height.
    memory += 4 * size[1] * height if size else 0
    if memory > MOST_MEMORY:
        raise UnusableError(
            f"it has {width} x {height} pixels ({image.format}, {image.mode}), which take {memory:,} bytes to "
            f"decode, but the limit is {MOST_MEMORY:,}; save a smaller picture"
        )


def bytes_per_pixel(mode: str, form: str) -> int:
    """Return the bytes per pixel that the decoded picture, its converted copy and the decoder take together."""
    sixteen = mode.startswith("I;16")
    decoded = 1 if mode in ("1", "L", "P") else 2 if sixteen else 4
    converted = 0 if mode in ("L", "RGB") else 1 if sixteen else 4
    return decoded + converted + DECODERS.get(form, 0)


def _rgb(image: Image.Image, size: tuple[int, int] | None) -> Pixels:
    from PIL import Image

    if image.mode.startswith("I;16"):
        image = _eight_bits(image)
    elif image.mode not in ("L", "RGB"):
        image = image.convert("RGB")
    if size:
        image = image.resize((size[1], size[0]), Image.Resampling.BILINEAR)
    # Grey pictures get three channels only after resizing, because this saves memory.
    return np.asarray(image.convert("RGB"))


def _eight_bits(image: Image.Image) -> Image.Image:
    """Convert a grey picture of 16 bits, for example from an industrial camera, to 8 bits.

    Pillow's own conversion would make every value above 255 white.
    """
    from PIL import Image

    grey, rows = Image.new("L", image.size), max(1, BAND // image.width)
    for top in range(0, image.height, rows):
        band = np.asarray(image.crop((0, top, image.width, min(top + rows, image.height))))
        grey.paste(Image.fromarray(((band.astype(np.uint32) + 128) // 257).astype(np.uint8)), (0, top))
    return grey
