"""A job of a device that shares a GPU with other devices in its process, and with other processes.

The job computes in turns. If its process has several devices, the job leaves nothing on the GPU between its turns.
Each turn then makes the half again from its last state, in the same way as after a reboot. So the results have the
same bits as those of a job that stays on the GPU.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from protofleet.edge_client.gpu.admission import Admission, GpuFullError, Work
from protofleet.edge_client.trainer.errors import TrainerDiedError
from protofleet.edge_client.trainer.job import SECONDS_WAITED, LocalJob, Metrics
from protofleet.protocol.wire.messages import Arrays
from protofleet.protocol.wire.reasons import DisconnectReason

T = TypeVar("T")


@dataclass(frozen=True)
class GpuWork:
    """The work of one device on the GPU for one plan. Each piece of work starts only after its admission."""

    admission: Admission
    plan: str  # name of the plan and of the network; devices with an equal `plan` share their memory measurements
    data_bytes: int

    def run(self, piece: str, do: Callable[[], T]) -> T:
        """Return the result of `do`.

        Raise TrainerDiedError if the GPU's memory is too small. Then the device asks for work again later.
        """
        try:
            return self.admission.run(Work(piece, (self.plan, piece), self.data_bytes), do)
        except GpuFullError as error:
            raise TrainerDiedError(DisconnectReason.OUT_OF_MEMORY, str(error)) from None


class GpuJob:
    def __init__(self, work: GpuWork, start: Callable[[], LocalJob], *, stays: bool) -> None:
        """Make a job for a shared GPU. `start` makes a job that is on the GPU and has no state yet.

        If `stays` is true, the job that `start` makes stays on the GPU between turns.
        """
        self._work, self._start, self._stays = work, start, stays
        self._job: LocalJob | None = None
        self._state: Arrays | None = None

    def run(self, phase: str, number: int, received: Arrays) -> tuple[Arrays, Metrics]:
        usage = self._work.admission.usage
        before = usage.wait_seconds
        payload, metrics = self._work.run(phase, lambda: self._turn(phase, number, received))
        return payload, {**metrics, SECONDS_WAITED: usage.wait_seconds - before}

    def state(self) -> Arrays:
        return self._state or {}

    def restore(self, state: Arrays) -> None:
        self._state, self._job = state, None

    def _turn(self, phase: str, number: int, received: Arrays) -> tuple[Arrays, Metrics]:
        job = self._job or self._started()
        self._job = None  # If this turn fails, no reference to the job keeps its GPU memory.
        result = job.run(phase, number, received)
        self._state = job.state()
        if self._stays:
            self._job = job
        return result

    def _started(self) -> LocalJob:
        job = self._start()
        if self._state is not None:
            job.restore(self._state)
        return job
