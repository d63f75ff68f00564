"""A simulated GPU that counts like torch.cuda's documentation; processes or threads share it through a folder.

Segments are reserved from the GPU, and cut into blocks, which are allocated. A freed block joins the free blocks
on both sides of it, and its segment stays reserved. Releasing the cache gives back only segments without an allocated
block; what stays is `inactive_split_bytes` of torch.cuda.memory_stats. So one small block that lives as long as the
process, such as cuBLAS's workspace, keeps a whole segment reserved, and later work takes its memory from there
without reserving more. A process that ends in any way gives all back. The first look at the free memory takes the
process's context.
"""

import contextlib
import fcntl
import os
from dataclasses import dataclass, field

import torch

from protofleet.edge_client.gpu.admission import Admission
from protofleet.edge_client.gpu.turns import Turns

MiB = 1 << 20
ROUNDED = 512


def segment_size(size):
    """Return the size of a new segment as torch's allocator has it: small blocks share 2 MiB, middle ones 20 MiB."""
    if size <= MiB:
        return 2 * MiB
    return 20 * MiB if size < 10 * MiB else -(-size // (2 * MiB)) * 2 * MiB


@dataclass(eq=False)
class Block:
    size: int
    segment: "Segment"
    used: bool = False


@dataclass(eq=False)
class Segment:
    """A segment of GPU memory with its blocks in the order of their addresses."""

    size: int
    small: bool
    blocks: list[Block] = field(default_factory=list)

    @property
    def used(self):
        return any(block.used for block in self.blocks)

    def take(self, block, size):
        """Give out the block, and make a new block of the rest if the rest is large enough."""
        left = block.size - size
        if left >= ROUNDED if self.small else left > MiB:
            block.size = size
            self.blocks.insert(self.blocks.index(block) + 1, Block(left, self))
        block.used = True

    def give_back(self, block):
        block.used = False
        joined = []
        for one in self.blocks:
            if joined and not (one.used or joined[-1].used):
                joined[-1].size += one.size
            else:
                joined.append(one)
        self.blocks = joined


@dataclass
class SimulatedGpu:
    """A simulated GPU as one process sees it."""

    folder: os.PathLike
    total: int = 1000 * MiB
    context: int = 100 * MiB
    name: str = "simulated"
    segments: list[Segment] = field(default_factory=list)

    def __post_init__(self):
        self._peak, self._peak_allocated, self._has_context = 0, 0, False
        number = len(list(self.folder.glob("*.taken")))
        self._file = (self.folder / f"{os.getpid()}-{number}.taken").open("w+")
        fcntl.flock(self._file, fcntl.LOCK_EX)

    def total_bytes(self):
        return self.total

    def free_bytes(self):
        with self._locked():
            self._take_context()
            return self._free()

    def reserved_bytes(self):
        return sum(segment.size for segment in self.segments)

    def allocated_bytes(self):
        return sum(block.size for segment in self.segments for block in segment.blocks if block.used)

    def peak_reserved_bytes(self):
        return self._peak

    def peak_allocated_bytes(self):
        return self._peak_allocated

    def reset_peak(self):
        self._peak, self._peak_allocated = self.reserved_bytes(), self.allocated_bytes()

    def release_cache(self):
        with self._locked():
            self._release()

    def allocate(self, size):
        """Take the smallest free block that `size` bytes fit into, or a block of a new segment."""
        size = -(-size // ROUNDED) * ROUNDED
        with self._locked():
            self._take_context()
            small = size <= MiB
            fitting = [
                block
                for segment in self.segments
                for block in segment.blocks
                if segment.small == small and not block.used and block.size >= size
            ]
            block = (
                min(fitting, key=lambda b: b.size, default=None) or self._new_segment(size, small).blocks[0]
            )
            block.segment.take(block, size)
        self._peak_allocated = max(self._peak_allocated, self.allocated_bytes())
        return block

    def free(self, block):
        block.segment.give_back(block)

    @contextlib.contextmanager
    def block(self, size):
        block = self.allocate(size)
        try:
            yield
        finally:
            self.free(block)

    def end(self):
        """Give back all memory, as when the process ends."""
        self._file.close()

    def _new_segment(self, size, small):
        wanted = segment_size(size)
        if wanted > self._free():
            self._release()
        if wanted > (free := self._free()):
            raise torch.OutOfMemoryError(
                f"CUDA out of memory. Tried to allocate {size} bytes, of which {free} are free."
            )
        segment = Segment(wanted, small)
        segment.blocks.append(Block(wanted, segment))
        self.segments.append(segment)
        self._note()
        return segment

    def _release(self):
        self.segments = [segment for segment in self.segments if segment.used]
        self._note()

    def _take_context(self):
        if not self._has_context:
            if self.context > self._free():
                raise RuntimeError("CUDA error: out of memory")
            self._has_context = True
            self._note()

    def _note(self):
        self._peak = max(self._peak, self.reserved_bytes())
        self._file.seek(0)
        self._file.truncate()
        self._file.write(str(self.reserved_bytes() + self.context * self._has_context))
        self._file.flush()

    def _free(self):
        return self.total - sum(int(path.read_text() or 0) for path in self._living())

    def _living(self):
        for path in self.folder.glob("*.taken"):
            with path.open() as file:
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    yield path

    @contextlib.contextmanager
    def _locked(self):
        with (self.folder / "allocating").open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield


@dataclass
class GpuProcess:
    """A process of devices with its allocator and its admission."""

    gpu: SimulatedGpu
    admission: Admission

    @classmethod
    def on(cls, folder, wait=None, **gpu):
        made = SimulatedGpu(folder, **gpu)
        return cls(made, Admission(made, Turns(folder / "turns" / made.name, made, wait)))
