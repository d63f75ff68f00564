"""Collections of labelled samples, on the disk or in memory, and domains, which consist of such collections."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from protofleet.edge_client.data.errors import DataError
from protofleet.edge_client.data.images.resize import Pixels, channels_first, resize
from protofleet.edge_client.data.scaling import Values
from protofleet.protocol.settings.input_shape import InputShape
from protofleet.protocol.wire.class_names import difference

Labels = NDArray[np.int64]
Indices = NDArray[np.int64]


class Collection(Protocol):
    """Labelled samples whose values are read only on request.

    A device may need only 300 of 600,000 files, and reading all files would take too long.
    """

    @property
    def labels(self) -> Labels: ...

    def samples(self, chosen: Indices, shape: InputShape) -> Values:
        """Return the values of the chosen samples, [len(chosen), *shape]: uint8 for pixels, float32 for other values.

        Raise DataError if the samples have another shape.
        """


@dataclass(frozen=True)
class ImagesInMemory:
    """Images in memory, [N, h, w, channels]."""

    images: Pixels
    labels: Labels

    def samples(self, chosen: Indices, shape: InputShape) -> Values:
        own, channels = list(self.images.shape[1:]), shape.channels
        if shape.rank != 3:
            raise DataError(
                f"the samples are images, uint8 {own}, and the settings ask for {shape}; set data.shape = [{own[2]}, "
                "height, width], or store the samples as float32 if they are not images"
            )
        if own[0] == channels and own[2] not in (1, channels) and (own[2], channels) != (3, 1):
            raise DataError(
                f"the images are uint8 {own}, but the channels must be the last axis: store x.transpose(0, 2, 3, 1), "
                f"which is [N, height, width, {channels}]"
            )
        return channels_first(resize(self.images[chosen], *shape.spatial), channels)


@dataclass(frozen=True)
class ValuesInMemory:
    """Vectors, series or images [N, *shape] whose numbers are not pixels; the numbers are used unchanged."""

    values: NDArray[np.float32]
    labels: Labels
    title: str  # title of the source, for messages

    def samples(self, chosen: Indices, shape: InputShape) -> Values:
        own = InputShape(self.values.shape[1:])
        if own != shape:
            grey = shape.channels == 1 and own.axes == shape.spatial if shape.rank == 3 else False
            way_out = "store pixels as uint8, 0 to 255" if grey else f"set data.shape = {list(own.axes)}"
            raise DataError(f"{self.title} has {own}, and the settings ask for {shape}; {way_out}")
        return self.values[chosen]


@dataclass(frozen=True)
class Selection:
    """Some samples of a collection, in a chosen order and with their own labels."""

    collection: Collection
    indices: Indices
    labels: Labels

    def samples(self, chosen: Indices, shape: InputShape) -> Values:
        return self.collection.samples(self.indices[chosen], shape)


def select(collection: Collection, chosen: Indices) -> Collection:
    return Selection(collection, chosen, collection.labels[chosen])


@dataclass(frozen=True)
class Concatenated:
    """Several collections, one after the other."""

    collections: Sequence[Collection]

    @property
    def labels(self) -> Labels:
        return np.concatenate([collection.labels for collection in self.collections])

    def samples(self, chosen: Indices, shape: InputShape) -> Values:
        out, start = np.empty((len(chosen), *shape.axes), np.uint8), 0
        for collection in self.collections:
            end = start + len(collection.labels)
            inside = np.flatnonzero((chosen >= start) & (chosen < end))
            found = collection.samples(chosen[inside] - start, shape)
            # All collections of a source have values of the same type.
            out = out.astype(found.dtype, copy=False)
            out[inside] = found
            start = end
        return out


@dataclass(frozen=True)
class Domain:
    """A domain with its published split into training and test; labels are indices into `classes`."""

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
                    "the files belong to another data set, or they are damaged: copy the files again"
                )


def restrict_classes(domain: Domain, classes: tuple[str, ...]) -> Domain:
    """Return the domain with only these classes, or the whole domain if `classes` is empty.

    The labels of the result are indices into `classes`.
    """
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
            raise DataError(
                f"the domains of {name} have different classes: {problem}; list the common classes in data.classes"
            )
    if len(domains) == 1:
        return domains[0]
    train, test = Concatenated([d.train for d in domains]), Concatenated([d.test for d in domains])
    return Domain(name, domains[0].classes, train, test)
