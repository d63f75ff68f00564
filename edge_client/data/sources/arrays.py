"""A user's own samples of any shape, in NumPy's format: `<root>/<domain>.npz` with the arrays x and y.

x has numbers, [N, *shape], which are used unchanged. For images, x may also have pixels of type uint8,
[N, H, W, channels], or [N, H, W] for grey images.

y has class names, or numbers from 0 on. The names for the numbers may be in an array `classes`. The file may also
have x_test and y_test; otherwise a fifth of all samples is for the test.
"""

from __future__ import annotations

import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from protofleet.edge_client.data.domain import (
    Collection,
    Domain,
    ImagesInMemory,
    Indices,
    Labels,
    ValuesInMemory,
    select,
)
from protofleet.edge_client.data.errors import DataError, reading
from protofleet.edge_client.data.images.resize import Pixels
from protofleet.edge_client.data.sampling import stratified, without
from protofleet.edge_client.data.scaling import Values
from protofleet.edge_client.data.sources.source import DataSource
from protofleet.edge_client.data.stable_random import StableRandom
from protofleet.protocol.settings.input_shape import InputShape

WAY_OUT: Final = "samples are looked for in <root>/<domain>.npz, and data.root names the root"
TEST_PART: Final = 5  # in every class, one of five samples is for the test

Arrays = Mapping[str, NDArray[Any]]


@dataclass(frozen=True)
class GreyOrSeries:
    """Values of type uint8, [N, H, W] or [N, C, T], which are grey pictures or series.

    In a run on images, the values are grey pictures. In any other run, they are numbers from 0 to 255, for example
    from a sensor with 8 bits.
    """

    values: Pixels
    labels: Labels
    title: str

    def samples(self, chosen: Indices, shape: InputShape) -> Values:
        if shape.rank == 3:
            return ImagesInMemory(self.values[..., None], self.labels).samples(chosen, shape)
        numbers = self.values[chosen].astype(np.float32)
        return ValuesInMemory(numbers, self.labels[chosen], self.title).samples(np.arange(len(chosen)), shape)


def _read(folder: Path, domain: str) -> Domain:
    path = _path(folder, domain)
    arrays = _load(path, "x", "y", "x_test", "y_test", "classes")
    classes = _classes(path, arrays)
    every = _collection(path, arrays, "x", "y", classes)
    if "x_test" in arrays:
        return Domain(domain, classes, every, _collection(path, arrays, "x_test", "y_test", classes))
    number = len(every.labels)
    test = np.sort(stratified(every.labels, number // TEST_PART, StableRandom("arrays", domain)))
    return Domain(domain, classes, select(every, without(number, test)), select(every, test))


def _names(folder: Path, domain: str) -> tuple[str, ...]:
    path = _path(folder, domain)
    return _classes(path, _load(path, "y", "y_test", "classes"))


def _path(folder: Path, domain: str) -> Path:
    return folder / f"{'data' if domain == 'arrays' else domain}.npz"


def _load(path: Path, *names: str) -> Arrays:
    try:
        with reading(path, WAY_OUT), path.open("rb") as opened:
            # NumPy's own error advises the user to load the file as a pickle.
            if not zipfile.is_zipfile(opened):
                raise ValueError("it is not a complete .npz file; write it with numpy.savez")
            with np.load(path, allow_pickle=False) as file:
                return {name: _plain(file, name) for name in names if name in file.files}
    except zipfile.BadZipFile as error:
        raise DataError(f"{path} cannot be read ({error}); {WAY_OUT}") from None


def _plain(file: Mapping[str, NDArray[Any]], name: str) -> NDArray[Any]:
    try:
        return file[name]
    except ValueError as error:
        why = f"{name} has objects of Python, which are never loaded; save numbers, or names as text"
        raise ValueError(why if "pickle" in str(error) else f"{name}: {error}") from None


def _classes(path: Path, arrays: Arrays) -> tuple[str, ...]:
    if "y" not in arrays:
        raise DataError(f"{path} has no array y with the classes of the samples; {WAY_OUT}")
    if "classes" in arrays:
        return tuple(str(name) for name in arrays["classes"].ravel())
    labels = np.concatenate([arrays[name].ravel() for name in ("y", "y_test") if name in arrays])
    if labels.dtype.kind == "U":
        return tuple(sorted({str(name) for name in labels}))
    if labels.dtype.kind not in "iu" or not len(labels):
        raise DataError(
            f"{path}: y is {labels.dtype} {labels.shape}, it must be names of classes, or whole numbers"
        )
    return tuple(str(number) for number in range(int(labels.max()) + 1))


def _collection(path: Path, arrays: Arrays, x: str, y: str, classes: tuple[str, ...]) -> Collection:
    if x not in arrays or y not in arrays or len(arrays[x]) != arrays[y].size:
        found = ", ".join(f"{name} {array.shape}" for name, array in arrays.items())
        raise DataError(
            f"{path} has {found}; it must have {x} and {y}, with the same number of samples in both"
        )
    values, labels = arrays[x], _labels(path, arrays[y].ravel(), classes)
    if values.dtype == np.uint8 and values.ndim == 3:
        return GreyOrSeries(values, labels, str(path))
    if values.dtype == np.uint8 and values.ndim == 4:
        return ImagesInMemory(values, labels)
    if values.dtype.kind not in "fiu" or not 2 <= values.ndim <= 4:
        raise DataError(
            f"{path}: {x} is {values.dtype} {values.shape}, it must be numbers [N, F], [N, C, T] or [N, C, H, W], or "
            "pixels, uint8 [N, H, W, channels]"
        )
    values = values.astype(np.float32, copy=False)
    if not np.isfinite(values).all():
        raise DataError(f"{path}: {x} has numbers that are not finite; leave out such samples")
    return ValuesInMemory(values, labels, str(path))


def _labels(path: Path, labels: NDArray[Any], classes: tuple[str, ...]) -> Labels:
    if labels.dtype.kind != "U":
        return labels.astype(np.int64)
    number = {name: i for i, name in enumerate(classes)}
    if unknown := [str(name) for name in labels if str(name) not in number]:
        raise DataError(f"{path}: y has {unknown[0]!r}, which is not in the array classes")
    return np.array([number[str(name)] for name in labels], np.int64)


SOURCE: Final = DataSource(_read, (), class_names=_names, ranks=(1, 2, 3), channels=())
