"""Images with labels, wherever they lie, and a domain made of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from edge_client.data.resize import Pixels, resize

Labels = NDArray[np.int64]
Indices = NDArray[np.int64]


class Collection(Protocol):
    """Labelled images. Pixels are only made when asked for: of 600,000 files a device may want 300."""

    @property
    def labels(self) -> Labels: ...

    def pixels(self, chosen: Indices, size: int) -> Pixels:
        """[len(chosen), size, size, 3]"""


@dataclass(frozen=True)
class Held:
    """Images in memory, [N, h, w, 1 or 3]."""

    images: Pixels
    labels: Labels

    def pixels(self, chosen: Indices, size: int) -> Pixels:
        found = resize(self.images[chosen], size, size)
        return np.broadcast_to(found, (*found.shape[:3], 3))


@dataclass(frozen=True)
class Pooled:
    """Several collections, one behind the other."""

    collections: Sequence[Collection]

    @property
    def labels(self) -> Labels:
        return np.concatenate([collection.labels for collection in self.collections])

    def pixels(self, chosen: Indices, size: int) -> Pixels:
        out = np.empty((len(chosen), size, size, 3), np.uint8)
        start = 0
        for collection in self.collections:
            end = start + len(collection.labels)
            here = np.flatnonzero((chosen >= start) & (chosen < end))
            out[here] = collection.pixels(chosen[here] - start, size)
            start = end
        return out


@dataclass(frozen=True)
class Domain:
    """One domain as it was published: labels count through `classes`."""

    name: str
    classes: tuple[str, ...]
    train: Collection
    test: Collection


def pooled(name: str, domains: Sequence[Domain]) -> Domain:
    if len(domains) == 1:
        return domains[0]
    train, test = Pooled([d.train for d in domains]), Pooled([d.test for d in domains])
    return Domain(name, domains[0].classes, train, test)
