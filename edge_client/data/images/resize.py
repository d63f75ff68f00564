"""The resizing of images with integers, so that the bytes are the same on every processor."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from protofleet.edge_client.data.errors import DataError

Pixels = NDArray[np.uint8]

BITS: Final = 12  # the sum of the weights of each new pixel is 2^BITS
CHUNK: Final = 256  # number of images that are resized at a time; a larger number would take more memory


def resize(images: Pixels, height: int, width: int) -> Pixels:
    """Resize [N, h, w, C] to [N, height, width, C].

    The filter is a triangle. Its base has the width of two old pixels or of two new pixels, whichever is larger. So
    images are enlarged bilinearly, and reduced images have no aliasing.
    """
    if images.shape[1:3] == (height, width):
        return images
    out = np.empty((len(images), height, width, images.shape[3]), np.uint8)
    for start in range(0, len(images), CHUNK):
        block = images[start : start + CHUNK].astype(np.int32)
        block = _along(_along(block, 1, height), 2, width)
        out[start : start + CHUNK] = block
    return out


def channels_first(images: Pixels, channels: int) -> Pixels:
    """Change [N, h, w, C] to [N, channels, h, w].

    Coloured images become grey if `channels` is 1. Grey images get `channels` equal channels. The result shares the
    memory of `images` if nothing has to be computed.
    """
    own = images.shape[3]
    if own == 3 and channels == 1:
        images = grey(images)
    elif own == 1:
        images = np.broadcast_to(images, (*images.shape[:3], channels))
    elif own != channels:
        raise DataError(
            f"the images have {own} channels, and the settings ask for {channels}; set data.shape = [{own}, height, "
            "width]"
        )
    ordered: Pixels = images.transpose(0, 3, 1, 2)
    return ordered


def grey(pixels: Pixels) -> Pixels:
    """Convert coloured images [N, h, w, 3] to grey images [N, h, w, 1], by the luma of ITU-R BT.601 in integers.

    If the three channels of an image are equal, the grey image has the same values.
    """
    red, green, blue = (pixels[..., i].astype(np.uint32) for i in range(3))
    luma = (299 * red + 587 * green + 114 * blue + 500) // 1000
    found: Pixels = luma.astype(np.uint8)[..., None]
    return found


def _along(images: NDArray[np.int32], axis: int, size: int) -> NDArray[np.int32]:
    columns, weights = _taps(images.shape[axis], size)
    rest = (-1,) + (1,) * (images.ndim - 1 - axis)  # With this shape, the weights are aligned with `axis`.
    total = np.full((*images.shape[:axis], size, *images.shape[axis + 1 :]), 1 << (BITS - 1), np.int32)
    for column, weight in zip(columns.T, weights.T, strict=True):
        total += images.take(column, axis) * weight.reshape(rest)
    return total >> BITS


def _taps(old: int, new: int) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
    """Return the indices and the weights of the old pixels that form each new pixel, [new, taps] each."""
    # In the unit used here, an old pixel has the length 2 * new. So the centres of all pixels are integers.
    centres = (2 * np.arange(new) + 1)[:, None] * old
    distance = np.abs((2 * np.arange(old) + 1) * new - centres)
    weights = np.maximum(2 * max(old, new) - distance, 0)  # [new, old]
    weights = (weights << BITS) // weights.sum(1, keepdims=True)
    weights[np.arange(new), weights.argmax(1)] += (1 << BITS) - weights.sum(1)
    most = int((weights > 0).sum(1).max())
    columns = np.argsort(-weights, axis=1, kind="stable")[:, :most]
    return columns.astype(np.int64), np.take_along_axis(weights, columns, 1).astype(np.int32)
