"""The interface of a GPU for the admission of work, and the implementation of this interface with torch.cuda."""

from __future__ import annotations

import re
from typing import Final, Protocol

import torch

NO_MEMORY: Final = ("out of memory", "alloc_failed")  # parts of the error messages of CUDA, cuBLAS and cuDNN


class Accelerator(Protocol):
    """A GPU, and the allocator of GPU memory in this process."""

    @property
    def name(self) -> str:
        """Return a name that is equal in all processes that use this GPU, and different for other GPUs.

        The name can be used as a file name.
        """
        ...

    def total_bytes(self) -> int: ...

    def free_bytes(self) -> int:
        """Return the bytes of GPU memory that no process has taken.

        The first call may create the context of this process, which takes some hundred megabytes until the
        process ends.
        """
        ...

    def reserved_bytes(self) -> int:
        """Return the bytes of GPU memory that this process has reserved for tensors, including unused bytes."""
        ...

    def allocated_bytes(self) -> int:
        """Return the number of reserved bytes that tensors use now."""
        ...

    def peak_reserved_bytes(self) -> int:
        """Return the largest value of `reserved_bytes` since `reset_peak`."""
        ...

    def peak_allocated_bytes(self) -> int:
        """Return the largest value of `allocated_bytes` since `reset_peak`."""
        ...

    def reset_peak(self) -> None: ...

    def release_cache(self) -> None:
        """Give the reserved segments that contain no tensor back to the GPU."""
        ...


class Cuda:
    """A GPU that torch uses through CUDA, with the counters of torch's caching allocator.

    The allocator reserves segments of 2 MiB, 20 MiB or more from the GPU and divides them into blocks. It keeps a
    freed block for later tensors. `empty_cache` gives back only segments that are completely free. In
    torch.cuda.memory_stats, the free parts of the other segments are `inactive_split_bytes`. A segment with
    cuBLAS's workspace is never completely free, because the workspace exists as long as the process.

    So a piece of work may use free parts of reserved segments. Then the number of reserved bytes does not grow.
    """

    def __init__(self, place: torch.device) -> None:
        self._place = place
        # The allocator's counters can be read only after this call.
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
            return 0  # The free memory is too small even for the context that CUDA creates for this process.

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
    """Return whether the error means that the GPU's memory ran out, and not the machine's own memory."""
    return isinstance(error, RuntimeError) and any(text in str(error).lower() for text in NO_MEMORY)
