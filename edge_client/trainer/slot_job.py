"""A job of a device that takes turns with the other devices of its machine."""

from __future__ import annotations

from protofleet.edge_client.trainer.job import SECONDS_WAITED, Job, Metrics
from protofleet.edge_client.trainer.slots import Slots
from protofleet.protocol.wire.messages import Arrays
from protofleet.runtime.allocator import return_all_free_blocks


class SlotJob:
    def __init__(self, job: Job, slots: Slots) -> None:
        self._job, self._slots = job, slots

    def run(self, phase: str, number: int, received: Arrays) -> tuple[Arrays, Metrics]:
        with self._slots.taken() as waited:
            payload, metrics = self._job.run(phase, number, received)
            return_all_free_blocks()  # This device's memory must be free before another device takes the slot.
        return payload, {**metrics, SECONDS_WAITED: waited}

    def state(self) -> Arrays:
        return self._job.state()

    def restore(self, state: Arrays) -> None:
        self._job.restore(state)
