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

    def peak_bytes(self) -> int:
        """The most that was reserved since `reset_peak`."""
        ...

    def reset_peak(self) -> None: ...

    def release_cache(self) -> None:
        """Give back to the GPU what no tensor uses."""
        ...


class Cuda:
    """By torch's own allocator, of which an allocation is rounded up and a freed block is kept."""

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

    def peak_bytes(self) -> int:
        return int(torch.cuda.max_memory_reserved(self._place))

    def reset_peak(self) -> None:
        torch.cuda.reset_peak_memory_stats(self._place)

    def release_cache(self) -> None:
        torch.cuda.empty_cache()


def ran_out_of_memory(error: Exception) -> bool:
    """Of the GPU's memory. What the machine's own lacks is said in other words."""
    return isinstance(error, RuntimeError) and any(text in str(error).lower() for text in NO_MEMORY)
