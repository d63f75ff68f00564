"""Tests that the memory of work is returned to the system when the work is over, and not before."""

import subprocess
import sys

import pytest

WORKS = """
import ctypes, resource, sys, threading
from pathlib import Path
from protofleet.runtime.allocator import keep_blocks_at_work, return_free_blocks

def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize() / 1e6

def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

def work(times):
    for _ in range(times):
        blocks = [bytearray(3_000_000) for _ in range(10)]

def show():
    work(2)
    before = faults()
    work(20)
    kept = resident()
    return_free_blocks()
    print(faults() - before, kept - resident())

if sys.argv[1] == "kept":
    keep_blocks_at_work()
thread = threading.Thread(target=show)
thread.start()
thread.join()
"""


@pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="other systems' allocators are left as they are"
)
def test_free_blocks_are_kept_during_work_and_returned_to_the_system_after_it():
    (kept_faults, given_back), (usual_faults, _) = (
        map(
            float,
            subprocess.run(
                [sys.executable, "-c", WORKS, how], capture_output=True, text=True, check=True, timeout=60
            ).stdout.split(),
        )
        for how in ("kept", "usual")
    )
    assert kept_faults < 1000 < usual_faults and given_back > 20


HOLDS_THE_END = """
import resource
from pathlib import Path
from protofleet.runtime.allocator import keep_blocks_at_work, return_all_free_blocks, return_free_blocks

def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize() / 1e6

keep_blocks_at_work()
blocks = [bytearray(3_000_000) for _ in range(10)]
stays = bytearray(100_000)  # It is made last, so its address is after the blocks.
del blocks
held = resident()
return_free_blocks()
then = resident()
return_all_free_blocks()
print(held - then, then - resident())
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="other allocators are left as they are")
def test_return_all_free_blocks_also_returns_blocks_before_a_used_block():
    told = subprocess.run(
        [sys.executable, "-c", HOLDS_THE_END], capture_output=True, text=True, check=True, timeout=60
    ).stdout
    at_the_end, all_others = map(float, told.split())
    assert at_the_end < 10 < 20 < all_others
