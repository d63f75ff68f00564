"""The recipe of each of the six digit domains, and the checksum of its result."""

from __future__ import annotations

import platform
from collections.abc import Callable, Mapping
from typing import Final

import numpy as np

from protofleet.edge_client.data.cache import Arrays, checksum
from protofleet.edge_client.data.digits import scans, synthetic
from protofleet.edge_client.data.domain import Indices, Labels
from protofleet.edge_client.data.errors import DataError
from protofleet.edge_client.data.images.photos import read_photos
from protofleet.edge_client.data.images.resize import Pixels
from protofleet.edge_client.data.sampling import stratified, without
from protofleet.edge_client.data.stable_random import StableRandom

# Numbers of training images and of test images in a drawn domain. In the other domains, four fifths of
# the images are for training, and one fifth is for the test.
TRAIN, TEST = 4000, 1000

CHECKSUMS: Final[Mapping[str, str]] = {
    "mnist": "54dbe1ed2fa192b618061fdecc907c62b77945294dc2f85b4072e8b38b433b32",
    "optdigits": "581fdfd55d6bcf751d859c562ba85d4caa5e955e417366ecb191ea238bf37997",
    "mfeat": "2aeff28c9961260b68adf616cefdd26ca138eabf13da929da27a32c59fda0c02",
    "synth": "e32244fe7dbfe28e500b0d1048f479fff56b61b9555bf4701bc949f7f8bff00b",
    "mnistm": "8b8ed302488e753faeba6a2cb9e78684797f96937e6cc288eb92a6db3f6a542e",
    "street": "dbe600115923fcde9b8eb79529c8f7c272e8178451c0deb454db1d1485c37d90",
}


def build(domain: str) -> Arrays:
    """Make a domain, and return x_train, y_train, x_test and y_test, with the same bytes on every machine."""
    arrays = RECIPES[domain]()
    found, expected = checksum(arrays), CHECKSUMS[domain]
    if found != expected:
        raise DataError(
            f"the digits of {domain} have the checksum {found[:12]}... on this machine, not {expected[:12]}..., "
            "although the files that they are made from are right; it seems that NumPy "
            f"{np.__version__} on {platform.machine()} computes other values. Please report this, and copy the file "
            "from a machine that has built it"
        )
    return arrays


def _real(domain: str, scan: Callable[[], tuple[Pixels, Labels]]) -> Callable[[], Arrays]:
    def recipe() -> Arrays:
        images, labels = scan()
        train, test = _split(domain, labels)
        return _arrays(images[train], labels[train], images[test], labels[test])

    return recipe


def _mnistm() -> Arrays:
    images, labels = scans.mnist()
    photos = read_photos()
    # The digits are split as in the domain mnist. So no digit is used for training in one domain and for the test
    # in the other domain.
    train, test = _split("mnist", labels)
    return _arrays(
        synthetic.mnistm(images[train], photos, False, StableRandom("digits", "mnistm", "train")), labels[train],
        synthetic.mnistm(images[test], photos, True, StableRandom("digits", "mnistm", "test")), labels[test],
    )  # fmt: skip


def _synth() -> Arrays:
    train, test = StableRandom("digits", "synth", "train"), StableRandom("digits", "synth", "test")
    y_train, y_test = train.permutation(TRAIN) % 10, test.permutation(TEST) % 10
    return _arrays(
        synthetic.synth(y_train, False, train), y_train, synthetic.synth(y_test, True, test), y_test
    )


def _street() -> Arrays:
    photos = read_photos()
    train, test = StableRandom("digits", "street", "train"), StableRandom("digits", "street", "test")
    y_train, y_test = train.permutation(TRAIN) % 10, test.permutation(TEST) % 10
    return _arrays(
        synthetic.street(y_train, photos, False, train), y_train,
        synthetic.street(y_test, photos, True, test), y_test,
    )  # fmt: skip


def _split(domain: str, labels: Labels) -> tuple[Indices, Indices]:
    test = stratified(labels, len(labels) // 5, StableRandom("digits", domain, "test"))
    return without(len(labels), test), np.sort(test)


def _arrays(x_train: Pixels, y_train: Labels, x_test: Pixels, y_test: Labels) -> Arrays:
    labels = {"y_train": y_train.astype(np.uint8), "y_test": y_test.astype(np.uint8)}
    return {"x_train": x_train, "x_test": x_test, **labels}


RECIPES: Final[Mapping[str, Callable[[], Arrays]]] = {
    "mnist": _real("mnist", scans.mnist),
    "optdigits": _real("optdigits", scans.optdigits),
    "mfeat": _real("mfeat", scans.mfeat),
    "synth": _synth,
    "mnistm": _mnistm,
    "street": _street,
}
