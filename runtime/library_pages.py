"""Give back memory pages that were needed only while libraries were loaded.

The loader and static constructors read most of a large library once. After torch is loaded, these pages count as
50 MB of the process's memory, even if the process never computes. The pages are unchanged parts of the library's
file. If a process needs such a page again, the kernel reads the page from the file.
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
# The first line of the entry for a mapped file in /proc/self/smaps.
MAPPING: Final = re.compile(r"^([0-9a-f]+)-([0-9a-f]+) (\S+) \S+ \S+ [1-9]\d* +/", re.MULTILINE)


def release_library_pages() -> None:
    """Release the pages if the kernel lists them; do nothing on other systems."""
    with contextlib.suppress(OSError, AttributeError):
        madvise = ctypes.CDLL(None).madvise
        for begin, end in unmodified_mappings(SMAPS.read_text()):
            madvise(ctypes.c_void_p(begin), ctypes.c_size_t(end - begin), mmap.MADV_DONTNEED)


def unmodified_mappings(smaps: str) -> Iterator[tuple[int, int]]:
    """Yield the private mappings of files whose memory still has the same bytes as the file.

    The loader has changed addresses in the other mappings. If their pages were released, these changes would be lost.
    """
    for text in re.split(r"^(?=[0-9a-f]+-[0-9a-f]+ )", smaps, flags=re.MULTILINE):
        found = MAPPING.match(text)
        if found is None or found[3] not in ("r--p", "r-xp"):
            continue
        if _bytes(text, "Anonymous") == 0 and _bytes(text, "Rss") >= WORTH_IT:
            yield int(found[1], 16), int(found[2], 16)


def _bytes(text: str, field: str) -> int:
    """Return the bytes in a field of smaps; if the field is missing, return a number larger than any memory."""
    found = re.search(rf"^{field}: +(\d+) kB$", text, re.MULTILINE)
    return 1024 * int(found[1]) if found else 1 << 62
