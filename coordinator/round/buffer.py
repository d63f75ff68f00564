"""The buffer of a run with buffered rounds (policy.mode): a late update counts in the round that is open.

A round ends with the first K updates, of whatever round their tasks are (FedBuff, Nguyen et al., AISTATS 2022). If
the task of an update is s rounds old, the update has the weight (1 + s)^-a (FedAsync, Xie et al., 2019, section 5.2).

Each device has at most one update in a round. So a fast or lying device cannot fill the buffer alone, and the updates
of a round have an order that does not depend on their arrival.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field

from protofleet.coordinator.round.events import Answered, SentTask
from protofleet.coordinator.round.policy import Policy


@dataclass
class Buffer:
    policy: Policy
    # Round -> its training task. The rounds are the newest ones, as many as policy.staleness, and the open round.
    tasks: dict[int, SentTask] = field(default_factory=dict)
    # Device -> round of the task that was sent to it last and that it has not answered, and the time of sending.
    _sent: dict[str, tuple[int, float]] = field(default_factory=dict)
    # Device -> its late update that counts in the next round. The order is that of their arrival.
    early: dict[str, Answered] = field(default_factory=dict)

    @property
    def is_on(self) -> bool:
        return self.policy.buffered

    def restore(self, tasks: Iterable[SentTask], last: int) -> None:
        """Go on with these tasks up to round `last`; it is not known which device works on which of them."""
        self.tasks = {task.round: task for task in tasks if task.round <= last}
        self._sent, self.early = {}, {}

    def opened(self, task: SentTask) -> int:
        """Keep the task of the open round, and return the first round whose task is still needed."""
        oldest = task.round - self.policy.staleness
        self.tasks = {number: known for number, known in self.tasks.items() if oldest <= number < task.round}
        self.tasks[task.round] = task
        return oldest

    def sent(self, device: str, round: int, now: float) -> None:
        self._sent[device] = round, now

    def joined(self, device: str) -> None:
        """Forget the task of a device that has sent a hello: the device may have been started again."""
        self._sent.pop(device, None)

    def answered(self, device: str, round: int) -> None:
        if device in self._sent and self._sent[device][0] <= round:
            del self._sent[device]

    def give_up(self, next_round: int, now: float) -> Mapping[str, SentTask]:
        """Forget the tasks that are too old for the next round, or that a device has had for too long.

        Return the task of each device that has had its task for policy.patience_seconds.
        """
        oldest, since = next_round - self.policy.staleness, now - self.policy.patience_seconds
        expired = {device: number for device, (number, at) in self._sent.items() if at <= since}
        self._sent = {
            device: (number, at)
            for device, (number, at) in self._sent.items()
            if number >= oldest and device not in expired
        }
        return {d: self.tasks[number] for d, number in expired.items() if number in self.tasks}

    def working(self, round: int) -> AbstractSet[str]:
        """Return the devices that work on a task from before this round, or whose late update waits for it."""
        return {d for d, (number, _) in self._sent.items() if number < round} | self.early.keys()

    def knows(self, event: Answered) -> bool:
        """Return whether the task of an update was sent to its device, and is not too old."""
        task = self.tasks.get(event.round)
        return (
            task is not None
            and (event.phase, event.base) == (task.phase, task.base)
            and event.device in task.cohort
        )

    def take_early(self) -> Collection[Answered]:
        """Return the late updates that wait, in the order of their arrival, and let go of them."""
        found, self.early = self.early.values(), {}
        return found
