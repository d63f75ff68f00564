"""The job of a device: its work for a run's plan, one phase after the other, on the worker's thread.

A device evaluates all models that it has, because this needs no additional messages. If the method has a global
model, the device evaluates this model when the model arrives in the phase "train". The device evaluates its own model
at the end of this phase.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final, Protocol, TypeAlias

import torch

from protofleet.edge_client.evaluate import Splits, evaluate
from protofleet.edge_client.feature_snapshots import Snapshots, delete_earlier_evaluations, save_snapshot
from protofleet.edge_client.serving.settings import GLOBAL, PERSONAL
from protofleet.edge_client.trainer.broadcast import refusing_wrong_arrays, take_over
from protofleet.edge_client.trainer.deadline import NEVER, Deadline
from protofleet.edge_client.trainer.features import StoredFeatures, with_features
from protofleet.methods.contract.base import Ask, ClientHalf, Payload
from protofleet.methods.contract.bridge import LazyPayload, to_numpy
from protofleet.methods.contract.confusion import CONFUSION, MOST_CLASSES
from protofleet.methods.contract.given import answer_of, tensors_of
from protofleet.methods.contract.own_metrics import Metric
from protofleet.methods.contract.plan import Plan
from protofleet.methods.parts.weights import torch_device_of
from protofleet.protocol.wire.messages import Arrays
from protofleet.protocol.wire.names import EVALUATE
from protofleet.runtime.allocator import return_free_blocks

log = logging.getLogger("protofleet.device")

Metrics: TypeAlias = dict[str, float]

NONE: Final[Mapping[str, Metric]] = {}
TRAIN: Final = "train"  # name of the phase that changes a device's model
# Metric with the seconds in which the job waited for its turn. It stays on the device.
SECONDS_WAITED: Final = "seconds.waited"
# Metric with the number of model versions that could not be written. It stays on the device.
MODELS_UNWRITTEN: Final = "models.unwritten"


class Job(Protocol):
    """The interface of a job.

    One thread makes all calls. After a call, the caller does not use the given arguments any more.
    """

    def run(self, phase: str, number: int, received: Arrays) -> tuple[Arrays, Metrics]:
        """Do the phase of round `number`, and return the update's arrays and the metrics."""
        ...

    def state(self) -> Arrays:
        """Return the state after the last `run`, with everything that must survive a reboot."""
        ...

    def restore(self, state: Arrays) -> None: ...


class Models(Protocol):
    """The place to which a job gives its models, so that they are served or kept."""

    def publish(self, kind: str, half: ClientHalf, number: int, metrics: Metrics) -> None:
        """Publish the half's present model.

        If `kind` is "global", the present model is the run's model after round `number`. If `kind` is "personal", it
        is the device's own model after round `number`.
        """
        ...

    def take_unwritten(self) -> int:
        """Return how many models could not be written since the last call of this method."""
        ...


class NoModels:
    """A destination that drops all models."""

    def publish(self, kind: str, half: ClientHalf, number: int, metrics: Metrics) -> None:
        pass

    def take_unwritten(self) -> int:
        return 0


class ServedAndKept:
    """A destination that gives each model to two destinations: one serves models, the other keeps them."""

    def __init__(self, served: Models, kept: Models) -> None:
        self._both = (served, kept)

    def publish(self, kind: str, half: ClientHalf, number: int, metrics: Metrics) -> None:
        for models in self._both:
            models.publish(kind, half, number, metrics)

    def take_unwritten(self) -> int:
        return sum(models.take_unwritten() for models in self._both)


NO_MODELS: Final = NoModels()
# Function that starts the job of a plan. It raises SettingsError if this device cannot follow the plan.
StartJob: TypeAlias = Callable[[Plan], Job]


class LocalJob:
    """A job that runs in this process."""

    def __init__(
        self, half: ClientHalf, data: Splits, reports: str, *, snapshots: Snapshots | None = None,
        folder: Path = Path(), deadline: Deadline | None = None, work_seconds: float = NEVER,
        models: Models | None = None,
        metrics: Mapping[str, Metric] | None = None,
        features: StoredFeatures | None = None,
    ) -> None:  # fmt: skip
        """Make a job; `reports` is the model whose accuracy the method's paper reports, "global" or "personal".

        Features of a frozen backbone are read from `features` if they are stored there.
        """
        self.half, self._data, self._reports = half, data, reports
        half.domain = data.domain
        self._snapshots, self._folder = snapshots or Snapshots(), folder
        self._deadline, self._work_seconds = deadline or Deadline(), work_seconds
        self._models = models or NO_MODELS
        self._metrics, self._told = metrics or {}, set[str]()
        self._stored, self._began = features, False

    def run(self, phase: str, number: int, received: Arrays) -> tuple[Arrays, Metrics]:
        ask = Ask(phase, LazyPayload(received, unshared=True, place=torch_device_of(self.half.model)))
        with self._deadline.running(self._work_seconds), refusing_wrong_arrays(ask, number):
            if not self._began:
                self._data, self._began = with_features(self.half, self._data, self._stored), True
            payload, metrics = work(
                self.half, self._data, ask, number, self._reports, self._metrics, self._models
            )
        self._leave_out(metrics, phase, number)
        if unwritten := self._models.take_unwritten():
            metrics[MODELS_UNWRITTEN] = unwritten
        if self._snapshots.wanted(number, phase):
            most = self._snapshots.samples
            if phase == EVALUATE:
                delete_earlier_evaluations(self._folder, number, self._snapshots.rounds)
            # The payload of an evaluation has counts of predictions, which are not points in the feature space.
            learned = {} if phase == EVALUATE else payload
            save_snapshot(self._folder, most, number, self.half, self._data, ask.payload, learned)
        answer = to_numpy(payload)
        del ask, payload
        return_free_blocks()
        return answer, metrics

    def _leave_out(self, metrics: Metrics, phase: str, number: int) -> None:
        """Remove values of the run's own metrics that are not finite, because means with them are not finite either.

        Only the first removed value of each metric is logged.
        """
        for key in [key for key, value in metrics.items() if not math.isfinite(value)]:
            name = key.partition(".")[0]
            if name in self._metrics:
                value = metrics.pop(key)
                if name not in self._told:
                    self._told.add(name)
                    log.warning(
                        "metric %s is %s in round %d, phase %s (%s); this value is left out",
                        name,
                        value,
                        number,
                        phase,
                        key,
                    )

    def state(self) -> Arrays:
        return to_numpy(tensors_of(self.half.state(), self.half.state))

    def restore(self, state: Arrays) -> None:
        self.half.restore(LazyPayload(state, unshared=True))


def local_jobs(
    build: Callable[[Plan], ClientHalf], data: Splits, models: Callable[[Plan], Models] | None = None
) -> StartJob:
    """Return a function that starts jobs in this process, without limits on work and memory."""

    def start(plan: Plan) -> LocalJob:
        kept = models(plan) if models else None
        return LocalJob(build(plan), data, plan.variant.reports, metrics=plan.metrics(), models=kept)

    return start


def work(
    half: ClientHalf,
    data: Splits,
    ask: Ask,
    number: int,
    reports: str,
    own: Mapping[str, Metric] = NONE,
    models: Models = NO_MODELS,
) -> tuple[Payload, Metrics]:
    half.begin(number)
    take_over(half, ask.payload)
    if ask.phase == EVALUATE:
        half.after_last_round()
        payload, metrics = evaluate_at_end(half, data, reports, own)
        models.publish(reports, half, number - 1, metrics)
        return payload, metrics
    metrics = {}
    if ask.phase == TRAIN and reports == GLOBAL:
        metrics = evaluate(half, data, GLOBAL, metrics=own)
        models.publish(GLOBAL, half, number - 1, metrics)
    payload = answer_of(half, ask)
    if ask.phase == TRAIN:
        metrics |= evaluate(half, data, PERSONAL, metrics=own)
        models.publish(PERSONAL, half, number, metrics)
    return payload, metrics


def evaluate_at_end(
    half: ClientHalf, data: Splits, reports: str, own: Mapping[str, Metric] = NONE
) -> tuple[Payload, Metrics]:
    """Evaluate the half after the last round, and return the update's arrays and the metrics.

    The arrays have the confusion matrix if there are test samples and at most MOST_CLASSES classes. A larger matrix
    would be hard to read. Otherwise there are no arrays.
    """
    if data.classes > MOST_CLASSES or not len(data.test.y):
        return {}, evaluate(half, data, reports, metrics=own)
    confusion = torch.zeros(data.classes, data.classes, dtype=torch.int32)
    metrics = evaluate(half, data, reports, confusion, own)
    return {CONFUSION: confusion}, metrics
