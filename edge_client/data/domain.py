"""Images with labels, on disk or in memory, and a domain made of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from protofleet.edge_client.data.errors import DataError
from protofleet.edge_client.data.images.resize import Pixels, resize
from protofleet.protocol.wire.class_names import difference

Labels = NDArray[np.int64]
Indices = NDArray[np.int64]


class Collection(Protocol):
    """Labelled images. Pixels are only made when asked for: of 600,000 files a device may need 300."""

    @property
    def labels(self) -> Labels: ...

    def pixels(self, chosen: Indices, size: int) -> Pixels:
        """[len(chosen), size, size, 3]"""


@dataclass(frozen=True)
class ImagesInMemory:
    """Images in memory, [N, h, w, 1 or 3]."""

    images: Pixels
    labels: Labels

    def pixels(self, chosen: Indices, size: int) -> Pixels:
        found = resize(self.images[chosen], size, size)
        return np.broadcast_to(found, (*found.shape[:3], 3))


@dataclass(frozen=True)
class Selection:
    """Some samples of a collection, in an order and with labels of their own."""

    collection: Collection
    indices: Indices
    labels: Labels

    def pixels(self, chosen: Indices, size: int) -> Pixels:
        return self.collection.pixels(self.indices[chosen], size)


def select(collection: Collection, chosen: Indices) -> Collection:
    return Selection(collection, chosen, collection.labels[chosen])


@dataclass(frozen=True)
class Concatenated:
    """Several collections, one after the other."""

    collections: Sequence[Collection]

    @property
    def labels(self) -> Labels:
        return np.concatenate([collection.labels for collection in self.collections])

    def pixels(self, chosen: Indices, size: int) -> Pixels:
        out = np.empty((len(chosen), size, size, 3), np.uint8)
        start = 0
        for collection in self.collections:
            end = start + len(collection.labels)
            inside = np.flatnonzero((chosen >= start) & (chosen < end))
            out[inside] = collection.pixels(chosen[inside] - start, size)
            start = end
        return out


@dataclass(frozen=True)
class Domain:
    """One domain as it was published: labels count through `classes`."""

    name: str
    classes: tuple[str, ...]
    train: Collection
    test: Collection

    def __post_init__(self) -> None:
        for collection in (self.train, self.test):
            labels = collection.labels
            if len(labels) and not 0 <= labels.min() <= labels.max() < len(self.classes):
                raise DataError(
                    f"{self.name} has labels {labels.min()} to {labels.max()} for its {len(self.classes)} classes; "
                    "the files are of another data set or damaged, copy them again"
                )


def restrict_classes(domain: Domain, classes: tuple[str, ...]) -> Domain:
    """Only these classes, and labels that count through them; all of them where none are named."""
    if not classes:
        return domain
    if unknown := [name for name in classes if name not in domain.classes]:
        raise DataError(
            f"{domain.name} has no class {unknown[0]!r}; it has {', '.join(domain.classes)}. Change data.classes"
        )
    label = np.full(len(domain.classes), -1, np.int64)
    label[[domain.classes.index(name) for name in classes]] = np.arange(len(classes))

    def restrict(collection: Collection) -> Collection:
        labels = label[collection.labels]
        kept = np.flatnonzero(labels >= 0)
        return Selection(collection, kept, labels[kept])

    return Domain(domain.name, classes, restrict(domain.train), restrict(domain.test))


def concatenate(name: str, domains: Sequence[Domain]) -> Domain:
    first = domains[0]
    for other in domains[1:]:
        if problem := difference(first.name, first.classes, other.name, other.classes):
            raise DataError(f"the domains of {name} have other classes: {problem}; name data.classes")
    if len(domains) == 1:
        return domains[0]
    train, test = Concatenated([d.train for d in domains]), Concatenated([d.test for d in domains])
    return Domain(name, domains[0].classes, train, test)
