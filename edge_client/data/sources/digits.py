"""Six domains of the ten digits, made from files of installed packages; no data are downloaded.

mnist      real   MNIST, 5,000 digits                       white on black
optdigits  real   UCI optdigits, 1,797, 8x8 enlarged        soft and coarse
mfeat      real   UCI multiple features, 1,994, 16x15       bold, filling the frame
synth      drawn  printed digits, coloured, turned, noisy   like SynthDigits
mnistm     mixed  |photo - MNIST|                           like MNIST-M
street     drawn  printed digits on walls, with neighbours  like SVHN
"""

from __future__ import annotations

from pathlib import Path

from protofleet.edge_client.data.cache import cached
from protofleet.edge_client.data.digits.recipe import CHECKSUMS, RECIPES, build
from protofleet.edge_client.data.domain import Domain, ImagesInMemory
from protofleet.edge_client.data.sources.source import DataSource

CLASSES = tuple(str(digit) for digit in range(10))


def read(folder: Path, domain: str) -> Domain:
    """Read a domain from its file in the folder; build the file first if it is missing."""
    expected = CHECKSUMS[domain]
    # The file name has the checksum, because different releases of protofleet may share the folder.
    path = folder / f"{domain}-{expected[:8]}.npz"
    arrays = cached(path, expected, lambda: build(domain))
    train = ImagesInMemory(arrays["x_train"], arrays["y_train"].astype("int64"))
    test = ImagesInMemory(arrays["x_test"], arrays["y_test"].astype("int64"))
    return Domain(domain, CLASSES, train, test)


SOURCE = DataSource(read, tuple(RECIPES), CLASSES, needs_folder=False)
