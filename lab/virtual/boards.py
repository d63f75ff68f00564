"""The work and the energy of a virtual board.

Work is counted in samples, as they pass through the first or the last layer of the device's network. A sample of
training costs its part of a step. A sample that is only measured has no backward pass, and costs a third of this.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

import torch
from torch import Tensor, nn

from protofleet.edge_client.host.energy import EnergyMeter
from protofleet.edge_client.trainer.job import Job, Metrics
from protofleet.lab.simulation.network import VirtualClock, VirtualWorker
from protofleet.lab.virtual.fleet import VirtualDevice
from protofleet.lab.virtual.lines import VirtualLine
from protofleet.protocol.transport.base import Done
from protofleet.protocol.wire.messages import Arrays
from protofleet.protocol.wire.names import EVALUATE

FORWARD: Final = 1 / 3  # Cost of a sample without a backward pass.
BATCH: Final = 32  # Size of a batch if the method has no setting `batch`.


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


@dataclass
class VirtualBoard:
    """The board of one device: the seconds that its work has taken, and its joules."""

    device: VirtualDevice
    line: VirtualLine
    seconds: float = 0.0  # All work so far.
    undelivered: float = 0.0  # Seconds of work whose result the worker has not scheduled yet.
    _read: float = 0.0  # Joules at the last reading of the sensor.

    name = "a virtual board"  # This and the next two methods make a board a PowerSensor.

    def drawn(self, now: float) -> float:
        before, self._read = self._read, self.joules + self.line.joules
        return self._read - before

    def forget(self) -> None:
        """Do nothing, because this sensor can always be read."""

    def work(self, seconds: float) -> None:
        self.seconds, self.undelivered = self.seconds + seconds, self.undelivered + seconds

    def take_undelivered(self) -> float:
        found, self.undelivered = self.undelivered, 0.0
        return found

    @property
    def joules(self) -> float:
        return self.seconds * self.device.board.watts

    def meter(self, clock: VirtualClock) -> EnergyMeter | None:
        """Return the energy meter of the board; None if its profile has no watts, as for a board without a sensor."""
        if not (self.device.board.watts or self.device.line.watts):
            return None
        return EnergyMeter(self, clock=lambda: clock.now)


class CountedJob:
    """A job that counts its work on a board."""

    def __init__(self, job: Job, model: nn.Module, board: VirtualBoard, batch: int) -> None:
        self._job, self._board = job, board
        leaves = [
            one for one in model.modules() if not any(one.children()) and any(True for _ in one.parameters())
        ]
        self._counters = [SampleCounter(layer) for layer in dict.fromkeys([*leaves[:1], *leaves[-1:]])]
        self._sample_seconds = (board.device.board.step_seconds or 0.0) / batch

    def run(self, phase: str, number: int, received: Arrays) -> tuple[Arrays, Metrics]:
        before = self._cost
        found = self._job.run(phase, number, received)
        if (work := self._board.device.work) is None:
            self._board.work((self._cost - before) * self._sample_seconds)
        else:
            self._board.work(work.evaluation if phase == EVALUATE else work.training)
        return found

    @property
    def _cost(self) -> float:
        return max((counter.cost for counter in self._counters), default=0.0)

    def state(self) -> Arrays:
        return self._job.state()

    def restore(self, state: Arrays) -> None:
        self._job.restore(state)


@dataclass
class BoardWorker(VirtualWorker):
    """A worker that does one piece of work after the other, and takes the time that its board takes."""

    board: VirtualBoard | None = None
    _free_at: float = field(default=0.0)

    @property
    def is_working(self) -> bool:
        return self.clock.now < self._free_at

    def schedule(self, then: Callable[[], None]) -> None:
        assert self.board is not None
        self._free_at = max(self.clock.now, self._free_at) + self.board.take_undelivered()
        self.clock.call_at(self._free_at, lambda: self._deliver(Done(then)))
