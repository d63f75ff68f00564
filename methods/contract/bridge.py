"""Conversion between arrays of messages and torch tensors; no other module knows both forms."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

import numpy as np
import torch
from torch import Tensor

from protofleet.methods.contract.base import Payload
from protofleet.protocol.wire.arrays import NAMES, SlicedArrays
from protofleet.protocol.wire.messages import Array, Arrays

CPU: Final = torch.device("cpu")


def to_torch(arrays: Arrays) -> dict[str, Tensor]:
    return {name: _copy(arrays[name]) for name in arrays}


def to_numpy(payload: Payload) -> dict[str, Array]:
    """Return arrays in the form of the wire: contiguous and little-endian.

    The arrays share memory with the tensors where this is possible.
    """
    return {name: _array(payload[name]) for name in payload}


class LazyPayload(Mapping[str, Tensor]):
    """A mapping that makes a new tensor from an array each time the array is read.

    The tensors are not kept, so the replies of a cohort never fill the memory.
    """

    def __init__(self, arrays: Arrays, *, unshared: bool = False, place: torch.device = CPU) -> None:
        """Keep the arrays.

        `unshared` means that no other code uses the arrays. Then the tensors may be views of the arrays.
        """
        self._arrays, self._place = arrays, place
        self._sliced: SlicedArrays | None = None
        # A dict has no slices, and a comparison with a protocol is slow.
        if not isinstance(arrays, dict) and isinstance(arrays, SlicedArrays):
            self._sliced = arrays
        self._unshared = unshared or self._sliced is not None

    def __getitem__(self, name: str) -> Tensor:
        array = self._arrays[name]
        return (_view(array) if self._unshared else _copy(array)).to(self._place)

    def dtype_and_shape(self, name: str) -> tuple[str, tuple[int, ...]]:
        """Return dtype and shape of an array; for an array on the disk, no numbers are read."""
        if self._sliced is not None:
            return self._sliced.dtype_and_shape(name)
        array = self._arrays[name]
        return NAMES.get(array.dtype) or array.dtype.name, array.shape  # `dtype.name` is slow

    def flat(self, name: str, start: int, stop: int) -> Tensor:
        """Return the numbers [start, stop) of the flattened array.

        If the array is on the disk, the rest of the array is not read.
        """
        if self._sliced is not None:
            return _view(self._sliced.flat(name, start, stop)).to(self._place)
        return _copy(self._arrays[name].reshape(-1)[start:stop]).to(self._place)

    def __contains__(self, name: object) -> bool:
        # The inherited __contains__ would read the array.
        return any(name == known for known in self._arrays)

    def __iter__(self) -> Iterator[str]:
        return iter(self._arrays)

    def __len__(self) -> int:
        return len(self._arrays)


def _copy(array: Array) -> Tensor:
    """Return a copy as a tensor.

    Wire arrays may be read-only views of the bytes of other code, and torch knows only the native byte order.
    """
    return torch.from_numpy(np.array(array, dtype=array.dtype.newbyteorder("="), order="C"))


def _view(array: Array) -> Tensor:
    """Return a view of the array if torch can use its memory, otherwise a copy.

    A view needs writable memory and the native byte order. The arrays of a received message have writable memory.
    """
    native = array.dtype.isnative and array.flags.writeable
    return torch.from_numpy(array) if native else _copy(array)


def _array(value: Tensor) -> Array:
    array: Array = value.detach().cpu().numpy()
    # ascontiguousarray would turn a scalar (num_batches_tracked) into an array with one number.
    return np.asarray(array, dtype=array.dtype.newbyteorder("<"), order="C")
