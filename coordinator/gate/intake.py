"""Answers to the open ask, judged before a byte of them is fetched: who is refused, and what room is left."""

from __future__ import annotations

from typing import Final, Protocol

from protofleet.coordinator.devices.limits import Limits, false_claim
from protofleet.coordinator.gate.shares import Offer, who_yields
from protofleet.coordinator.spool.spool import Spool
from protofleet.methods.contract.base import Ask, Member
from protofleet.methods.contract.wants import most_bytes
from protofleet.protocol.storage.disk import NoRoom
from protofleet.protocol.wire.messages import Update
from protofleet.protocol.wire.reasons import Problem, Reason, Rejected

NOBODY: Final = frozenset[str]()


class Offers(Protocol):
    """Whoever fetches what was offered."""

    def is_silent(self, device: str) -> bool: ...

    def give_up(self, device: str) -> None: ...


class Intake:
    def __init__(self, limits: Limits, spool: Spool, offers: Offers) -> None:
        self.limits, self._spool, self._offers = limits, spool, offers
        self._most = 0  # bytes that an answer may have
        self._cohort = 1  # devices that were asked
        self._stored = 0  # of answers on the disk when the ask was opened
        self._reserved: dict[str, int] = {}  # for those to this one
        self._here = set(NOBODY)  # whose answer is on the disk, of those
        self._turned_away = set(NOBODY)  # who has found no room on the disk
        self._refused: dict[str, Problem] = {}  # whose answer can never be used, and why

    def open(self, ask: Ask, cohort: int) -> None:
        self._most = min(most_bytes(ask.wants), self.limits.answer_bytes)
        self._refused, self._reserved, self._cohort = {}, {}, max(1, cohort)
        self._here, self._turned_away = set(NOBODY), set(NOBODY)
        self._stored = self._spool.bytes_of_answers()

    def problem_with(self, update: Update, size: int, member: Member) -> Problem | None:
        """Why an answer is not fetched at all, or None."""
        if said := self._refused.get(update.device):
            return said  # one question, one answer: there is no second try
        if size > self._most:
            return Problem(Reason.TOO_LARGE, f"{size} bytes, at most {self._most} were asked for")
        return false_claim(update, member)

    def reserve(self, device: str, size: int) -> None:
        """Room on the disk. Without it the frame is rejected, and the device says its answer again later."""
        if self._lacking(device, size) > 0:
            self._spool.forget_earlier()
            self._stored = max(0, self._spool.bytes_of_answers() - sum(self._reserved.values()))
        if (lacking := self._lacking(device, size)) > 0:
            unfinished = {d: Offer(n, self._offers.is_silent(d)) for d, n in self._coming(device).items()}
            for other in who_yields(size, lacking, self._share, unfinished):
                self._offers.give_up(other)
                del self._reserved[other]
        if self._lacking(device, size) > 0:
            raise self._no_room(device, size)
        self._reserved[device] = size
        self._turned_away.discard(device)

    def came(self, device: str) -> None:
        """All of it: from now on it keeps its room."""
        self._here.add(device)

    def refuse(self, device: str, problem: Problem) -> None:
        self._refused[device] = problem
        self._reserved.pop(device, None)
        self._here.discard(device)

    def contradicts(self, update: Update, name: bytes) -> bool:
        """Whether the same question was answered otherwise before."""
        known = self._spool.answers(update.round, update.phase).get(update.device)
        return known is not None and known.base == update.base and known.object != name

    def _coming(self, device: str = "") -> dict[str, int]:
        """What others have promised."""
        return {d: n for d, n in self._reserved.items() if d != device and d not in self._here}

    def _lacking(self, device: str, size: int) -> int:
        """Bytes that are missing for it, on the disk or in what the limit leaves of it; none: 0 or less."""
        spare, room = self._spare(device), self._room
        if min(spare, room - sum(self._coming(device).values())) >= size:
            return 0  # without a look at what has come of each
        return size - min(spare, self._free(device))

    def _spare(self, device: str) -> int:
        others = sum(n for d, n in self._reserved.items() if d != device)
        return self.limits.spool_bytes - self._stored - others

    def _free(self, device: str) -> int:
        """Less what others have promised, and what the round's end will write; with what came of its own."""
        coming = self._coming(device)
        written = {d: self._spool.bytes_of_unfinished(d) for d in (*coming, device)}
        promised = sum(max(0, n - written[d]) for d, n in coming.items())
        return self._room - promised + written[device]

    @property
    def _room(self) -> int:
        return max(0, self._spool.disk.room(self._spool.folder) - self._spool.bytes_of_a_save)

    @property
    def _share(self) -> int:
        """Of each device that was asked, in what there is for all of their answers."""
        written = sum(self._spool.bytes_of_unfinished(d) for d in self._coming())
        on_disk = self._room + written + sum(self._reserved[d] for d in self._here)
        return min(self.limits.spool_bytes - self._stored, on_disk) // self._cohort

    def _no_room(self, device: str, size: int) -> Rejected:
        if (spare := self._spare(device)) < size:
            most, beside = self.limits.spool_bytes, self.limits.spool_bytes - spare
            words = f"{size} bytes of {device} beside {beside}; limits.spool_bytes is {most}"
            return Rejected(Reason.NO_ROOM, words)
        words = f"{size} bytes of {device} are offered, {max(0, self._free(device))} are free"
        self._turned_away.add(device)
        if len(self._turned_away) < min(2, self._cohort):  # one device's word makes no full disk
            return Rejected(Reason.NO_ROOM, words)
        return NoRoom(words)
