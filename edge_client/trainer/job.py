"""A job: what a run's plan asks of this device, one phase after the other. Runs on the worker's thread.

Devices measure every model that they hold anyway, which costs no bytes: the global one as it arrives, where the
method has one, and their own when the phase "train" has made it.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final, Protocol, TypeAlias

from protofleet.edge_client.evaluate import Splits, evaluate
from protofleet.edge_client.feature_snapshots import Snapshots, save_snapshot
from protofleet.edge_client.trainer.deadline import Deadline
from protofleet.methods.contract.base import Ask, ClientHalf, Payload
from protofleet.methods.contract.bridge import to_numpy, torch_views
from protofleet.methods.contract.plan import Plan
from protofleet.methods.parts.weights import torch_device_of
from protofleet.protocol.wire.messages import Arrays

Metrics: TypeAlias = dict[str, float]

TRAIN: Final = "train"  # the phase that changes a device's model
EVALUATE: Final = "evaluate"  # after the last round


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
        folder: Path = Path(), deadline: Deadline | None = None,
    ) -> None:  # fmt: skip
        """`reports` is the model whose accuracy the paper reports: "global" or "personal"."""
        self.half, self._data, self._reports = half, data, reports
        self._snapshots, self._folder = snapshots or Snapshots(), folder
        self._deadline = deadline or Deadline()

    def run(self, phase: str, number: int, received: Arrays) -> tuple[Arrays, Metrics]:
        place = torch_device_of(self.half.model)
        ask = Ask(phase, {name: value.to(place) for name, value in torch_views(received).items()})
        with self._deadline.running():
            payload, metrics = work(self.half, self._data, ask, number, self._reports)
        if self._snapshots.wanted(number, phase):
            most = self._snapshots.samples
            save_snapshot(self._folder, most, number, self.half, self._data, ask.payload, payload)
        return to_numpy(payload), metrics

    def state(self) -> Arrays:
        return to_numpy(self.half.state())

    def restore(self, state: Arrays) -> None:
        self.half.restore(torch_views(state))


def local_jobs(build: Callable[[Plan], ClientHalf], data: Splits) -> StartJob:
    """Jobs without limits."""
    return lambda plan: LocalJob(build(plan), data, plan.variant.reports)


def work(half: ClientHalf, data: Splits, ask: Ask, number: int, reports: str) -> tuple[Payload, Metrics]:
    half.begin(number)
    half.receive(ask.payload)
    if ask.phase == EVALUATE:
        half.after_last_round()
        return {}, evaluate(half, data, reports)
    metrics = {}
    if ask.phase == TRAIN and reports == "global":
        metrics = evaluate(half, data, "global")
    payload = half.run(ask)
    if ask.phase == TRAIN:
        metrics |= evaluate(half, data, "personal")
    return payload, metrics
