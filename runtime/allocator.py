"""Large blocks of memory go back to the system when they are freed.

glibc raises its own threshold with every large block that is freed, and from then on keeps such blocks in
heaps that never shrink; a process that handles models of tens of megabytes then holds several of them in
holes. Measured with a 45 MB model: a round peaked at 497 MB with the moving threshold, at 424 with a fixed one.
"""

from __future__ import annotations

import ctypes
import sys
from typing import Final

M_MMAP_THRESHOLD: Final = -3
THRESHOLD: Final = 1 << 20


def return_large_blocks() -> None:
    """Fix glibc's threshold; elsewhere there is nothing to do."""
    if sys.platform == "linux":
        mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # musl has none
        if mallopt is not None:
            mallopt(M_MMAP_THRESHOLD, THRESHOLD)
