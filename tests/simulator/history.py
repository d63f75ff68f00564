"""The record of what became durable, in its order: observed on the disk, without the code under test."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from protofleet.coordinator.spool.spool import Accepted, Spool
from protofleet.edge_client.agent import Agent
from protofleet.edge_client.conversation.answer_delivery import PendingAnswer
from protofleet.edge_client.run_follower import RunFollower
from protofleet.edge_client.state.device import DeviceState
from protofleet.edge_client.state.file import Answer
from protofleet.edge_client.state.masked import MaskedState
from protofleet.edge_client.state.residuals import Residuals
from protofleet.methods.contract.base import Member
from protofleet.protocol.link.clocks import ahead
from protofleet.protocol.privacy.ledger import PrivateRelease
from protofleet.protocol.storage.disk import Disk
from protofleet.protocol.wire.messages import Arrays, Receipt
from protofleet.protocol.wire.names import EVALUATE
from tests.simulator.clock import Clock
from tests.simulator.hearing import Said
from tests.simulator.kept import check_answers, check_ended
from tests.simulator.process import Killed
from tests.simulator.promises import demand
from tests.support.run_policy import RunPolicy


def fingerprint(arrays: Arrays) -> str:
    whole = hashlib.sha256()
    for name in sorted(arrays):
        value = np.ascontiguousarray(arrays[name])
        whole.update(f"{name} {value.dtype} {value.shape}".encode() + value.tobytes())
    return whole.hexdigest()[:24]


@dataclass(frozen=True)
class Saved:
    epoch: int
    round: int
    attempt: int
    cohort: tuple[str, ...]
    members: dict[str, Member]
    state: str  # The fingerprint of the server half.
    at: float


@dataclass(frozen=True)
class Taken:
    """An accepted answer with its bytes."""

    answer: Accepted
    arrays: dict[str, np.ndarray]


@dataclass(frozen=True)
class Work:
    """One question that a device has worked on, as its disk remembers it."""

    answer: Answer
    payload: dict[str, np.ndarray]  # The arrays of the broadcast.
    half: str  # The fingerprint of the device's half afterwards.


@dataclass
class History:
    policy: RunPolicy
    clock: Clock
    said: Said
    epochs: list[int] = field(default_factory=list)
    saves: list[Saved] = field(default_factory=list)
    # The key is round, phase, device and base.
    taken: dict[tuple[int, str, str, bytes], Taken] = field(default_factory=dict)
    rows: dict[tuple[int, str, str], bytes] = field(default_factory=dict)  # Round, phase, device -> object.
    closed: dict[tuple[int, int, str], tuple[str, ...]] = field(default_factory=dict)  # round, attempt, phase
    works: dict[Path, list[Work]] = field(default_factory=lambda: defaultdict(list))  # By device folder.
    perhaps: dict[Path, Work] = field(default_factory=dict)  # Work whose device died while saving it.
    twins: set[str] = field(default_factory=set)  # Names of which a second life may answer differently.

    # Accepted answers that become durable with the next commit, by the spool's folder.
    uncommitted: dict[Path, list[Callable[[], None]]] = field(default_factory=lambda: defaultdict(list))

    last_training: int | None = None  # The last round of training, if budgets have ended the training.

    def end_early(self, spool: Spool) -> None:
        found = spool.early_end()
        demand(bool(found), "I1: a run without a cause ends early")
        if found:
            self.last_training = found.round

    @property
    def newest(self) -> int:
        return self.epochs[-1] if self.epochs else -1

    def committed(self, folder: Path) -> None:
        """Note that a transaction of the spool in this folder is over."""
        for note in self.uncommitted.pop(folder, []):
            note()

    def copied(self, card: Path, copy: Path) -> None:
        """Copy the history of a card.

        This includes the answer that its device was about to make durable when it died, if that is on the
        card.
        """
        self.works[copy] = list(self.works[card])
        if card in self.perhaps:
            self.perhaps[copy] = self.perhaps[card]

    def came_back(self, memory: DeviceState) -> None:
        """Check that a starting device still has what it had made durable."""
        done, perhaps = self.works[memory.folder], self.perhaps.pop(memory.folder, None)
        known = {answer.question for answer in memory.saved.answers}
        if perhaps and perhaps.answer.question in known:
            done.append(perhaps)
        words = f"I2: {memory.folder.name} went back a generation, and nothing of it was damaged"
        demand(memory.fallbacks == 0, words)
        words = f"I2: {memory.folder.name} has forgotten an answer that it had made durable"
        demand(not done or done[-1].answer.question in known, words)

    def check_disk(self, folder: Path) -> None:
        last = self.saves[-1] if self.saves else None
        check_answers(folder, self.rows, last.round if last else 1)
        if last:
            place = (last.round, last.attempt)
            ended = {phase: devices for (*where, phase), devices in self.closed.items() if (*where,) == place}
            check_ended(folder, last.round, ended)

    def written_by(self, epoch: int, what: str) -> None:
        demand(
            epoch == self.newest, f"I4: epoch {epoch} wrote {what} after epoch {self.newest} had taken over"
        )


def observed_spool(base: type[Spool], history: History) -> type[Spool]:
    class Observed(base):  # type: ignore[valid-type,misc]
        def __init__(self, folder: Path, durable: bool = True, disk: Disk | None = None) -> None:
            history.uncommitted.pop(folder, None)  # A process that died before its commit accepted nothing.
            history.check_disk(folder)
            super().__init__(folder, durable, disk)
            gone = {what: n for what, n in self.fallbacks.items() if n}
            demand(not gone, f"I2: the spool went back ({gone}), and nothing of it was damaged")

        def start_run(
            self, name: str, settings: str, clock: int, least: int = 0, exactly: int | None = None
        ) -> int:
            epoch = super().start_run(name, settings, clock, least, exactly)
            # An epoch that is ahead of the clock does not count, because a clock has been set since.
            believed = [each for each in history.epochs if not ahead(each, clock)]
            demand(epoch > max(believed, default=-1), f"I4: epoch {epoch} follows {believed}")
            history.epochs.append(epoch)
            self.mine = epoch
            return epoch

        def save(
            self,
            round: int,
            attempt: int,
            cohort: Sequence[str],
            members: Mapping[str, Member],
            state: Arrays,
            roster: Collection[str] = (),
            domains: Mapping[str, str] | None = None,
            fleet: int = 0,
            alone: bool = False,
        ) -> None:
            try:
                super().save(round, attempt, cohort, members, state, roster, domains, fleet, alone)
            except Killed:  # It may have died in the clean-up, after the round began.
                row = self._db.execute(
                    "SELECT round, attempt FROM checkpoint ORDER BY id DESC LIMIT 1"
                ).fetchone()
                if row == (round, attempt):
                    self._saved(round, attempt, cohort, members, state)
                raise
            self._saved(round, attempt, cohort, members, state)
            history.check_disk(self.folder)

        def _saved(
            self,
            round: int,
            attempt: int,
            cohort: Sequence[str],
            members: Mapping[str, Member],
            state: Arrays,
        ) -> None:
            history.written_by(self.mine, f"the start of round {round}")
            last = history.saves[-1] if history.saves else None
            if last:
                grows = (round, attempt) > (last.round, last.attempt) and round <= last.round + 1
                demand(grows, f"I3: round {last.round}.{last.attempt} is followed by {round}.{attempt}")
            demand(set(cohort) <= set(members), "I1: a cohort without its members")
            saved = Saved(
                self.mine, round, attempt, tuple(cohort), dict(members), fingerprint(state), history.clock.now
            )
            history.saves.append(saved)
            history.said.asks_no_more(self.mine)

        def rollback(self, round: int) -> None:
            super().rollback(round)
            attempt = history.saves[-1].attempt  # Without a next save it goes on without phases.
            for place in [place for place in history.closed if place[:2] == (round, attempt)]:
                del history.closed[place]
            history.said.asks_no_more(self.mine)

        def accept(
            self,
            round: int,
            phase: str,
            answer: Accepted,
            last_heard: tuple[int, int] = (0, 0),
            holder: str = "",
        ) -> None:
            before = self.answers(round, phase).get(answer.device)
            super().accept(round, phase, answer, last_heard, holder)
            known = self.answers(round, phase).get(answer.device)
            where = f"{answer.device}'s answer to round {round} {phase}"
            demand(known == answer, f"I2: {where} is not what the spool gives back")
            place = history.said.heard_of(self.mine, answer.device)
            history.uncommitted[self.folder].append(
                lambda: self._accepted(round, phase, answer, before, place)
            )

        def _accepted(
            self, round: int, phase: str, answer: Accepted, before: Accepted | None, heard: tuple[int, int]
        ) -> None:
            where = f"{answer.device}'s answer to round {round} {phase}"
            history.written_by(self.mine, where)
            key = (round, phase, answer.device, answer.base)
            if known := history.taken.get(key):
                # Attempts may ask A, then B, then A. Then the answer to B has replaced the first answer to A.
                replaced = before is not None and before.base != answer.base
                demand(replaced and known.answer == answer, f"I2: {where} was accepted twice")
            history.said.accepted(answer.device, heard)
            history.rows[round, phase, answer.device] = answer.object
            body = self.store(answer.device).open(answer.object)
            history.taken[key] = Taken(answer, {name: np.array(body[name]) for name in body})

        def close_phase(self, round: int, phase: str, devices: Sequence[str]) -> None:
            try:
                super().close_phase(round, phase, devices)
            except Killed:  # It may have died while it copied its index, after the phase ended.
                query = "SELECT devices FROM closed WHERE round = ? AND phase = ?"
                if self._db.execute(query, (round, phase)).fetchone():
                    self._closed(round, phase, devices)
                raise
            self._closed(round, phase, devices)

        def _closed(self, round: int, phase: str, devices: Sequence[str]) -> None:
            history.written_by(self.mine, f"the end of round {round} {phase}")
            last, mine = history.saves[-1], tuple(devices)
            attempt, evaluates = last.attempt, phase == EVALUATE
            ends_without_sum = phase.endswith(".unmask")  # Too few shares end the round without a sum.
            demand(
                evaluates or ends_without_sum or len(mine) >= history.policy.quorum,
                f"I1: {phase} of round {round} ends with {mine}, the quorum is {history.policy.quorum}",
            )
            # All present devices evaluate, also those that the cohort leaves out.
            asked = last.members if evaluates and round <= history.policy.rounds else last.cohort
            demand(set(mine) <= set(asked), f"I1: {mine} were not all asked in round {round}")
            demand(list(mine) == sorted(set(mine)), f"I1: {phase} of round {round} ends with {mine}")
            before = history.closed.setdefault((round, attempt, phase), mine)
            demand(before is mine, f"I3: {phase} of round {round} ended with {before}, and again with {mine}")
            history.said.asks_no_more(self.mine)

    return Observed


def observed_state(base: type[DeviceState], histories: Mapping[str, History]) -> type[DeviceState]:
    class Observed(base):  # type: ignore[valid-type,misc]
        def __init__(self, folder: Path, durable: bool = True, disk: Disk | None = None) -> None:
            super().__init__(folder, durable, disk)
            for run, history in histories.items():
                history.came_back(self.of(run))

        def begin(self, run: str, plan: str, epoch: int = 0) -> None:
            fresh = (self.saved.run, self.saved.plan) != (run, plan)
            super().begin(run, plan, epoch)
            # While the device has not heard that its coordinator leads several runs, a new run replaces all others.
            replaced = () if not fresh else [run] if self.table.several else histories
            for name in replaced:
                histories[name].works[self.folder].clear()

        def save_answer(
            self, answer: Answer, half: Arrays, epoch: int = 0, residuals: Sequence[Residuals] = (),
            is_reference: bool = False, masked: MaskedState | None = None, release: PrivateRelease | None = None,
        ) -> None:  # fmt: skip
            before = self.saved.epoch
            try:
                super().save_answer(answer, half, epoch, residuals, is_reference, masked, release)
            except Killed:  # The file may have its name already, without a sync of its folder.
                histories[self.saved.run].perhaps[self.folder] = self._work(answer, half)
                raise
            demand(
                self.saved.epoch >= before,
                f"I4: a device went back from epoch {before} to {self.saved.epoch}",
            )
            self._remembered(answer, half)

        def _remembered(self, answer: Answer, half: Arrays) -> None:
            work, done = self._work(answer, half), histories[self.saved.run].works[self.folder]
            demand(
                all(w.answer.question != answer.question for w in done),
                f"I2: {self.folder.name} has worked twice on round {answer.round} {answer.phase}",
            )
            done.append(work)

        def _work(self, answer: Answer, half: Arrays) -> Work:
            payload: dict[str, np.ndarray] = {}
            if answer.base:
                body = self.store.open(bytes.fromhex(answer.base))
                bytes_of = self.store.read(bytes.fromhex(answer.base), 0, sum(n for _, n in body.parts))
                demand(
                    hashlib.sha256(bytes_of).hexdigest() == answer.base,
                    "I5: a device has worked on a broadcast that is not what it was named",
                )
                payload = {name: np.array(body[name]) for name in body}
            return Work(answer, payload, fingerprint(half))

    return Observed


def observed_agent(base: type[Agent], histories: Mapping[str, History]) -> type[Agent]:
    class Observed(base):  # type: ignore[valid-type,misc]
        def __init__(self, *given: Any, **more: Any) -> None:
            super().__init__(*given, **more)
            follower = self.places.first
            take = follower.take_receipt
            follower.take_receipt = lambda receipt: let_go(
                follower, receipt, take, histories[follower.run.name]
            )

    return Observed


def let_go(
    follower: RunFollower, receipt: Receipt, take: Callable[[Receipt], None], history: History
) -> None:
    """Take a receipt, and demand that the answer that the device lets go of is on the coordinator's disk."""
    delivery = follower.tasks.delivery
    waiting: PendingAnswer | None = delivery.pending
    take(receipt)
    if waiting is None or delivery.pending is not None or receipt.verdict != "accepted":
        return
    a, me = waiting.answer, follower.link.me.name
    where = f"{me} let go of its answer to round {a.round} {a.phase}"
    # A receipt names no broadcast. So the receipt of an earlier attempt ends the device's wait too early. The
    # next hello brings the task again, and the device repeats its answer. It keeps it until the round ends.
    taken = {
        base.hex(): taken.answer.object.hex()
        for (number, *asked, base), taken in history.taken.items()
        if [number - taken.answer.staleness, *asked] == [a.round, a.phase, me]
    }
    if me not in history.twins:
        demand(bool(taken), f"I2: {where}, which nobody has on a disk")
        demand(taken.get(a.base, a.object) == a.object, f"I2: {where}, another one is on the disk")
