"""Give back memory pages that only the start of libraries has read.

The loader and static constructors read most of a large library once. With torch, 50 MB then count as memory
of a process that never computes. The pages come from the file, so a process that needs one again reads it
from there.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

SMAPS: Final = Path("/proc/self/smaps")
WORTH_IT: Final = 1 << 20
# A mapping of a file.
MAPPING: Final = re.compile(r"^([0-9a-f]+)-([0-9a-f]+) (\S+) \S+ \S+ [1-9]\d* +/", re.MULTILINE)


def release_library_pages() -> None:
    """Release the pages if the kernel lists them; on other systems there is nothing to do."""
    with contextlib.suppress(OSError, AttributeError):
        madvise = ctypes.CDLL(None).madvise
        for begin, end in unmodified_mappings(SMAPS.read_text()):
            madvise(ctypes.c_void_p(begin), ctypes.c_size_t(end - begin), mmap.MADV_DONTNEED)


def unmodified_mappings(smaps: str) -> Iterator[tuple[int, int]]:
    """Yield private mappings of a file that hold only the file's bytes.

    In other mappings, data that was relocated would be lost.
    """
    for text in re.split(r"^(?=[0-9a-f]+-[0-9a-f]+ )", smaps, flags=re.MULTILINE):
        found = MAPPING.match(text)
        if found is None or found[3] not in ("r--p", "r-xp"):
            continue
        if _bytes(text, "Anonymous") == 0 and _bytes(text, "Rss") >= WORTH_IT:
            yield int(found[1], 16), int(found[2], 16)


def _bytes(text: str, field: str) -> int:
    """Return a number of bytes, or more than any memory if the kernel does not say it."""
    found = re.search(rf"^{field}: +(\d+) kB$", text, re.MULTILINE)
    return 1024 * int(found[1]) if found else 1 << 62
