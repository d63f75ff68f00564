"""The questions that admission asks of a GPU, and torch.cuda's answers."""

from __future__ import annotations

import re
from typing import Final, Protocol

import torch

NO_MEMORY: Final = ("out of memory", "alloc_failed")  # words of CUDA, cuBLAS and cuDNN


class Accelerator(Protocol):
    """A GPU and this process's allocator on it."""

    @property
    def name(self) -> str:
        """Return a name that is equal in all processes that use this GPU, and different for other GPUs.

        It can be used as a file name.
        """
        ...

    def total_bytes(self) -> int: ...

    def free_bytes(self) -> int:
        """Return the bytes that no process of any program has taken.

        The first call may take the memory of this process's context: some hundred megabytes, which the
        process keeps.
        """
        ...

    def reserved_bytes(self) -> int:
        """Return the bytes that this process has for tensors: those in use, and those kept for later."""
        ...

    def allocated_bytes(self) -> int:
        """Return the bytes that this process's tensors use, out of the reserved bytes."""
        ...

    def peak_reserved_bytes(self) -> int:
        """Return the largest number of bytes that was reserved since `reset_peak`."""
        ...

    def peak_allocated_bytes(self) -> int:
        """Return the largest number of bytes that tensors used since `reset_peak`."""
        ...

    def reset_peak(self) -> None: ...

    def release_cache(self) -> None:
        """Give back to the GPU the segments that no tensor uses in any part."""
        ...


class Cuda:
    """The counters of torch's caching allocator.

    It reserves segments of 2 MiB, 20 MiB or more from the GPU and cuts them into blocks. It keeps a freed
    block for later tensors. `empty_cache` gives back only segments that are completely free. The free parts
    of the other segments are `inactive_split_bytes` in torch.cuda.memory_stats. cuBLAS's workspace is such a
    block, and it exists as long as the process. So work may find its memory in segments that are already
    reserved, and then nothing more is reserved for it.
    """

    def __init__(self, place: torch.device) -> None:
        self._place = place
        # Before this call the allocator has no figures.
        self._properties = torch.cuda.get_device_properties(place)

    @property
    def name(self) -> str:
        known = getattr(self._properties, "uuid", "") or f"{self._properties.name} {self._place.index or 0}"
        return re.sub(r"[^\w-]", "_", str(known))

    def total_bytes(self) -> int:
        return int(self._properties.total_memory)

    def free_bytes(self) -> int:
        try:
            return int(torch.cuda.mem_get_info(self._place)[0])
        except RuntimeError as error:
            if not ran_out_of_memory(error):
                raise
            return 0  # there is no memory even for this process's context

    def reserved_bytes(self) -> int:
        return int(torch.cuda.memory_reserved(self._place))

    def allocated_bytes(self) -> int:
        return int(torch.cuda.memory_allocated(self._place))

    def peak_reserved_bytes(self) -> int:
        return int(torch.cuda.max_memory_reserved(self._place))

    def peak_allocated_bytes(self) -> int:
        return int(torch.cuda.max_memory_allocated(self._place))

    def reset_peak(self) -> None:
        torch.cuda.reset_peak_memory_stats(self._place)

    def release_cache(self) -> None:
        torch.cuda.empty_cache()


def ran_out_of_memory(error: Exception) -> bool:
    """Return whether the GPU's memory ran out; errors of the machine's own memory have other words."""
    return isinstance(error, RuntimeError) and any(text in str(error).lower() for text in NO_MEMORY)
