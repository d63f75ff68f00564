"""The admission of work to a shared GPU.

The first piece of work of each kind runs while no other process works, and its memory is measured. A later piece of
the same kind may start as soon as this amount of memory is free.
"""

from __future__ import annotations

import gc
import logging
import time
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import TypeVar

from protofleet.edge_client.gpu.accelerator import Accelerator, ran_out_of_memory
from protofleet.edge_client.gpu.turns import Turns

log = logging.getLogger("protofleet.device")

T = TypeVar("T")


class GpuFullError(RuntimeError):
    """An error for a piece of work that needs more than the free GPU memory, even if no other process works."""


@dataclass
class Usage:
    """The GPU usage of this process since its start."""

    wait_seconds: float = 0.0  # seconds of waiting for a turn
    out_of_memory: int = 0  # turns that ended because the memory ran out
    peak_bytes: int = 0  # largest number of bytes that a turn has used


@dataclass(frozen=True)
class Work:
    """A piece of work. Pieces of the same kind with data of the same size need the same memory."""

    name: str
    kind: Hashable
    data_bytes: int


@dataclass(frozen=True)
class Peak:
    size: int
    data_bytes: int

    def needs(self, work: Work) -> int:
        """Return an upper limit of the bytes that the work needs.

        The measurement was made with data of a certain size. If the data of the work are larger, the measured memory
        is multiplied by the ratio of the two sizes.
        """
        if work.data_bytes <= self.data_bytes:
            return self.size
        return self.size * work.data_bytes // max(1, self.data_bytes) + 1


@dataclass(frozen=True)
class _OutOfMemory:
    message: str


class Admission:
    """The admission of the work of one process to the GPU; the process has one work thread."""

    def __init__(self, gpu: Accelerator, turns: Turns) -> None:
        self.usage = Usage()
        self._gpu, self._turns = gpu, turns
        self._peaks: dict[Hashable, Peak] = {}

    def run(self, work: Work, do: Callable[[], T]) -> T:
        """Call `do` when enough memory is free, and return the result of `do`.

        If the memory runs out, `do` is called a second time, while no other process works. So `do` must have no
        effect when it raises.
        """
        peak = self._peaks.get(work.kind)
        needs = None if peak is None else peak.needs(work)
        result = self._in_turn(work, needs, do)
        if isinstance(result, _OutOfMemory) and needs is not None:
            log.warning(
                "%s ran out of the GPU's memory, although %s were expected to be enough; this work will be done "
                "again when no other device works: %s", work.name, megabytes(needs), result.message,
            )  # fmt: skip
            result = self._in_turn(work, None, do)
        if isinstance(result, _OutOfMemory):
            raise GpuFullError(self._explain(work, result))
        return result

    def _in_turn(self, work: Work, needs: int | None, do: Callable[[], T]) -> T | _OutOfMemory:
        asked = time.monotonic()
        with self._turns.turn(needs):
            self.usage.wait_seconds += time.monotonic() - asked
            try:
                return self._measured(work, do)
            finally:
                self._gpu.release_cache()

    def _measured(self, work: Work, do: Callable[[], T]) -> T | _OutOfMemory:
        self._gpu.reset_peak()
        reserved, allocated = self._gpu.reserved_bytes(), self._gpu.allocated_bytes()
        try:
            result = do()
        except RuntimeError as error:
            if not ran_out_of_memory(error):
                raise
            message = str(error).strip().partition("\n")[0][:300]
        else:
            # If work uses only free parts of reserved segments, the number of reserved bytes does not grow. But these
            # free parts may not exist in the next turn, so the allocated bytes count too.
            taken = self._gpu.peak_allocated_bytes() - allocated
            self._note_peak(work, max(taken, self._gpu.peak_reserved_bytes() - reserved))
            return result
        # The frames of the error and their tensors can be freed only here, after the `except` block.
        gc.collect()
        self.usage.out_of_memory += 1
        return _OutOfMemory(message)

    def _note_peak(self, work: Work, size: int) -> None:
        self.usage.peak_bytes = max(self.usage.peak_bytes, size)
        known = self._peaks.get(work.kind)
        if known is None:
            log.info(
                "%s takes %s of the GPU's memory; this decides how many devices work at the same time",
                work.name,
                megabytes(size),
            )
        if known is None or size > known.needs(work):
            self._peaks[work.kind] = Peak(size, work.data_bytes)

    def _explain(self, work: Work, result: _OutOfMemory) -> str:
        free, total = megabytes(self._gpu.free_bytes()), megabytes(self._gpu.total_bytes())
        return (
            f"{work.name} alone takes more than the {free} of the GPU's {total} that others leave free, and ran out "
            "of memory; let fewer processes share it (devices.processes), end other programs that use it, plan a "
            f'smaller batch or network, or set compute = "cpu": {result.message}'
        )


def megabytes(size: int) -> str:
    return f"{size / 1e6:,.0f} MB"
