"""CIFAR-10 and CIFAR-100 in the version for Python: each has 50,000 images for training and 10,000 for the test.

The files are pickles, and loading a pickle can run any code. This module accepts only arrays, lists, dicts, numbers
and strings in a pickle. It refuses all other objects before they are created.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from protofleet.edge_client.data.domain import Domain, ImagesInMemory, Labels
from protofleet.edge_client.data.errors import reading
from protofleet.edge_client.data.images.resize import Pixels
from protofleet.edge_client.data.sources.source import DataSource

WAY_OUT: Final = "unpack the Python version of the data set there, or name its folder in data.root"


def _latin1(text: str, encoding: str) -> bytes:
    """Encode text to bytes; in old pickle formats, Python 3 stores bytes as text in the encoding Latin-1."""
    if encoding != "latin1":
        raise pickle.UnpicklingError(f"it encodes text as {encoding}")
    return text.encode("latin1")


# NumPy's function `_reconstruct`. Its module differs between releases of NumPy, so an array provides the function.
_rebuild: Any = np.zeros(0, np.uint8).__reduce__()[0]
ALLOWED: Final[dict[tuple[str, str], object]] = {
    ("numpy.core.multiarray", "_reconstruct"): _rebuild,
    ("numpy._core.multiarray", "_reconstruct"): _rebuild,
    ("numpy", "ndarray"): np.ndarray,
    ("numpy", "dtype"): np.dtype,
    ("_codecs", "encode"): _latin1,
}


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> object:
        if (module, name) not in ALLOWED:
            raise pickle.UnpicklingError(f"it loads {module}.{name}, an object that no CIFAR file needs")
        return ALLOWED[module, name]


def _cifar10(folder: Path, domain: str) -> Domain:
    classes = _names10(folder, domain)
    folder = _data_folder(folder, "cifar-10-batches-py")
    train = [folder / f"data_batch_{i}" for i in range(1, 6)]
    return Domain(domain, classes, _load(train, "labels"), _load([folder / "test_batch"], "labels"))


def _cifar100(folder: Path, domain: str) -> Domain:
    classes = _names100(folder, domain)
    folder = _data_folder(folder, "cifar-100-python")
    train, test = (_load([folder / name], "fine_labels") for name in ("train", "test"))
    return Domain(domain, classes, train, test)


def _names10(folder: Path, domain: str) -> tuple[str, ...]:
    return _classes(_data_folder(folder, "cifar-10-batches-py") / "batches.meta", "label_names")


def _names100(folder: Path, domain: str) -> tuple[str, ...]:
    return _classes(_data_folder(folder, "cifar-100-python") / "meta", "fine_label_names")


def _data_folder(folder: Path, name: str) -> Path:
    """Return the folder of the files, which is `folder` itself or the archive's folder in `folder`."""
    return folder / name if (folder / name).is_dir() else folder


def _classes(path: Path, key: str) -> tuple[str, ...]:
    with reading(path, WAY_OUT):
        return tuple(str(name) for name in unpickled(path)[key])


def _load(paths: Sequence[Path], key: str) -> ImagesInMemory:
    images, labels = zip(*(_batch(path, key) for path in paths), strict=True)
    return ImagesInMemory(np.concatenate(images), np.concatenate(labels))


def _batch(path: Path, key: str) -> tuple[Pixels, Labels]:
    with reading(path, WAY_OUT):
        table = unpickled(path)
        images, labels = table["data"], np.array(table[key], np.int64)
        if (
            not isinstance(images, np.ndarray)
            or images.dtype != np.uint8
            or images.shape != (len(labels), 3072)
        ):
            raise ValueError(f"its data are not {len(labels)} rows of 3072 bytes")
    # A row has all red values, then all green values, then all blue values.
    return np.ascontiguousarray(images.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)), labels


def unpickled(path: Path) -> dict[str, Any]:
    data = path.read_bytes()
    try:
        table = _Unpickler(io.BytesIO(data), encoding="latin1").load()  # Python 2 has written the files.
    except (AttributeError, TypeError, MemoryError) as error:
        raise pickle.UnpicklingError(f"it is damaged: {error}") from error
    if not isinstance(table, dict):
        raise pickle.UnpicklingError("its content is not a dict")
    return table


CIFAR10 = DataSource(_cifar10, ("cifar10",), class_names=_names10)
CIFAR100 = DataSource(_cifar100, ("cifar100",), class_names=_names100)
