"""Answers to the open ask, judged before a byte of them is fetched: who is refused, and what room is left."""

from __future__ import annotations

from coordinator.claims import Limits, false_claim
from coordinator.spool import Spool
from methods.base import Ask, Member
from methods.wants import most_bytes
from protocol.disk import NoRoom
from protocol.messages import Update
from protocol.reasons import Problem, Reason, Rejected


class Intake:
    def __init__(self, limits: Limits, spool: Spool) -> None:
        self.limits, self._spool = limits, spool
        self._most = 0  # bytes that an answer may have
        self._stored = 0  # of answers on the disk when the ask was opened
        self._reserved: dict[str, int] = {}  # for those to this one
        self._refused: dict[str, Problem] = {}  # whose answer can never be used, and why

    def open(self, ask: Ask) -> None:
        self._most = min(most_bytes(ask.wants), self.limits.answer_bytes)
        self._refused, self._reserved = {}, {}
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
        if self._beside(device) + size > self.limits.spool_bytes or self._free() < size:
            self._spool.forget_earlier()
            self._stored = self._spool.bytes_of_answers() - sum(self._reserved.values())
        if (others := self._beside(device)) + size > self.limits.spool_bytes:
            most = self.limits.spool_bytes
            raise Rejected(
                Reason.NO_ROOM, f"{size} bytes of {device} beside {others}; limits.spool_bytes is {most}"
            )
        if (free := self._free()) < size:
            raise NoRoom(f"{size} bytes of {device} are offered, {free} are free")
        self._reserved[device] = size

    def _beside(self, device: str) -> int:
        return self._stored + sum(n for d, n in self._reserved.items() if d != device)

    def _free(self) -> int:
        """What has been offered takes no room before it comes; what finds none then is asked for again."""
        return self._spool.disk.room(self._spool.folder)

    def refuse(self, device: str, problem: Problem) -> None:
        self._refused[device] = problem
        self._reserved.pop(device, None)

    def contradicts(self, update: Update, name: bytes) -> bool:
        """Whether the same question was answered otherwise before."""
        known = self._spool.answers(update.round, update.phase).get(update.device)
        return known is not None and known.base == update.base and known.object != name
