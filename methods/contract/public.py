"""The public set: samples without labels that all devices of a run have.

The samples are never sent. The devices send results that they computed from these samples. The results can be
compared, because all devices have the same samples.

By default the samples are generated images. They are computed with whole numbers only, so every machine gets the
same images. A run on series uses grey images: each row of an image is one channel of a series. A run on vectors uses
images with a single row. Other samples come from the data sources of the devices.

The plan of the run has a hash of the samples. For images it is the hash of their 32 x 32 pixel version. All other
samples are hashed in the shape that they have in the run.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from protofleet.protocol.settings.bounds import PublicBatch, Seed
from protofleet.protocol.settings.bounds import PublicSamples as Count
from protofleet.protocol.settings.input_shape import InputShape
from protofleet.protocol.settings.reader import SettingsError, demand_within

DRAWN: Final = "shapes"
HASHED: Final = InputShape((3, 32, 32))
# The largest number of pairs of images that a public set may have. Both images of a pair are in the same batch,
# and the pairs of all batches count together. The similarities of so many pairs take 64 MB.
MOST_PAIRS: Final = 1 << 24
FIGURES: Final = 3  # Number of figures in a picture.
FIGURE_BYTES: Final = 8
BACKGROUND_BYTES: Final = 8

Images = NDArray[np.uint8]  # [N, height, width, 3]
PublicSamples = NDArray[Any]  # [N, *the shape of a sample]; uint8 for pixels, float32 for all other samples.


@dataclass(frozen=True)
class PublicSet:
    """The samples that all devices of a run have."""

    source: str = DRAWN
    """Source of the samples, `shapes` (generated images) or a data source that every device has."""
    domain: str = ""
    """Domain of that source; empty means all domains."""
    samples: Count = 512
    """Number of samples."""
    batch: PublicBatch = 64
    """Number of samples in a batch; the samples of a batch are compared with each other."""
    seed: Seed = 0
    """Seed with which the samples are drawn or chosen."""
    sha256: str = ""
    """SHA-256 of the samples, which `protofleet public-set` prints."""

    def __post_init__(self) -> None:
        demand_within(self)
        if self.pairs > MOST_PAIRS:
            raise ValueError(
                f"samples = {self.samples:,} in batches of {self.batch:,} have {self.pairs:,} similarities, but "
                f"at most {MOST_PAIRS:,} may be sent; take fewer samples or smaller batches"
            )
        if self.source == DRAWN and self.domain:
            raise ValueError(
                f"domain is {self.domain!r}, but generated images have no domain; leave `domain` out"
            )

    @property
    def batches(self) -> tuple[int, ...]:
        """Return the number of images in each batch.

        A single image at the end joins the batch before it, because a batch of one image has nothing to compare.
        """
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

    def draw(self, shape: InputShape) -> PublicSamples:
        height, width = ((1, *shape.axes)[-2:]) if shape.rank < 3 else shape.spatial
        images = drawn(self.samples, self.seed, height, width)
        if shape.rank < 3:
            return grey(images).reshape(self.samples, *shape.axes)
        if shape.channels == 3:
            return np.ascontiguousarray(images.transpose(0, 3, 1, 2))
        # The images are coloured. If the shape does not have three channels, each channel gets the grey image.
        return np.repeat(grey(images)[:, None], shape.channels, axis=1)

    def check(self, images: PublicSamples) -> None:
        """Raise SettingsError if `images` are not the public samples of the run.

        `images` must have the shape that `hashed` returns.
        """
        found = sha256_of(images)
        if self.sha256 and found != self.sha256:
            raise SettingsError(
                f"the run's public set ({self.title}) has sha256 {self.sha256[:64]}, but the public set of this "
                f"device has {found}: put the same files, and the same version of protofleet, on all devices; or, "
                "if this device has the right files, set public.sha256 at the coordinator to the hash of this device"
            )


def hashed(source: str, shape: InputShape) -> InputShape:
    """Return the shape of public samples when their hash is computed; the run's samples have the shape `shape`."""
    return HASHED if source == DRAWN or shape.rank == 3 else shape


def sha256_of(samples: PublicSamples) -> str:
    """Return the SHA-256 of samples; for images, the channels come last."""
    ordered = samples.transpose(0, 2, 3, 1) if samples.ndim == 4 else samples
    return hashlib.sha256(np.ascontiguousarray(ordered).tobytes()).hexdigest()


def grey(images: Images) -> Images:
    """Return images in grey, [N, h, w, 3] -> [N, h, w]; devices use the same formula for their own images."""
    red, green, blue = (images[..., i].astype(np.uint32) for i in range(3))
    found: Images = ((299 * red + 587 * green + 114 * blue + 500) // 1000).astype(np.uint8)
    return found


def batches_of(samples: PublicSamples, public: PublicSet, place: torch.device) -> list[Tensor]:
    """Return the batches of a public set as tensors.

    Pixels are scaled from 0 .. 255 to -1 .. 1, like the devices' own pixels. Other samples are already scaled
    by their source.
    """
    x = samples
    if samples.dtype == np.uint8:
        x = (2 * samples.astype(np.float32) - 255) / np.float32(255)
    return list(torch.split(torch.from_numpy(np.ascontiguousarray(x)).to(place), list(public.batches)))


def drawn(samples: int, seed: int, height: int, width: int) -> Images:
    """Draw discs, rings, boxes and stripes on a background that changes from one colour to another."""
    each = BACKGROUND_BYTES + FIGURES * FIGURE_BYTES
    text = hashlib.shake_256(f"protofleet shapes/{seed}".encode()).digest(samples * each)
    dice = np.frombuffer(text, np.uint8).reshape(samples, each).astype(np.int32)
    u, v = middles(width)[None, None, :], middles(height)[None, :, None]
    images = background(dice[:, :BACKGROUND_BYTES], u, v)
    for number in range(FIGURES):
        start = BACKGROUND_BYTES + number * FIGURE_BYTES
        kind, x, y, wide, high, *colour = dice[:, start : start + FIGURE_BYTES].T[..., None, None]
        inside = figure(kind, u - x, v - y, 16 + wide % 64, 16 + high % 64)
        images = np.where(inside[..., None], np.stack(colour, axis=-1), images)
    return images.astype(np.uint8)


def middles(size: int) -> NDArray[np.int32]:
    """Return the positions of the centres of `size` pixels on a side of length 256."""
    return ((2 * np.arange(size, dtype=np.int64) + 1) * 128 // size).astype(np.int32)


def background(dice: NDArray[np.int32], u: NDArray[np.int32], v: NDArray[np.int32]) -> NDArray[np.int32]:
    """Return the background of each picture, [N, height, width, 3]."""
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
    """Return a mask of the pixels in one figure of each picture, [N, height, width].

    `x` and `y` are the positions of the pixels relative to the centre of the figure.
    """
    box = (abs(x) <= width) & (abs(y) <= height)
    distance = x * x * (height * height) + y * y * (width * width)
    edge = width * width * (height * height)
    disc, ring = distance <= edge, (distance <= edge) & (4 * distance > edge)
    stripes = box & ((x + y) // 16 % 2 == 0)
    found: NDArray[np.bool_] = np.choose(kind % 4, [disc, ring, box, stripes])
    return found
