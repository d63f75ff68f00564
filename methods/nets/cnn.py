"""The papers' small CNNs, with two 5x5 convolutions and a few linear layers, and one CNN with BatchNorm.

The papers' networks are FedLSA's CNN ("2 convolution layers and 3 linear layers", with the sizes of MOON's
simple-cnn), FedSA's 4-layer CNN, FedHP's MNIST network, and FedNH's Conv2Cifar with and without its layer of 192.

Every builder takes (image, classes, feature_size). feature_size is the width of the linear layer that makes
the features, unless the builder states something else.
"""

from __future__ import annotations

from itertools import pairwise

from torch import nn

from protofleet.methods.nets.base import Image, Net, resized

SMALLEST = 16  # Smallest side in pixels; two unpadded 5x5 convolutions and two 2x2 pools reduce it to 1.
SMALLEST_WITH_BATCH_NORM = (
    8  # Smallest side in pixels; the convolutions are padded, and there are three pools.
)


def fedlsa(image: Image, classes: int, feature_size: int | None) -> Net:
    """Build FedLSA's CNN.

    For images of 3x32x32, the convolutions have 6 and 16 channels, and the other layers are 400 -> 120 | 84 |
    classes. The CNN then has 62,006 parameters for 10 classes.
    """
    channels, rows, columns = image
    rows, columns = min(5, _left(rows)), min(5, _left(columns))
    features = 120 if feature_size is None else feature_size
    encoder = nn.Sequential(
        *_convolutions(channels, 6, 16),
        _at_most_5x5(image),
        nn.Flatten(),
        *_dense(16 * rows * columns, features),
    )
    # MOON has a ReLU behind the projector, but this network does not: FedLSA puts the output on the unit sphere and
    # pulls it to anchors with positive and negative numbers. After a ReLU the output could not reach most of the
    # sphere.
    return Net(encoder, features, classes, projector=nn.Linear(features, 84), embedding_size=84)


def fedsa(image: Image, classes: int, feature_size: int | None) -> Net:
    """Build FedSA's CNN. For 3x32x32, it has layers of 32 and 64 channels, and then 1600 -> 512 | classes.

    It has 924,708 parameters for 100 classes. For 1x28x28 it is 1024 -> 512 | classes. This is FedHP's MNIST
    network, with 582,026 parameters for 10 classes. The first linear layer grows with the image: it has 10,816
    inputs for the 64x64 images of Tiny-ImageNet.
    """
    features = 512 if feature_size is None else feature_size
    encoder = nn.Sequential(
        *_convolutions(image[0], 32, 64), nn.Flatten(), *_dense(_flat(64, image), features)
    )
    return Net(encoder, features, classes)


def fednh(image: Image, classes: int, feature_size: int | None) -> Net:
    """Build FedNH's CNN. For 3x32x32, it has two layers of 64 channels, and then 1600 -> 384 -> 192 | 10.

    The head does not have a bias. The network has 797,952 parameters.
    """
    features = 192 if feature_size is None else feature_size
    return _fednh(image, classes, 384, features)


def fednh_small(image: Image, classes: int, feature_size: int | None) -> Net:
    """Build Conv2Cifar without the layer of 192.

    It has the 725,952 parameters that FedHP states for FedNH's network.
    """
    features = 384 if feature_size is None else feature_size
    return _fednh(image, classes, features)


def _fednh(image: Image, classes: int, *widths: int) -> Net:
    encoder = nn.Sequential(
        *_convolutions(image[0], 64, 64), nn.Flatten(), *_dense(_flat(64, image), *widths)
    )
    return Net(encoder, widths[-1], classes, head_bias=False)


def fedhp_mnist_backbone(image: Image, classes: int, feature_size: int | None) -> Net:
    """Build the network that FedHP trains on MNIST: the flat convolutions, 1024 features for 1x28x28.

    With `feature_size`, neighbouring features are averaged to this number of features.
    """
    return _backbone(image, classes, feature_size, 32, head_bias=True)


def fednh_backbone(image: Image, classes: int, feature_size: int | None) -> Net:
    """Build the network that FedHP trains on CIFAR and SVHN. It has 1600 flat features for 3x32x32.

    With `feature_size`, means of neighbouring features give this number of features.
    """
    return _backbone(image, classes, feature_size, 64, head_bias=False)


def _backbone(image: Image, classes: int, feature_size: int | None, first: int, head_bias: bool) -> Net:
    own = _flat(64, image)
    encoder = nn.Sequential(*_convolutions(image[0], first, 64), nn.Flatten(), resized(own, feature_size))
    features = own if feature_size is None else feature_size
    return Net(encoder, features, classes, head_bias=head_bias)


def batch_norm(image: Image, classes: int, feature_size: int | None) -> Net:
    """Build a small network with a BatchNorm after every convolution, for FedBN and similar methods.

    The network does not come from a paper. It has 3x3 convolutions of 32, 64, 128 and feature_size (256) channels.
    The last channels are averaged over the image. The network has 391,466 parameters for 3 channels and 10 classes,
    for every image size.
    """
    features = 256 if feature_size is None else feature_size
    encoder = nn.Sequential(
        *_normed(image[0], 32),
        nn.MaxPool2d(2),
        *_normed(32, 64),
        nn.MaxPool2d(2),
        *_normed(64, 128),
        nn.MaxPool2d(2),
        *_normed(128, features),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
    )
    return Net(encoder, features, classes)


def _convolutions(channels: int, first: int, second: int) -> list[nn.Module]:
    return [
        *(nn.Conv2d(channels, first, 5), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(first, second, 5), nn.ReLU(), nn.MaxPool2d(2)),
    ]


def _dense(*sizes: int) -> list[nn.Module]:
    return [layer for i, o in pairwise(sizes) for layer in (nn.Linear(i, o), nn.ReLU())]


def _normed(channels: int, filters: int) -> list[nn.Module]:
    # There is no bias, because BatchNorm would remove it again, and its gradient would be zero.
    convolution = nn.Conv2d(channels, filters, 3, padding=1, bias=False)
    return [convolution, nn.BatchNorm2d(filters), nn.ReLU()]


def _left(side: int) -> int:
    """Return the side in pixels after two unpadded 5x5 convolutions and two 2x2 pools."""
    return ((side - 4) // 2 - 4) // 2


def _flat(filters: int, image: Image) -> int:
    return filters * _left(image[1]) * _left(image[2])


def _at_most_5x5(image: Image) -> nn.Module:
    rows, columns = _left(image[1]), _left(image[2])
    if max(rows, columns) <= 5:
        return nn.Identity()
    return nn.AdaptiveAvgPool2d((min(5, rows), min(5, columns)))
