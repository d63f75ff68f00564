"""Wire arrays <-> torch tensors; the only place that knows both."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

import numpy as np
import torch
from torch import Tensor

from protofleet.methods.contract.base import Payload
from protofleet.protocol.wire.arrays import Body
from protofleet.protocol.wire.messages import Array, Arrays

CPU: Final = torch.device("cpu")


def to_torch(arrays: Arrays) -> dict[str, Tensor]:
    return {name: _copy(arrays[name]) for name in arrays}


def to_numpy(payload: Payload) -> dict[str, Array]:
    """Contiguous and little-endian, as the wire has them. Shares memory with the tensors where it can."""
    return {name: _array(payload[name]) for name in payload}


class LazyPayload(Mapping[str, Tensor]):
    """Arrays that become tensors each time they are read, and are not held: a cohort never fills the memory."""

    def __init__(self, arrays: Arrays, *, unshared: bool = False, place: torch.device = CPU) -> None:
        """`unshared`: nobody else uses the arrays, so tensors may be views of them."""
        self._arrays, self._place = arrays, place
        self._unshared = unshared or isinstance(arrays, Body)

    def __getitem__(self, name: str) -> Tensor:
        array = self._arrays[name]
        return (_view(array) if self._unshared else _copy(array)).to(self._place)

    def dtype_and_shape(self, name: str) -> tuple[str, tuple[int, ...]]:
        """dtype and shape; of what lies on the disk, nothing is read for it."""
        if isinstance(self._arrays, Body):
            return self._arrays.dtype_and_shape(name)
        return self._arrays[name].dtype.name, self._arrays[name].shape

    def flat(self, name: str, start: int, stop: int) -> Tensor:
        """Numbers [start, stop) of the flattened array, without reading the rest where the arrays allow it."""
        if isinstance(self._arrays, Body):
            return _view(self._arrays.flat(name, start, stop)).to(self._place)
        return _copy(self._arrays[name].reshape(-1)[start:stop]).to(self._place)

    def __contains__(self, name: object) -> bool:
        return any(name == known for known in self._arrays)  # Mapping's own would read the array

    def __iter__(self) -> Iterator[str]:
        return iter(self._arrays)

    def __len__(self) -> int:
        return len(self._arrays)


def _copy(array: Array) -> Tensor:
    """A copy: wire arrays may be read-only views of others' bytes, and torch knows native byte order alone."""
    return torch.from_numpy(np.array(array, dtype=array.dtype.newbyteorder("="), order="C"))


def _view(array: Array) -> Tensor:
    """A zero-copy view where the memory can be written to, as of what has just been read; else a copy."""
    native = array.dtype.isnative and array.flags.writeable
    return torch.from_numpy(array) if native else _copy(array)


def _array(value: Tensor) -> Array:
    array: Array = value.detach().cpu().numpy()
    # not ascontiguousarray, which turns a scalar (num_batches_tracked) into an array of one
    return np.asarray(array, dtype=array.dtype.newbyteorder("<"), order="C")
