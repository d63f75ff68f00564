"""Fashion-MNIST in four styles, which are the domains; each style has a quarter of the 70,000 garments.

plain   unchanged: grey on black
photo   the garment in one colour, with light and dark swapped, in front of a photograph
sketch  the garment's outlines, in pencil on paper
print   two inks through a coarse screen
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from protofleet.edge_client.data.domain import Domain, ImagesInMemory, Indices, Labels
from protofleet.edge_client.data.images.photos import crops, draw_places, read_photos
from protofleet.edge_client.data.images.resize import Pixels, channels_first, resize
from protofleet.edge_client.data.images.transforms import IntPixels, blend, to_pixels
from protofleet.edge_client.data.scaling import Values
from protofleet.edge_client.data.sources.idx import read_pair
from protofleet.edge_client.data.sources.source import DataSource
from protofleet.edge_client.data.stable_random import StableRandom
from protofleet.protocol.settings.input_shape import InputShape

DEBIAN: Final = Path("/usr/share/datasets/fashion-mnist")  # the folder of the package dataset-fashion-mnist
CLASSES: Final = (
    "t_shirt", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "ankle_boot",
)  # fmt: skip
SIDE: Final = 28
# Bayer's matrix for dithering.
SCREEN: Final = np.array([[0, 8, 2, 10], [12, 4, 14, 6], [3, 11, 1, 9], [15, 7, 13, 5]])

# A style is a function that paints grey garments. Its arguments are the garments [n, 28, 28, 1], their indices among
# all garments of the style, the number of all garments of the style, and whether the garments are for the test.
Style = Callable[[IntPixels, Indices, int, bool], Pixels]


@dataclass(frozen=True)
class Styled:
    """Garments that are painted in a style when they are read; a garment looks the same on every device."""

    images: Pixels
    labels: Labels
    style: Style
    test: bool

    def samples(self, chosen: Indices, shape: InputShape) -> Values:
        grey = self.images[chosen].astype(np.int32)
        painted = self.style(grey, chosen, len(self.labels), self.test)
        return channels_first(resize(painted, *shape.spatial), shape.channels)


def read(folder: Path, domain: str) -> Domain:
    places = [folder, folder / "FashionMNIST" / "raw", folder / "raw", DEBIAN]
    train, test = (read_pair(places, split) for split in ("train", "test"))
    return Domain(domain, CLASSES, _styled(train, domain, False), _styled(test, domain, True))


def _styled(source: ImagesInMemory, domain: str, test: bool) -> Styled:
    own = slice(list(STYLES).index(domain), None, len(STYLES))
    return Styled(source.images[own], source.labels[own], STYLES[domain], test)


def _plain(grey: IntPixels, chosen: Indices, n: int, test: bool) -> Pixels:
    return np.repeat(to_pixels(grey), 3, axis=3)


def _photo(grey: IntPixels, chosen: Indices, n: int, test: bool) -> Pixels:
    rng = StableRandom("fashion", "photo", test)
    places = draw_places(n, rng)[chosen]
    colour = rng.between(96, 255, n, 1, 1, 3)[chosen].astype(np.int32)
    behind = crops(read_photos(), places, SIDE, test).astype(np.int32)
    cloth = colour * (288 - grey) // 288
    return to_pixels(blend(behind, cloth, np.minimum(grey * 6, 255)))


def _sketch(grey: IntPixels, chosen: Indices, n: int, test: bool) -> Pixels:
    rng = StableRandom("fashion", "sketch", test)
    paper = rng.between(200, 255, n, 1, 1, 1)[chosen].astype(np.int32)
    framed = np.pad(grey, ((0, 0), (1, 1), (1, 1), (0, 0)))
    edges = np.abs(framed[:, 1:-1, 2:] - framed[:, 1:-1, :-2])
    edges = edges + np.abs(framed[:, 2:, 1:-1] - framed[:, :-2, 1:-1])
    return np.repeat(to_pixels(np.maximum(paper - edges, 24)), 3, axis=3)


def _print(grey: IntPixels, chosen: Indices, n: int, test: bool) -> Pixels:
    rng = StableRandom("fashion", "print", test)
    ink = rng.between(0, 128, n, 1, 1, 3)[chosen]
    paper = rng.between(160, 255, n, 1, 1, 3)[chosen]
    screen = np.tile(SCREEN, (SIDE // 4, SIDE // 4))[None, :, :, None] * 16 + 8
    return np.where(grey > screen, ink, paper).astype(np.uint8)


STYLES: Final[Mapping[str, Style]] = {"plain": _plain, "photo": _photo, "sketch": _sketch, "print": _print}
SOURCE = DataSource(read, tuple(STYLES), CLASSES, needs_folder=False)  # Debian has a package with the files
