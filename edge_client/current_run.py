"""The run that was announced last: its plan, once a coordinator has sent it, and the job that the plan asks for."""

from __future__ import annotations

from dataclasses import dataclass

from protofleet.edge_client.trainer.job import Job
from protofleet.methods.contract.plan import Plan
from protofleet.protocol.wire.messages import Message, RoundStatus, State, Task


@dataclass
class CurrentRun:
    """All that a device works on and delivers is of this run."""

    name: str
    plan: Plan | None = None
    job: Job | None = None
    over: bool = False  # and no other has begun yet
    gathering: bool = False  # its coordinator has said last that it waits for devices
    _welcomed_by: int = 0  # epoch of the coordinator that sent the last welcome

    def change(self, name: str) -> None:
        self.name = name
        self.drop_job()

    def start(self, plan: Plan, job: Job) -> None:
        self.plan, self.job, self.over = plan, job, False

    def heard(self, message: Message) -> None:
        match message:
            case State(online=True, now=RoundStatus() as status):
                self.gathering = status.gathers
            case Task():
                self.gathering = False

    def drop_job(self) -> None:
        self.plan = self.job = None

    def welcomed(self, epoch: int) -> bool:
        """Whether this coordinator has not welcomed the device before."""
        first, self._welcomed_by = epoch != self._welcomed_by, epoch
        return first

    def forget_welcome(self) -> None:
        self._welcomed_by = 0

    def was_welcomed_by(self, run: str, epoch: int) -> bool:
        """Whether this coordinator has sent its plan, and it is of this run: another one may know other forms of
        messages, or have another plan under the same name."""
        return (self.name, self._welcomed_by) == (run, epoch)
