"""A job: what a run's plan asks of this device, one phase after the other. Runs on the worker's thread.

Devices measure every model that they hold anyway, which costs no bytes: the global one as it arrives, where the
method has one, and their own when the phase "train" has made it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final, Protocol, TypeAlias

import torch

from protofleet.edge_client.evaluate import Splits, evaluate
from protofleet.edge_client.feature_snapshots import Snapshots, save_snapshot
from protofleet.edge_client.trainer.deadline import NEVER, Deadline
from protofleet.methods.contract.base import Ask, ClientHalf, Payload
from protofleet.methods.contract.bridge import LazyPayload, to_numpy
from protofleet.methods.contract.confusion import CONFUSION, MOST_CLASSES
from protofleet.methods.contract.own_metrics import Metric
from protofleet.methods.contract.plan import Plan
from protofleet.methods.parts.weights import torch_device_of
from protofleet.protocol.wire.messages import Arrays
from protofleet.runtime.allocator import return_free_blocks

Metrics: TypeAlias = dict[str, float]

NONE: Final[Mapping[str, Metric]] = {}
TRAIN: Final = "train"  # the phase that changes a device's model
EVALUATE: Final = "evaluate"  # after the last round
SECONDS_WAITED: Final = "seconds.waited"  # among what was measured: it is no work, and is sent to nobody


class Job(Protocol):
    """All of it is called by one thread, and what is handed over is not used by the caller afterwards."""

    def run(self, phase: str, number: int, received: Arrays) -> tuple[Arrays, Metrics]:
        """What goes back to the server half, and what was measured. `number` is the round's."""
        ...

    def state(self) -> Arrays:
        """All that must survive a reboot, as it is after the last `run`."""
        ...

    def restore(self, state: Arrays) -> None: ...


StartJob: TypeAlias = Callable[[Plan], Job]  # SettingsError where this device cannot do what the plan asks


class LocalJob:
    """In this process."""

    def __init__(
        self, half: ClientHalf, data: Splits, reports: str, *, snapshots: Snapshots | None = None,
        folder: Path = Path(), deadline: Deadline | None = None, work_seconds: float = NEVER,
        metrics: Mapping[str, Metric] | None = None,
    ) -> None:  # fmt: skip
        """`reports` is the model whose accuracy the paper reports: "global" or "personal"."""
        self.half, self._data, self._reports = half, data, reports
        self._snapshots, self._folder = snapshots or Snapshots(), folder
        self._deadline, self._work_seconds = deadline or Deadline(), work_seconds
        self._metrics = metrics or {}

    def run(self, phase: str, number: int, received: Arrays) -> tuple[Arrays, Metrics]:
        ask = Ask(phase, LazyPayload(received, unshared=True, place=torch_device_of(self.half.model)))
        with self._deadline.running(self._work_seconds):
            payload, metrics = work(self.half, self._data, ask, number, self._reports, self._metrics)
        if self._snapshots.wanted(number, phase):
            most = self._snapshots.samples
            learned = {} if phase == EVALUATE else payload  # else it is counts, and no point in a picture
            save_snapshot(self._folder, most, number, self.half, self._data, ask.payload, learned)
        answer = to_numpy(payload)
        del ask, payload
        return_free_blocks()
        return answer, metrics

    def state(self) -> Arrays:
        return to_numpy(self.half.state())

    def restore(self, state: Arrays) -> None:
        self.half.restore(LazyPayload(state, unshared=True))


def local_jobs(build: Callable[[Plan], ClientHalf], data: Splits) -> StartJob:
    """Jobs without limits."""
    return lambda plan: LocalJob(build(plan), data, plan.variant.reports, metrics=plan.metrics())


def work(
    half: ClientHalf, data: Splits, ask: Ask, number: int, reports: str, own: Mapping[str, Metric] = NONE
) -> tuple[Payload, Metrics]:
    half.begin(number)
    half.receive(ask.payload)
    if ask.phase == EVALUATE:
        half.after_last_round()
        return evaluate_at_end(half, data, reports, own)
    metrics = {}
    if ask.phase == TRAIN and reports == "global":
        metrics = evaluate(half, data, "global", metrics=own)
    payload = half.run(ask)
    if ask.phase == TRAIN:
        metrics |= evaluate(half, data, "personal", metrics=own)
    return payload, metrics


def evaluate_at_end(
    half: ClientHalf, data: Splits, reports: str, own: Mapping[str, Metric] = NONE
) -> tuple[Payload, Metrics]:
    """With what it takes for what, where a run has so few classes that this can be read."""
    if data.classes > MOST_CLASSES or not len(data.test.y):
        return {}, evaluate(half, data, reports, metrics=own)
    confusion = torch.zeros(data.classes, data.classes, dtype=torch.int32)
    metrics = evaluate(half, data, reports, confusion, own)
    return {CONFUSION: confusion}, metrics
