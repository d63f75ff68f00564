"""ResNet-10 as FPL and FedPLCC train it (D = 512): the network of RethinkFL without its unused encoder.

This is the CIFAR form of He et al. 2016: a 3x3 stem without pooling and one basic block in each of four stages.
Parameters for 10 classes: stem 1,856; stages 73,984 + 230,144 + 919,040 + 3,673,088; head 5,130; together
4,903,242. In addition, the 12 BatchNorms keep 5,760 floats of running statistics.
"""

from __future__ import annotations

from itertools import pairwise

import torch.nn.functional as F
from torch import Tensor, nn

from protofleet.methods.nets.base import Image, Net, resized

# Smallest side in pixels. Three stages halve the image; in a smaller image, the last stage would see only padding.
SMALLEST = 8
WIDTHS = (64, 128, 256, 512)


def resnet10(image: Image, classes: int, feature_size: int | None) -> Net:
    """Build the network; its features are the 512 channel means, which are averaged to `feature_size` numbers."""
    stages = [Block(i, o, stride=2) for i, o in pairwise(WIDTHS)]
    own = WIDTHS[-1]
    encoder = nn.Sequential(
        *(_convolution(image[0], WIDTHS[0], 3), nn.BatchNorm2d(WIDTHS[0]), nn.ReLU()),
        Block(WIDTHS[0], WIDTHS[0]),
        *stages,
        # RethinkFL pools windows of height x height. This is the same for square images, but wrong for others.
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        resized(own, feature_size),
    )
    return Net(encoder, own if feature_size is None else feature_size, classes)


class Block(nn.Module):
    """Two 3x3 convolutions and a shortcut, which is projected if the shape changes."""

    def __init__(self, channels: int, filters: int, stride: int = 1) -> None:
        super().__init__()
        self.conv1, self.norm1 = _convolution(channels, filters, 3, stride), nn.BatchNorm2d(filters)
        self.conv2, self.norm2 = _convolution(filters, filters, 3), nn.BatchNorm2d(filters)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or channels != filters:
            projection = _convolution(channels, filters, 1, stride)
            self.shortcut = nn.Sequential(projection, nn.BatchNorm2d(filters))

    def forward(self, x: Tensor) -> Tensor:
        inner = F.relu(self.norm1(self.conv1(x)))
        return F.relu(self.norm2(self.conv2(inner)) + self.shortcut(x))


def _convolution(channels: int, filters: int, kernel: int, stride: int = 1) -> nn.Conv2d:
    return nn.Conv2d(channels, filters, kernel, stride, padding=kernel // 2, bias=False)
