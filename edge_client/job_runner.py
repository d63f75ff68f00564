"""What is done on the worker's thread: from a plan to a job, from a question to a durable answer."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

from protofleet.edge_client.evaluate import Splits
from protofleet.edge_client.state.device import DeviceState
from protofleet.edge_client.state.file import Answer
from protofleet.edge_client.trainer.job import Job, StartJob
from protofleet.methods.contract.plan import Plan
from protofleet.protocol.link.base import Received
from protofleet.protocol.wire.messages import NOTHING, Task
from protofleet.protocol.wire.names import COORDINATOR

log = logging.getLogger("protofleet.device")


@dataclass
class JobRunner:
    """All of it is the worker's while it works."""

    start_job: StartJob
    state: DeviceState
    data: Splits
    block: Callable[[], int]  # bytes of a block of what is said to the coordinator now
    clock: Callable[[], float]

    def begin(self, plan: Plan, run: str, epoch: int) -> Job:
        """The job that a plan asks for, as far as it had come before this process began."""
        state = self.state
        state.begin(run, plan.digest.hex(), epoch)
        job = self.start_job(plan)
        if (saved := state.half()) is not None:
            job.restore(saved)
        lost = state.saved.lost  # its round may be over, and nobody would ask for it
        if lost and (not lost.base or state.store.has(bytes.fromhex(lost.base))):
            self._answer_again(job, lost, run)
        return job

    def answer(self, job: Job, received: Received, question: str) -> Answer:
        task, state, begun = received.message, self.state, self.clock()
        assert isinstance(task, Task)
        arrays = state.store.open(received.object) if received.object else NOTHING
        payload, metrics = job.run(task.phase, task.round, arrays)
        name = state.store.put(payload, self.block()).object.hex()
        metrics["seconds.work"] = self.clock() - begun
        examples = len(self.data.train.y)
        answer = Answer(question, task.round, task.phase, received.object.hex(), name, examples, metrics)
        state.remember(answer, job.state(), received.epoch)
        return answer

    def _answer_again(self, job: Job, lost: Answer, run: str) -> None:
        task = Task(lost.round, lost.phase, None, 0.0)
        received = Received(COORDINATOR, task, run, self.state.saved.epoch, bytes.fromhex(lost.base))
        again = self.answer(job, received, lost.question)
        if again.object != lost.object:
            log.error("round %d %s, worked out again, is another answer than before", lost.round, lost.phase)
