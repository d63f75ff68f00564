"""Tests that pages that a process has read from a file are freed, and that changed pages stay."""

import ctypes
import mmap
import re
from pathlib import Path

import pytest

from protofleet.runtime.library_pages import SMAPS, release_library_pages

pytestmark = pytest.mark.skipif(not SMAPS.exists(), reason="only Linux tells of a process's pages")
SIZE = 4 << 20


@pytest.fixture
def library(tmp_path):
    path = tmp_path / "library.so"
    path.write_bytes(bytes(range(256)) * (SIZE // 256))
    return path


def mapped(path: Path, protection: int) -> mmap.mmap:
    with path.open("rb") as file:
        return mmap.mmap(file.fileno(), SIZE, flags=mmap.MAP_PRIVATE, prot=protection)


def resident(path: Path) -> int:
    text = re.search(rf"^\S+ .* {path}$(.*?)^VmFlags", SMAPS.read_text(), re.MULTILINE | re.DOTALL)
    return 1024 * int(re.search(r"^Rss: +(\d+)", text[1], re.MULTILINE)[1])


def test_pages_that_were_only_read_are_freed_and_read_again_on_use(library):
    with mapped(library, mmap.PROT_READ) as mapping:
        assert mapping[:] == library.read_bytes() and resident(library) == SIZE
        release_library_pages()
        assert resident(library) == 0
        assert mapping[:] == library.read_bytes()


def test_pages_that_were_changed_before_their_protection_stay_changed(library):
    """The loader does this with the address tables of a library."""
    mapping = mapped(library, mmap.PROT_READ | mmap.PROT_WRITE)
    assert mapping[:] == library.read_bytes()
    mapping[5000:5003] = b"new"
    address = ctypes.addressof(ctypes.c_char.from_buffer(mapping))
    assert ctypes.CDLL(None).mprotect(ctypes.c_void_p(address), ctypes.c_size_t(SIZE), mmap.PROT_READ) == 0
    release_library_pages()
    assert mapping[4999:5004] == b"\x87new\x8b"
