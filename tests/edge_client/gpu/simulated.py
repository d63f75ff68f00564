"""A GPU that counts as torch.cuda does, shared by processes or threads through a folder.

Segments are taken from the GPU and cut into blocks; a freed block's segment is kept until the cache is released; the
peak is of segments. A process that ends, in whatever way, gives all back. The first look at what is free takes the
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
    """As torch's allocator has them: small blocks share 2 MiB, middle ones 20 MiB."""
    if size <= MiB:
        return 2 * MiB
    return 20 * MiB if size < 10 * MiB else -(-size // (2 * MiB)) * 2 * MiB


@dataclass
class Segment:
    size: int
    small: bool
    used: int = 0


@dataclass
class SimulatedGpu:
    """One process's view."""

    folder: os.PathLike
    total: int = 1000 * MiB
    context: int = 100 * MiB
    name: str = "simulated"
    segments: list[Segment] = field(default_factory=list)

    def __post_init__(self):
        self._peak, self._has_context = 0, False
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

    def peak_bytes(self):
        return self._peak

    def reset_peak(self):
        self._peak = self.reserved_bytes()

    def release_cache(self):
        with self._locked():
            self._release()

    def allocate(self, size):
        """The segment of a new block."""
        size = -(-size // ROUNDED) * ROUNDED
        with self._locked():
            self._take_context()
            small = size <= MiB
            fitting = [s for s in self.segments if s.small == small and s.size - s.used >= size]
            segment = min(fitting, key=lambda s: s.size, default=None) or self._new_segment(size, small)
        segment.used += size
        return segment

    def free(self, segment, size):
        segment.used -= -(-size // ROUNDED) * ROUNDED

    @contextlib.contextmanager
    def block(self, size):
        segment = self.allocate(size)
        try:
            yield
        finally:
            self.free(segment, size)

    def end(self):
        """As when the process ends."""
        self._file.close()

    def _new_segment(self, size, small):
        wanted = segment_size(size)
        if wanted > self._free():
            self._release()
        if wanted > (free := self._free()):
            raise torch.OutOfMemoryError(
                f"CUDA out of memory. Tried to allocate {size} bytes, of which {free} are free."
            )
        self.segments.append(Segment(wanted, small))
        self._note()
        return self.segments[-1]

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
    """A process of devices: its allocator and its admission."""

    gpu: SimulatedGpu
    admission: Admission

    @classmethod
    def on(cls, folder, wait=None, **gpu):
        made = SimulatedGpu(folder, **gpu)
        return cls(made, Admission(made, Turns(folder / "turns" / made.name, made, wait)))
