"""Give large blocks of memory back to the system when they are freed.

glibc raises its threshold with every large block that is freed. From then on it keeps such blocks in heaps
that never shrink, so a process that handles models of tens of megabytes keeps several of them in holes.
Measured with a 45 MB model: a round peaked at 497 MB with the moving threshold, and at 424 MB with a fixed
one.

This is right for a process that moves models from the network to the disk. A process that trains allocates
and frees the same large blocks for every batch, and each block that comes from the system has to be cleared
first. With cnn23 and 360 samples a round took 0.21 s of CPU in this way. It takes 0.13 s if the blocks are
kept during the work and given back after it.
"""

from __future__ import annotations

import ctypes
import sys
from typing import Final

M_TRIM_THRESHOLD: Final = -1
M_MMAP_THRESHOLD: Final = -3
M_ARENA_MAX: Final = -8
THRESHOLD: Final = 1 << 20
TRAINING_THRESHOLD: Final = 16 << 20  # bytes; a batch has smaller blocks, most models have larger ones
KEPT: Final = 64 << 20  # bytes that are kept while there is work
WORTH_IT: Final = 4 << 20  # bytes; the search for free blocks takes half a millisecond


class MallInfo(ctypes.Structure):
    """The struct mallinfo2 of glibc."""

    _fields_ = tuple(
        (name, ctypes.c_size_t)
        for name in ("arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks",
                     "keepcost")
    )  # fmt: skip


def return_large_blocks() -> None:
    """Fix glibc's threshold; with other C libraries there is nothing to do."""
    _set({M_MMAP_THRESHOLD: THRESHOLD})


def keep_blocks_at_work() -> None:
    """Keep freed blocks while there is work, in a process that trains.

    Call this before the process has a second thread; `return_free_blocks` ends a piece of work.
    """
    # One heap serves all threads, because glibc gives back the end of no other heap.
    _set({M_MMAP_THRESHOLD: TRAINING_THRESHOLD, M_TRIM_THRESHOLD: KEPT, M_ARENA_MAX: 1})


def return_free_blocks() -> None:
    """Give free memory back to the system if a large piece of it is at the end of the heap."""
    info = getattr(_libc(), "mallinfo2", None)
    if info is not None:
        info.restype = MallInfo
        if info().keepcost < WORTH_IT:
            return
    return_all_free_blocks()


def return_all_free_blocks() -> None:
    """Give all free memory back to the system.

    This is for a process that does not work again at once, because it would have to ask for the memory again.
    """
    trim = getattr(_libc(), "malloc_trim", None)
    if trim is not None:
        trim(0)


def _set(values: dict[int, int]) -> None:
    mallopt = getattr(_libc(), "mallopt", None)  # musl has no mallopt
    if mallopt is not None:
        for name, value in values.items():
            mallopt(name, value)


def _libc() -> ctypes.CDLL | None:
    return ctypes.CDLL(None) if sys.platform == "linux" else None
