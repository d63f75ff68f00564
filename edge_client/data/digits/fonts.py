"""The program that draws glyphs.npz, the digits in matplotlib's fonts.

Usage: `python -m protofleet.edge_client.data.digits.fonts FILE`.

The program stores the shapes of the digits as bits in the file, which is part of the package. Devices read the file
and do not draw the shapes: each release of FreeType draws the shapes a little differently, but every device must
have the same bytes. A test draws the shapes again and compares them with the file; small differences are allowed.

The file glyphs.LICENCE.txt names the licences of the fonts. The licences allow this use.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np

from protofleet.edge_client.data.images.resize import Pixels
from protofleet.edge_client.data.packages import package_file

if TYPE_CHECKING:
    from PIL import ImageFont

# The list leaves out fonts without digits, and cmmi10, whose 0 and 1 look like the letters o and I.
FONTS: Final = (
    "DejaVuSans", "DejaVuSans-Bold", "DejaVuSans-BoldOblique", "DejaVuSans-Oblique",
    "DejaVuSansMono", "DejaVuSansMono-Bold", "DejaVuSansMono-BoldOblique", "DejaVuSansMono-Oblique",
    "DejaVuSerif", "DejaVuSerif-Bold", "DejaVuSerif-BoldItalic", "DejaVuSerif-Italic",
    "STIXGeneral", "STIXGeneralBol", "STIXGeneralBolIta", "STIXGeneralItalic",
    "cmb10", "cmr10", "cmss10", "cmti10", "cmtt10",
)  # fmt: skip
BOX: Final = 64  # side of a glyph's square, in pixels
TALLEST: Final = 54  # height of the tallest digit of a font, in pixels
WIDEST: Final = 60  # largest width of a digit, in pixels


def draw_glyphs() -> Pixels:
    """Return the shapes of the digits in all fonts as zeros and ones, [fonts, 10, BOX, BOX]."""
    return np.stack([_digits(name) for name in FONTS])


def _digits(name: str) -> Pixels:
    from PIL import ImageFont

    path = package_file("matplotlib", f"mpl-data/fonts/ttf/{name}.ttf")
    font = _fitting(ImageFont.truetype(str(path), 4 * BOX))
    return np.stack([_glyph(font, str(digit)) for digit in range(10)])


def _fitting(font: ImageFont.FreeTypeFont) -> ImageFont.FreeTypeFont:
    boxes = [font.getbbox(str(digit)) for digit in range(10)]
    height, width = max(b[3] - b[1] for b in boxes), max(b[2] - b[0] for b in boxes)
    return font.font_variant(size=int(font.size * min(TALLEST / height, WIDEST / width)))


def _glyph(font: ImageFont.FreeTypeFont, text: str) -> Pixels:
    from PIL import Image, ImageDraw

    image = Image.new("L", (BOX, BOX))
    left, top, right, bottom = font.getbbox(text)
    corner = ((BOX - left - right) / 2, (BOX - top - bottom) / 2)
    ImageDraw.Draw(image).text(corner, text, 255, font=font)
    return (np.asarray(image) > 127).astype(np.uint8)


def main(path: Path) -> None:
    bits = np.packbits(draw_glyphs(), axis=-1)
    np.savez_compressed(path, names=np.array(FONTS), bits=bits)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
