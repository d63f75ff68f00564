"""Give large blocks of memory back to the system when they are freed.

When a large block is freed, glibc raises the size from which it takes blocks directly from the system. Later
blocks of this size then stay in heaps that do not shrink. So a process that handles models of tens of
megabytes keeps the memory of several models. With a 45 MB model, the peak in a round was 497 MB with glibc's
changing threshold, and 424 MB with a fixed threshold.

A fixed threshold is right for a process that moves models from the network to the disk. A process that trains
needs large blocks again for every batch, and the system has to fill each block with zeros first. With a fixed
threshold, a round with cnn23 and 360 samples took 0.21 s of CPU time. The round takes 0.13 s if the process keeps
the blocks during the work and gives them back after the work.
"""

from __future__ import annotations

import ctypes
import sys
from typing import Final

M_TRIM_THRESHOLD: Final = -1
M_MMAP_THRESHOLD: Final = -3
M_ARENA_MAX: Final = -8
THRESHOLD: Final = 1 << 20
# Threshold in bytes. The blocks of a batch are below the threshold, and the blocks of most models are above it.
TRAINING_THRESHOLD: Final = 16 << 20
KEPT: Final = 64 << 20  # Free bytes that a process keeps while it works.
# Smallest number of free bytes that is given back. The search for free blocks takes half a millisecond.
WORTH_IT: Final = 4 << 20


class MallInfo(ctypes.Structure):
    """The struct mallinfo2 of glibc."""

    _fields_ = tuple(
        (name, ctypes.c_size_t)
        for name in ("arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks",
                     "keepcost")
    )  # fmt: skip


def return_large_blocks() -> None:
    """Set a fixed threshold, from which blocks are large; do nothing if the C library is not glibc."""
    _set({M_MMAP_THRESHOLD: THRESHOLD})


def keep_blocks_at_work() -> None:
    """Keep freed blocks during the work of a process that trains.

    Call this before the process has a second thread. Call `return_free_blocks` after each piece of work.
    """
    # All threads use one heap, because glibc gives back free memory only at the end of the main heap.
    _set({M_MMAP_THRESHOLD: TRAINING_THRESHOLD, M_TRIM_THRESHOLD: KEPT, M_ARENA_MAX: 1})


def return_free_blocks() -> None:
    """Give free memory back to the system if there is a large free piece at the end of the heap."""
    info = getattr(_libc(), "mallinfo2", None)
    if info is not None:
        info.restype = MallInfo
        if info().keepcost < WORTH_IT:
            return
    return_all_free_blocks()


def return_all_free_blocks() -> None:
    """Give all free memory back to the system.

    Call this only before a pause. If work followed at once, the process would need the memory again.
    """
    trim = getattr(_libc(), "malloc_trim", None)
    if trim is not None:
        trim(0)


def _set(values: dict[int, int]) -> None:
    mallopt = getattr(_libc(), "mallopt", None)  # The C library musl has no mallopt.
    if mallopt is not None:
        for name, value in values.items():
            mallopt(name, value)


def _libc() -> ctypes.CDLL | None:
    return ctypes.CDLL(None) if sys.platform == "linux" else None
