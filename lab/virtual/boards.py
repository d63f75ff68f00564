"""The boards of virtual devices: they do one piece of work after the other, which takes time and energy.

A piece of work begins twice. The first time, it goes until it has a task for the job of its device, and is given up
there. The host of the job then does the task, in this process or in another one, while the clock goes on. At the end
of its virtual time, the piece of work is done from the beginning, with the result of the task. So the device saves
its update at the end of its work, and a device that is turned off before does not save it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

from protofleet.edge_client.host.energy import EnergyMeter
from protofleet.edge_client.trainer.job import Metrics
from protofleet.lab.simulation.network import T, VirtualClock, VirtualWorker
from protofleet.lab.virtual.fleet import VirtualDevice
from protofleet.lab.virtual.jobs import JobHost, JobResult, JobTask
from protofleet.lab.virtual.least_work import LeastWork, Sizes
from protofleet.lab.virtual.lines import VirtualLine
from protofleet.methods.contract.plan import Plan
from protofleet.methods.plugins.authors import AuthorError
from protofleet.protocol.transport.base import Done
from protofleet.protocol.wire.messages import NOTHING, Arrays
from protofleet.protocol.wire.names import EVALUATE
from protofleet.runtime.command.errors import RunError

BATCH: Final = 32  # Size of a batch if the method has no setting `batch`.

Piece: TypeAlias = tuple[
    Callable[[], Any], Callable[[Any], None]
]  # A piece of work, and the receiver of its result.


@dataclass
class VirtualBoard:
    """The board of one device: the seconds that its work has taken, and its joules."""

    device: VirtualDevice
    line: VirtualLine
    sizes: Sizes = ()
    least: LeastWork = field(default_factory=LeastWork)  # All boards of a fleet share it.
    seconds: float = 0.0  # All work so far.
    _read: float = 0.0  # Joules at the last reading of the sensor.

    name = "a virtual board"  # This and the next two methods make a board a PowerSensor.

    def drawn(self, now: float) -> float:
        before, self._read = self._read, self.joules + self.line.joules
        return self._read - before

    def forget(self) -> None:
        """Do nothing, because this sensor can always be read."""

    def work(self, seconds: float) -> None:
        self.seconds += seconds

    @property
    def joules(self) -> float:
        return self.seconds * self.device.board.watts

    def meter(self, clock: VirtualClock) -> EnergyMeter | None:
        """Return the energy meter of the board; None if its profile has no watts, as for a board without a sensor."""
        if not (self.device.board.watts or self.device.line.watts):
            return None
        return EnergyMeter(self, clock=lambda: clock.now)

    def measured_seconds(self, phase: str) -> float | None:
        """Return the time that real boards have measured for a task; None without a measurement."""
        if (work := self.device.work) is None:
            return None
        return work.evaluation if phase == EVALUATE else work.training


class BoardTask(BaseException):
    """The task that a piece of work has for a job. It is raised to give up the piece of work for now."""

    def __init__(self, job: BoardJob, phase: str, wait: Callable[[], JobResult]) -> None:
        super().__init__(phase)
        self._job, self._phase, self._wait = job, phase, wait
        board = job.board
        self._measured = board.measured_seconds(phase)
        least = board.least.samples(phase, board.sizes) * job.sample_seconds
        self.least_seconds = least if self._measured is None else self._measured

    def seconds(self) -> float:
        """Wait for the result, give it to the job, and return the time of the work."""
        job, found = self._job, self.least_seconds
        try:
            job.result = result = self._wait()
        except (RunError, AuthorError):
            raise  # No device can go on.
        except Exception as error:  # noqa: BLE001 - the job raises it, in its piece of work
            job.result = error
        else:
            job.board.least.note(self._phase, job.board.sizes, result.samples)
            if self._measured is None:
                found = max(found, result.samples * job.sample_seconds)
            job.work_seconds = found
        return found


class BoardJob:
    """The job of a device, whose tasks a host does."""

    def __init__(self, host: JobHost, board: VirtualBoard, device: str, plan: Plan) -> None:
        self._host, self.board, self._device = host, board, device
        batch = int(getattr(plan.settings(), "batch", BATCH))
        self.sample_seconds = (board.device.board.step_seconds or 0.0) / batch
        self.result: JobResult | Exception | None = None
        self.work_seconds = 0.0
        self._state: Arrays = NOTHING
        self._restored: Arrays | None = None
        host.start(device, plan)

    def run(self, phase: str, number: int, received: Arrays) -> tuple[Arrays, Metrics]:
        if self.result is None:
            task = JobTask(phase, number, received, self._restored)
            self._restored = None
            raise BoardTask(self, phase, self._host.begin(self._device, task))
        result, self.result = self.result, None
        if isinstance(result, Exception):
            raise result
        self.board.work(self.work_seconds)
        self._state = result.state
        return result.arrays, result.metrics

    def state(self) -> Arrays:
        """Return the state after the last task.

        While an evaluation is being done, this is the state before it. A piece of work that is given up needs none.
        """
        if isinstance(self.result, JobResult):
            return self.result.state
        found, self._state = self._state, NOTHING
        return found

    def restore(self, state: Arrays) -> None:
        self._state = self._restored = state


@dataclass
class BoardWorker(VirtualWorker):
    """A worker that does one piece of work after the other, and takes the time that its board takes."""

    board: VirtualBoard | None = None
    _waiting: deque[Piece] = field(default_factory=deque)
    _begun: float | None = None  # Time at which the present piece of work has begun; None without one.

    def submit(self, work: Callable[[], T], then: Callable[[T | Exception], None]) -> None:
        self._waiting.append((work, then))
        if self._begun is None:
            self._begin_next()

    def cut_off(self) -> None:
        """End the present piece of work, because its device is turned off. It has taken energy until now."""
        if self._begun is not None and self.board is not None:
            self.board.work(self.clock.now - self._begun)
        self.alive = False

    def _begin_next(self) -> None:
        if not self._waiting:
            self._begun = None
            return
        self._begun = self.clock.now
        piece = self._waiting.popleft()
        try:
            result = attempted(piece)
        except BoardTask as task:
            self._wait_for(task, piece)
        else:
            self.clock.call_at(self.clock.now, lambda: self._end(piece, result))

    def _wait_for(self, task: BoardTask, piece: Piece) -> None:
        """Let the clock go on for as long as the task certainly takes, and then wait for its result."""
        begun = self.clock.now

        def wait() -> None:
            seconds = task.seconds()
            self.clock.call_at(max(self.clock.now, begun + seconds), finish)

        def finish() -> None:
            if self.alive:
                self._end(piece, attempted(piece))

        self.clock.call_at(begun + task.least_seconds, wait)

    def _end(self, piece: Piece, result: object) -> None:
        if not self.alive:
            return
        self._begun = None
        self._deliver(Done(lambda: piece[1](result)))
        if self._begun is None:
            self._begin_next()


def attempted(piece: Piece) -> object:
    """Do a piece of work, and return its result or its error."""
    try:
        return piece[0]()
    except Exception as error:  # noqa: BLE001 - the same as in a ThreadWorker: the receiver raises it again
        return error
