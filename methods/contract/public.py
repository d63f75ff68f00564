"""Images without labels that all devices of a run have: they are never sent, and what was made of them is comparable.

The usual ones are drawn, by whole numbers alone, so every machine draws the same. Others come from the devices' own
data sources. A hash of them, as they are at 32 x 32, stands in the run's plan.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from protofleet.protocol.settings.bounds import Pixels, PublicBatch, PublicSamples, Seed
from protofleet.protocol.settings.reader import SettingsError, demand_within

DRAWN: Final = "shapes"
HASHED_SIZE: Final = 32
MOST_PAIRS: Final = 1 << 24  # of images of a batch, in all batches: 64 MB of similarities
FIGURES: Final = 3  # in a picture
FIGURE_BYTES: Final = 8
BACKGROUND_BYTES: Final = 8

Images = NDArray[np.uint8]  # [N, size, size, 3]


@dataclass(frozen=True)
class PublicSet:
    source: str = DRAWN  # or a source of data that every device has
    domain: str = ""  # of that source; "": all of them
    samples: PublicSamples = 512
    # Images that are compared with each other; they stay together.
    batch: PublicBatch = 64
    seed: Seed = 0  # by which they are drawn, or chosen
    sha256: str = ""  # of the images; `protofleet public-set` says it

    def __post_init__(self) -> None:
        demand_within(self)
        if self.pairs > MOST_PAIRS:
            raise ValueError(
                f"samples = {self.samples:,} in batches of {self.batch:,} have {self.pairs:,} similarities, at most "
                f"{MOST_PAIRS:,} may be sent; take fewer samples or smaller batches"
            )
        if self.source == DRAWN and self.domain:
            raise ValueError(f"domain is {self.domain!r}, and the drawn images have none; leave it out")

    @property
    def batches(self) -> tuple[int, ...]:
        """How many images are in each: of one image alone nothing can be compared, so it joins those before it."""
        whole, rest = divmod(self.samples, self.batch)
        sizes = [self.batch] * whole
        if rest > 1 or not sizes:
            return (*sizes, rest)
        return (*sizes[:-1], sizes[-1] + rest)

    @property
    def pairs(self) -> int:
        return sum(n * (n - 1) for n in self.batches)

    @property
    def title(self) -> str:
        words = f"{self.source} {self.domain}".strip()
        return f"{words}, {self.samples:,} images, seed {self.seed}"

    def draw(self, size: int) -> Images:
        return drawn(self.samples, self.seed, size)

    def check(self, images: Images) -> None:
        """SettingsError where these, at 32 x 32, are not the run's."""
        found = sha256_of(images)
        if self.sha256 and found != self.sha256:
            raise SettingsError(
                f"the run's public set ({self.title}) has sha256 {self.sha256[:64]}, this device's {found}: put the "
                "same files, and the same version of protofleet, on all devices; or set public.sha256 to this at the "
                "coordinator, if these are the right ones"
            )


def sha256_of(images: Images) -> str:
    return hashlib.sha256(np.ascontiguousarray(images).tobytes()).hexdigest()


def batches_of(images: Images, channels: int, public: PublicSet, place: torch.device) -> list[Tensor]:
    """As devices' own images are scaled: 0 .. 255 to -1 .. 1."""
    if channels == 1:
        red, green, blue = (images[..., i].astype(np.uint32) for i in range(3))
        images = ((299 * red + 587 * green + 114 * blue + 500) // 1000).astype(np.uint8)[..., None]
    x = (2 * images.transpose(0, 3, 1, 2).astype(np.float32) - 255) / np.float32(255)
    return list(torch.split(torch.from_numpy(np.ascontiguousarray(x)).to(place), list(public.batches)))


def drawn(samples: int, seed: int, size: Pixels) -> Images:
    """Discs, rings, boxes and stripes before a background that goes from one colour to another."""
    each = BACKGROUND_BYTES + FIGURES * FIGURE_BYTES
    text = hashlib.shake_256(f"protofleet shapes/{seed}".encode()).digest(samples * each)
    dice = np.frombuffer(text, np.uint8).reshape(samples, each).astype(np.int32)
    at = (2 * np.arange(size, dtype=np.int32) + 1) * 128 // size  # middles of pixels, of 256 a side
    u, v = at[None, None, :], at[None, :, None]
    images = background(dice[:, :BACKGROUND_BYTES], u, v)
    for number in range(FIGURES):
        start = BACKGROUND_BYTES + number * FIGURE_BYTES
        kind, x, y, width, height, *colour = dice[:, start : start + FIGURE_BYTES].T[..., None, None]
        inside = figure(kind, u - x, v - y, 16 + width % 64, 16 + height % 64)
        images = np.where(inside[..., None], np.stack(colour, axis=-1), images)
    return images.astype(np.uint8)


def background(dice: NDArray[np.int32], u: NDArray[np.int32], v: NDArray[np.int32]) -> NDArray[np.int32]:
    """[N, size, size, 3]"""
    across = 1 + dice[:, 6, None, None]
    down = 1 + dice[:, 7, None, None]
    far = ((across * u + down * v) // (across + down))[..., None]
    first, second = dice[:, None, None, 0:3], dice[:, None, None, 3:6]
    mixed: NDArray[np.int32] = (first * (255 - far) + second * far) // 255
    return mixed


def figure(
    kind: NDArray[np.int32], x: NDArray[np.int32], y: NDArray[np.int32], width: NDArray[np.int32],
    height: NDArray[np.int32],
) -> NDArray[np.bool_]:  # fmt: skip
    """[N, size, size], around its middle."""
    box = (abs(x) <= width) & (abs(y) <= height)
    distance = x * x * (height * height) + y * y * (width * width)
    edge = width * width * (height * height)
    disc, ring = distance <= edge, (distance <= edge) & (4 * distance > edge)
    stripes = box & ((x + y) // 16 % 2 == 0)
    found: NDArray[np.bool_] = np.choose(kind % 4, [disc, ring, box, stripes])
    return found
