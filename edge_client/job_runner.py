"""The work on the worker's thread: start the job of a plan, and compute and store the update for a task."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np
from torch import Tensor

from protofleet.edge_client.coded_answer import code_answer
from protofleet.edge_client.evaluate import Splits
from protofleet.edge_client.host.answer_energy import AnswerEnergy
from protofleet.edge_client.job_memory import JobMemory, RestorableJob
from protofleet.edge_client.masked_sums import MaskedSums, SummedAnswer, SummedTask, harmless
from protofleet.edge_client.privacy import PrivacySettings
from protofleet.edge_client.private_updates import PrivateUpdates, demand_budget, without_personal
from protofleet.edge_client.state.device import DeviceState
from protofleet.edge_client.state.file import Answer
from protofleet.edge_client.trainer.job import MODELS_UNWRITTEN, SECONDS_WAITED, Job, StartJob
from protofleet.edge_client.work_queue import Question
from protofleet.methods.contract.bridge import to_numpy
from protofleet.methods.contract.plan import Plan
from protofleet.methods.parts.weights import first_weights
from protofleet.methods.plugins.allowed import PlugIns
from protofleet.protocol.wire.messages import NOTHING, Arrays
from protofleet.protocol.wire.names import EVALUATE

log = logging.getLogger("protofleet.device")


@dataclass
class JobRunner:
    """The runner of jobs; while the worker's thread works, no other thread may use the runner."""

    start_job: StartJob
    state: DeviceState
    data: Splits
    block_bytes: Callable[[], int]  # function that returns the present size in bytes of the link's blocks
    clock: Callable[[], float]
    # Function that returns whether the coordinator accepts counts of confused classes and this device sends them.
    tells_confusion: Callable[[], bool] = lambda: False
    energy: AnswerEnergy = field(default_factory=lambda: AnswerEnergy(None))
    temperature: Callable[[], Mapping[str, float]] = dict  # function that returns the temperature as a metric
    plugins: PlugIns = field(default_factory=PlugIns)  # the plug-ins that a plan may name
    privacy: PrivacySettings = field(default_factory=PrivacySettings)  # what the device demands of a plan
    models_unwritten: int = 0  # number of model versions that this process could not write
    device: str = ""  # name of this device
    # None if the device has no enrolment, so that it cannot check other devices
    sums: MaskedSums | None = None
    memory: JobMemory | None = None  # the place for the job, if jobs of several runs share it
    _plan: Plan | None = None  # plan of the job
    _private: PrivateUpdates | None = None  # None if the updates of the run have no noise

    def begin(self, plan: Plan, run: str, epoch: int) -> Job:
        """Start the job of a plan from the last state on the disk."""
        # The device may give the place of the run to another run while the worker is busy with this one.
        state = self.state.of(run)
        state.begin(run, plan.digest.hex(), epoch)
        self.energy.join_run()
        job, self._plan = self._started(plan, state), plan
        self._private = PrivateUpdates(plan, self._held(plan).tolist()) if plan.dp is not None else None
        if plan.coding and "weights" in plan.coding.down and not state.saved.broadcast:
            # The first broadcast may be coded against the first weights.
            state.store.put(to_numpy(first_weights(plan)))
        if (saved := state.half()) is not None:
            job.restore(saved)
        # A lost update is computed again now. The coordinator does not send the task again if the round is over.
        lost = state.saved.lost
        if lost and (not lost.base or state.store.has(bytes.fromhex(lost.base))):
            self._answer_again(job, lost, run)
        return job

    def _started(self, plan: Plan, state: DeviceState) -> Job:
        if self.memory is None:
            return self.start_job(plan)
        return RestorableJob(self.memory, lambda: self.start_job(plan), state.half)

    def answer(self, job: Job, question: Question, run: str) -> Answer:
        """Work on a task of a run, and save the update and the state of this run."""
        state, begun = self.state.of(run), self.clock()
        self.energy.begin_work()
        arrays = state.store.load(question.broadcast) if question.broadcast else NOTHING
        # Training may go on after any evaluation, because an operator may change the number of rounds.
        before = copied(job.state()) if question.phase == EVALUATE else None
        private = self._private if question.phase != EVALUATE else None
        if private is not None and "." not in question.phase:  # A step of a masked sum is no new release.
            demand_budget(private.dp, run, state.releases)
        payload, metrics, summed = self._work(job, question, state, run, arrays)
        if before is not None:
            job.restore(before)
        self.models_unwritten += int(metrics.pop(MODELS_UNWRITTEN, 0))
        if question.phase == EVALUATE and (self._hides_confusion or not self.tells_confusion()):
            payload = NOTHING
        if self._hides_metrics:
            payload, metrics = NOTHING if question.phase == EVALUATE else payload, harmless(metrics)
        release = None
        if private is not None and summed is not None and (noise := summed.noise):
            release = private.release(noise, run, question.round, question.phase, payload, state.releases)
        elif private is not None and summed is None:
            found = private.update(
                run, question.round, question.phase, payload, arrays, len(self.data.train.y), state.releases
            )
            payload, release = found.arrays, found.release
        if self._private is not None:
            metrics = without_personal(metrics)
        coded = code_answer(self._plan, self.device, state, question, payload, arrays)
        name = state.store.put(coded.arrays, self.block_bytes()).object.hex()
        passed, waited = self.clock() - begun, metrics.pop(SECONDS_WAITED, 0.0)
        metrics |= self.energy.end_work(waited / passed if passed else 0.0)
        metrics |= self.temperature()
        metrics["seconds.work"] = passed - waited
        answer = Answer(
            question.name, question.round, question.phase, question.broadcast.hex(), name,
            len(self.data.train.y), metrics, *(question.took or ()),
        )  # fmt: skip
        is_reference = bool(self._plan and self._plan.coding and self._plan.coding.down and answer.base)
        masked = summed.masked if summed else None
        state.save_answer(answer, job.state(), question.epoch, coded.residuals, is_reference, masked, release)
        return answer

    def _work(
        self, job: Job, question: Question, state: DeviceState, run: str, arrays: Arrays
    ) -> tuple[Arrays, dict[str, float], SummedAnswer | None]:
        """Let the half work, or answer a step of a masked sum; return the arrays, the metrics and the answer.

        In a run of masked sums, the half works alone only in an evaluation. A coordinator that asks for any other
        phase would otherwise get the update as it is.
        """
        plan = self._plan
        if plan is None or plan.secagg is None or question.phase == EVALUATE:
            return *job.run(question.phase, question.round, arrays), None
        assert self.sums is not None, "a plan with [secagg] is taken only if the device can take part"
        held = self._held(plan).numpy()
        found = self.sums.answer(job, SummedTask(question, plan, state, run, held, arrays))
        return found.arrays, found.metrics, found

    @property
    def _hides_metrics(self) -> bool:
        secagg = self._plan.secagg if self._plan else None
        return secagg is not None and secagg.metrics == "off"

    @property
    def _hides_confusion(self) -> bool:
        """Return whether the confused classes would be those of a model that this device has trained."""
        return self._private is not None and self._private.plan.variant.reports == "personal"

    def _held(self, plan: Plan) -> Tensor:
        """Return the number of samples of each class."""
        return self.data.train.y.bincount(minlength=plan.classes)

    def _answer_again(self, job: Job, lost: Answer, run: str) -> None:
        broadcast, epoch = bytes.fromhex(lost.base), self.state.of(run).saved.epoch
        took = (lost.took_round, lost.took_phase) if lost.took_round else None
        again = self.answer(job, Question(lost.question, lost.round, lost.phase, broadcast, epoch, took), run)
        if again.object != lost.object and self._private is None:
            log.error(
                "the update for round %d %s was computed again, and it differs from the lost update",
                lost.round,
                lost.phase,
            )


def copied(state: Arrays) -> Arrays:
    """Copy arrays, because they may share the memory of a model that will change."""
    return {name: np.array(state[name]) for name in state}
