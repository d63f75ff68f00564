"""Large blocks of memory go back to the system when they are freed.

glibc raises its own threshold with every large block that is freed, and from then on keeps such blocks in
heaps that never shrink; a process that handles models of tens of megabytes then holds several of them in
holes. Measured with a 45 MB model: a round peaked at 497 MB with the moving threshold, at 424 with a fixed one.

That is right for who moves models from the network to the disk. Who trains makes and frees the same large blocks for
every batch, and each that comes from the system has to be cleared there first: with cnn23 and 360 samples a round
took 0.21 s of CPU so, and takes 0.13 s with blocks that are kept at work and given back after it.
"""

from __future__ import annotations

import ctypes
import sys
from typing import Final

M_TRIM_THRESHOLD: Final = -1
M_MMAP_THRESHOLD: Final = -3
M_ARENA_MAX: Final = -8
THRESHOLD: Final = 1 << 20
TRAINING_THRESHOLD: Final = 16 << 20  # a batch has smaller blocks, most models larger ones
KEPT: Final = 64 << 20  # while there is work
WORTH_IT: Final = 4 << 20  # looking for what can be given back takes half a millisecond


class MallInfo(ctypes.Structure):
    """glibc's struct mallinfo2."""

    _fields_ = tuple(
        (name, ctypes.c_size_t)
        for name in ("arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks",
                     "keepcost")
    )  # fmt: skip


def return_large_blocks() -> None:
    """Fix glibc's threshold; elsewhere there is nothing to do."""
    _set({M_MMAP_THRESHOLD: THRESHOLD})


def keep_blocks_at_work() -> None:
    """For a process that trains, before it has a second thread; `return_free_blocks` ends a piece of work."""
    # One heap for all threads, as glibc gives back the end of no other.
    _set({M_MMAP_THRESHOLD: TRAINING_THRESHOLD, M_TRIM_THRESHOLD: KEPT, M_ARENA_MAX: 1})


def return_free_blocks() -> None:
    """To the system, if much of it lies in one piece at the heap's end."""
    info = getattr(_libc(), "mallinfo2", None)
    if info is not None:
        info.restype = MallInfo
        if info().keepcost < WORTH_IT:
            return
    return_all_free_blocks()


def return_all_free_blocks() -> None:
    """To the system, wherever they lie. For who does not work again at once: it has to ask for them anew."""
    trim = getattr(_libc(), "malloc_trim", None)
    if trim is not None:
        trim(0)


def _set(values: dict[int, int]) -> None:
    mallopt = getattr(_libc(), "mallopt", None)  # musl has none
    if mallopt is not None:
        for name, value in values.items():
            mallopt(name, value)


def _libc() -> ctypes.CDLL | None:
    return ctypes.CDLL(None) if sys.platform == "linux" else None
