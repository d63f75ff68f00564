"""What admission asks of a GPU, and what torch.cuda says to that."""

from __future__ import annotations

import re
from typing import Final, Protocol

import torch

NO_MEMORY: Final = ("out of memory", "alloc_failed")  # as CUDA says it, and cuBLAS and cuDNN


class Accelerator(Protocol):
    """A GPU and this process's allocator on it."""

    @property
    def name(self) -> str:
        """Equal in all processes that use this GPU, and of no other; a file may be called so."""
        ...

    def total_bytes(self) -> int: ...

    def free_bytes(self) -> int:
        """That no process has, of whatever program.

        The first call may take the memory of this process's context: some hundred megabytes, which it keeps.
        """
        ...

    def reserved_bytes(self) -> int:
        """That this process has for tensors: those that it uses, and those that its allocator keeps for later."""
        ...

    def allocated_bytes(self) -> int:
        """Return what tensors of this process use, of what is reserved."""
        ...

    def peak_reserved_bytes(self) -> int:
        """Return the most that was reserved since `reset_peak`."""
        ...

    def peak_allocated_bytes(self) -> int:
        """Return the most that tensors used since `reset_peak`."""
        ...

    def reset_peak(self) -> None: ...

    def release_cache(self) -> None:
        """Give back to the GPU the segments of which no tensor uses any part."""
        ...


class Cuda:
    """The counters of torch's caching allocator.

    It reserves segments of 2 MiB, 20 MiB or more from the GPU and cuts them into blocks. A freed block is kept for
    later tensors, and `empty_cache` gives back only segments that are free as a whole: what is left of the others is
    `inactive_split_bytes` in torch.cuda.memory_stats. cuBLAS's workspace is such a block, and lives as long as the
    process. So work may find its memory in what is reserved already, and then nothing more is reserved for it.
    """

    def __init__(self, place: torch.device) -> None:
        self._place = place
        self._properties = torch.cuda.get_device_properties(place)  # the allocator has no figures before

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
            return 0  # not even this process's context has room

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
    """Of the GPU's memory. What the machine's own lacks is said in other words."""
    return isinstance(error, RuntimeError) and any(text in str(error).lower() for text in NO_MEMORY)
