"""The run that the coordinator announced last, with its plan and its job as soon as the device has them."""

from __future__ import annotations

from dataclasses import dataclass

from protofleet.edge_client.trainer.job import Job
from protofleet.methods.contract.plan import Plan
from protofleet.protocol.wire.messages import Message, RoundStatus, State, Task


@dataclass
class CurrentRun:
    """The run to which all work and all updates of a device belong."""

    name: str
    plan: Plan | None = None
    job: Job | None = None
    over: bool = False  # whether this run is over and no other run has begun yet
    gathering: bool = False  # whether the coordinator still waits for devices before the first round
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
        """Record a welcome, and return whether it is the first welcome of this coordinator process."""
        first, self._welcomed_by = epoch != self._welcomed_by, epoch
        return first

    def forget_welcome(self) -> None:
        self._welcomed_by = 0

    def was_welcomed_by(self, run: str, epoch: int) -> bool:
        """Return whether the coordinator with this epoch has sent the plan of this run.

        A restarted coordinator may know other forms of messages, or have another plan for a run of the same name.
        """
        return (self.name, self._welcomed_by) == (run, epoch)
