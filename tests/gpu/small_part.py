"""A GPU that is filled except for a small part, so that devices have to wait for each other."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass

import torch

PLACE = torch.device("cuda")


@dataclass(frozen=True)
class Gpu:
    name: str
    total_bytes: int
    filled_bytes: int  # Bytes that this program, its context and earlier programs take.

    def used_bytes(self) -> int:
        """Return the used bytes beyond the filled ones."""
        free, total = torch.cuda.mem_get_info(PLACE)
        return max(0, total - free - self.filled_bytes)

    def __str__(self) -> str:
        left = (self.total_bytes - self.filled_bytes) / 1e6
        return f"{self.name}, {self.total_bytes / 1e6:,.0f} MB, of which {left:,.0f} MB are left to each run"


@contextlib.contextmanager
def small_part(leave_bytes: int) -> Iterator[Gpu]:
    free, total = torch.cuda.mem_get_info(PLACE)
    filling = torch.empty(max(0, free - leave_bytes), dtype=torch.uint8, device=PLACE)
    try:
        yield Gpu(torch.cuda.get_device_name(PLACE), total, total - torch.cuda.mem_get_info(PLACE)[0])
    finally:
        del filling
        torch.cuda.empty_cache()
