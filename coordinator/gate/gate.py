"""The gate, which decides whether an offered update is fetched.

The gate decides before any byte of the update is fetched. It also reserves space for the update on the
disk.
"""

from __future__ import annotations

from collections.abc import Mapping, Sized
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from protofleet.coordinator.devices.limits import CoordinatorLimits, update_problem
from protofleet.coordinator.gate.largest import largest_update
from protofleet.coordinator.gate.reservations import Reservations
from protofleet.coordinator.gate.shares import Offer, offers_to_drop
from protofleet.coordinator.round.events import Stage
from protofleet.coordinator.round.reader import MachineReader
from protofleet.coordinator.spool.spool import Spool
from protofleet.coordinator.spool.update_reader import NO_STAGES
from protofleet.methods.contract.base import Ask, Member
from protofleet.protocol.settings.codec import CodecStage
from protofleet.protocol.storage.disk import NoRoom
from protofleet.protocol.wire.messages import Update
from protofleet.protocol.wire.reasons import Problem, Reason, Rejected


class Transfers(Protocol):
    """The updates that the link is fetching at the moment."""

    def is_silent(self, device: str) -> bool: ...

    def give_up(self, device: str) -> None: ...


@dataclass(frozen=True, slots=True)
class FetchAnswer:
    """The decision to fetch an update. The space for the update on the disk is already reserved."""


@dataclass(frozen=True, slots=True)
class RefuseAnswer:
    problem: Problem


@dataclass(frozen=True, slots=True)
class Contradiction:
    """The decision to drop an update, because another update of the device for the same task is accepted already."""

    problem: Problem


@dataclass(frozen=True, slots=True)
class NotAsked:
    """The decision not to fetch an update, because its task is not open or the same update is accepted already."""


Decision: TypeAlias = FetchAnswer | RefuseAnswer | Contradiction | NotAsked


class Gate:
    def __init__(
        self, limits: CoordinatorLimits, machine: MachineReader, spool: Spool, members: Mapping[str, Member],
        transfers: Transfers, unwritten: Sized, stages: Mapping[str, CodecStage] = NO_STAGES,
    ) -> None:  # fmt: skip
        """Set up the gate; `unwritten` holds the commands that wait for the disk.

        While commands wait, no new update is fetched. `stages` holds the codec stages that devices use for
        their updates.
        """
        self._stages = stages
        self.limits, self._machine, self._spool = limits, machine, spool
        self._members, self._transfers, self._unwritten = members, transfers, unwritten
        self.max_size = 0  # Largest size in bytes of an update for the open task.
        # Largest size in bytes of a late update of a buffered round; 0 while no task of training is known.
        self._most_late = 0
        self._cohort_size = 1
        self._stored = 0  # Bytes that updates took on the disk when the task was opened.
        self._reserved = Reservations()
        self._turned_away: set[str] = set()  # Devices whose updates found no space on the disk.
        # Device whose update for the open task can never be used -> the reason.
        self._refused: dict[str, Problem] = {}

    def open(self, ask: Ask, cohort: int, evaluates: bool = False) -> None:
        self.max_size = min(largest_update(ask, self._stages), self.limits.answer_bytes)
        self._most_late = self._most_late if evaluates else self.max_size
        self._refused, self._reserved, self._cohort_size = {}, Reservations(), max(1, cohort)
        self._turned_away = set()
        self._stored = self._spool.bytes_of_answers()

    def is_expected(self, update: Update) -> bool:
        """Return whether the open task still needs this update, or a buffered round can count it as a late update.

        The coordinator must not have accepted another update of the device for its task.
        """
        m, device = self._machine, update.device
        if m.stage is Stage.COLLECTING and self._is_of_open_task(update) and device not in m.answered:
            return m.was_asked(device)
        return m.expects_late(device, update.round, update.phase, update.base)

    def _is_of_open_task(self, update: Update) -> bool:
        m = self._machine
        return (update.round, update.phase, update.base) == (m.round, m.asked, m.base)

    def most_of(self, update: Update) -> int:
        """Return the largest size in bytes of an update for this task."""
        return self.max_size if self._is_of_open_task(update) else self._most_late

    @property
    def round(self) -> int:
        return self._machine.round

    def decide(self, update: Update, size: int, name: bytes) -> Decision:
        """Decide whether to fetch an update.

        Raise NoRoom or Rejected if no decision is possible now. The device can offer the update again later.
        """
        if self.is_expected(update):
            self._spool.check_claim()
            if not self._is_of_open_task(update) and not self._most_late:
                raise Rejected(
                    Reason.NO_ROOM, "the coordinator has restarted and knows no task of training yet"
                )
            if problem := self._problem_with(update, size):
                return RefuseAnswer(problem)
            if self._unwritten:
                raise NoRoom("earlier updates are not written to the disk yet")
            self.reserve(update.device, size)
            return FetchAnswer()
        if self._spool.has_other_answer(update.round, update.phase, update.device, update.base, name):
            message = "another update of this device for the same task is accepted already"
            return Contradiction(Problem(Reason.EQUIVOCATION, message))
        return NotAsked()

    def completed(self, device: str) -> None:
        """Record that an update is complete. Its space stays reserved."""
        self._reserved.completed(device)

    def refused(self, device: str, problem: Problem) -> None:
        """Record that an update can never be used, and free its space."""
        self._refused[device] = problem
        self._reserved.free(device)

    def _problem_with(self, update: Update, size: int) -> Problem | None:
        if refused := self._refused.get(update.device):
            # A device has only one update for a task, so it offers the refused update again.
            return refused
        if size > (most := self.most_of(update)):
            return Problem(Reason.TOO_LARGE, f"{size} bytes, at most {most} were asked for")
        return update_problem(update, self._members[update.device])

    def reserve(self, device: str, size: int) -> None:
        """Reserve space for an update; drop offers of other devices if the space is not enough.

        If dropping offers does not help, the frame is rejected and the device offers its update again later.
        """
        if self._lacking(device, size) > 0:
            self._spool.free_space()
            self._stored = max(0, self._spool.bytes_of_answers() - self._reserved.total)
        if (lacking := self._lacking(device, size)) > 0:
            unfinished = {
                d: Offer(n, self._transfers.is_silent(d)) for d, n in self._unfinished(device).items()
            }
            for other in offers_to_drop(size, lacking, self._share, unfinished):
                self._transfers.give_up(other)
                self._reserved.free(other)
        if self._lacking(device, size) > 0:
            raise self._no_room(device, size)
        self._reserved.reserve(device, size)
        self._turned_away.discard(device)

    def _unfinished(self, device: str) -> dict[str, int]:
        """Return the bytes that are reserved for incomplete updates of other devices, by device."""
        return {d: n for d, n in self._reserved.unfinished.items() if d != device}

    def _lacking(self, device: str, size: int) -> int:
        """Return how many bytes of space are missing for an update; 0 or less if the space is enough.

        Space is limited by the free bytes of the disk and by limits.spool_bytes.
        """
        within_limit = self._within_limit(device)
        if min(within_limit, self._room - self._reserved.unfinished_beside(device)) >= size:
            # This shortcut is faster, because it need not find out how many bytes of each update have arrived.
            return 0
        return size - min(within_limit, self._free(device))

    def _within_limit(self, device: str) -> int:
        """Return the bytes that limits.spool_bytes leaves for the update of this device."""
        return self.limits.spool_bytes - self._stored - self._reserved.beside(device)

    def _free(self, device: str) -> int:
        """Return the bytes that the disk has for the update of this device.

        Bytes that are reserved for other updates are subtracted. The bytes of this update that were already
        received are added, because they are on the disk already and need no more space.
        """
        others = self._unfinished(device)
        received = {d: self._spool.bytes_of_unfinished(d) for d in (*others, device)}
        reserved = sum(max(0, n - received[d]) for d, n in others.items())
        return self._room - reserved + received[device]

    @property
    def _room(self) -> int:
        """Return the free bytes on the disk, minus the bytes that the next save will write."""
        return max(0, self._spool.disk.free_bytes(self._spool.folder) - self._spool.bytes_of_a_save)

    @property
    def _share(self) -> int:
        """Return the bytes that each device of the cohort gets if all updates get the same space."""
        received = sum(self._spool.bytes_of_unfinished(d) for d in self._reserved.unfinished)
        on_disk = self._room + received + self._reserved.complete
        return min(self.limits.spool_bytes - self._stored, on_disk) // self._cohort_size

    def _no_room(self, device: str, size: int) -> Rejected:
        limit, within_limit = self.limits.spool_bytes, self._within_limit(device)
        if within_limit < size:
            message = (
                f"{size} bytes of {device} beside {limit - within_limit} used or reserved bytes would exceed "
                f"limits.spool_bytes = {limit}"
            )
            return Rejected(Reason.NO_ROOM, message)
        message = f"{size} bytes of {device} are offered, {max(0, self._free(device))} are free"
        self._turned_away.add(device)
        # If only one offer finds no space, the offer may be the problem, so the disk is not reported as full.
        if len(self._turned_away) < min(2, self._cohort_size):
            return Rejected(Reason.NO_ROOM, message)
        return NoRoom(message)
