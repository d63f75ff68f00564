"""The jobs of the devices of a virtual run: they train as real devices do, and count the samples of their work.

Work is counted in samples, as they pass through the first or the last layer of the device's network. A sample of
training costs its part of a step. A sample that is only measured has no backward pass, and costs a third of this.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from protofleet.edge_client.data.settings import DataSettings
from protofleet.edge_client.data.shard import Shard, Shards
from protofleet.edge_client.public_images import public_images
from protofleet.edge_client.trainer.job import Job, LocalJob, Metrics
from protofleet.methods.contract.plan import Network, Plan
from protofleet.methods.plugins.allowed import PlugIns
from protofleet.protocol.wire.arrays import ordered
from protofleet.protocol.wire.messages import Arrays
from protofleet.protocol.wire.names import EVALUATE
from protofleet.runtime.event_loop import as_exception

CPU: Final = torch.device("cpu")
FORWARD: Final = 1 / 3  # Cost of a sample without a backward pass.


class JobTask(NamedTuple):
    """A task for the job of a device."""

    phase: str
    number: int  # The round.
    received: Arrays
    restored: Arrays | None = None  # The state from which the job continues; None means its last state.


class JobResult(NamedTuple):
    """The result of a task. `state` is the state that the device saves with it."""

    arrays: Arrays
    metrics: Metrics
    samples: float  # Work, as a number of samples of training.
    state: Arrays


class JobHost(Protocol):
    """The place where the jobs of all devices work."""

    def start(self, device: str, plan: Plan) -> None:
        """Start the job of a device, in place of an earlier one."""

    def begin(self, device: str, task: JobTask) -> Callable[[], JobResult]:
        """Begin a task, and return a function that waits for its result. The function raises errors of the task."""


class SampleCounter:
    """A counter of the samples that pass through one layer, with and without a backward pass."""

    def __init__(self, layer: nn.Module) -> None:
        self.trained = self.measured = 0
        layer.register_forward_hook(self._count)

    def _count(self, layer: nn.Module, given: tuple[object, ...], result: object) -> None:
        samples = len(given[0]) if given and isinstance(given[0], Tensor) else 0
        if torch.is_grad_enabled():
            self.trained += samples
        else:
            self.measured += samples

    @property
    def cost(self) -> float:
        """Return the work so far, as a number of samples of training."""
        return self.trained + FORWARD * self.measured


class CountedJob:
    """A job that counts the samples of its work."""

    def __init__(self, job: Job, model: nn.Module) -> None:
        self._job = job
        leaves = [
            one for one in model.modules() if not any(one.children()) and any(True for _ in one.parameters())
        ]
        self._counters = [SampleCounter(layer) for layer in dict.fromkeys([*leaves[:1], *leaves[-1:]])]

    def perform(self, task: JobTask) -> JobResult:
        """Do a task. The state before an evaluation is also the state after it."""
        if task.restored is not None:
            self._job.restore(task.restored)
        before, cost = copied(self._job.state()) if task.phase == EVALUATE else None, self._cost
        arrays, metrics = self._job.run(task.phase, task.number, task.received)
        if before is None:
            state = self._job.state()
        else:
            self._job.restore(before)
            state = before
        return JobResult(sorted_arrays(arrays), metrics, self._cost - cost, sorted_arrays(state))

    @property
    def _cost(self) -> float:
        return max((counter.cost for counter in self._counters), default=0.0)


def sorted_arrays(arrays: Arrays) -> Arrays:
    """Return arrays in the order in which a message has them, as those of another process are."""
    return {name: arrays[name] for name in ordered(arrays)}


def copied(state: Arrays) -> Arrays:
    """Copy arrays, because they may share the memory of a model that will change."""
    return {name: np.array(state[name]) for name in state}


@dataclass(frozen=True)
class JobBuilder:
    """The builder of the jobs of all devices, with their data and their networks."""

    shards: Mapping[str, Shard]
    data: Mapping[str, DataSettings]
    # Networks of devices with another one than the plan.
    networks: Mapping[str, Network] = field(default_factory=dict)
    loader: Shards = field(default_factory=Shards)
    plugins: PlugIns = field(default_factory=PlugIns)

    def job(self, device: str, plan: Plan) -> CountedJob:
        data, network = self.shards[device], self.networks.get(device)
        public = public_images(plan, self.data[device], self.loader)
        half = plan.client_half(
            data.train, device, network and network.taken(self.plugins), CPU,
            validation=data.validation, public=public,
        )  # fmt: skip
        return CountedJob(LocalJob(half, data, plan.variant.reports, metrics=plan.metrics()), half.model)


class JobsHere:
    """The jobs of all devices in this process, where a task is done when its result is needed."""

    def __init__(self, builder: JobBuilder) -> None:
        self._builder, self._jobs = builder, dict[str, CountedJob]()

    def start(self, device: str, plan: Plan) -> None:
        self._jobs[device] = self._builder.job(device, plan)

    def begin(self, device: str, task: JobTask) -> Callable[[], JobResult]:
        job = self._jobs[device]

        def result() -> JobResult:
            try:
                return job.perform(task)
            except Exception as error:
                raise as_exception(error) from error

        return result
