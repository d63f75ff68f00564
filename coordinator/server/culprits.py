"""The search for updates that make the server half fail, by running the round again without some of them.

If the arithmetic of the method itself fails, the norms of the updates do not show which update is the cause.
So the round is tried on a new server half. The search uses only the state at the start of the round and the
updates on the disk, so a restarted coordinator finds the same updates.

The updates are added in groups, and the most suspected updates are added last. If the round fails with a group,
the group is divided into halves. Let n be the number of updates. Finding one update takes about 2 log2(n)
tries, or one try if it is the most suspected update, and never more than 2n. The devices that are kept are
always the majority.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field

from protofleet.coordinator.round.events import Blame, Blamed, Recovered
from protofleet.coordinator.server.outliers import Outlier, farthest, sizes_by_device, worst
from protofleet.coordinator.server.stepper import Stepper
from protofleet.coordinator.spool.index import RunMismatchError
from protofleet.coordinator.spool.spool import Accepted, SavedRound, Spool
from protofleet.methods.contract.base import Ask, Member
from protofleet.methods.contract.bridge import LazyPayload, to_numpy, to_torch
from protofleet.methods.contract.liveness import report_progress
from protofleet.protocol.wire.messages import Arrays
from protofleet.protocol.wire.names import EVALUATE
from protofleet.protocol.wire.reasons import Rejected
from protofleet.runtime.faults import is_ours

log = logging.getLogger("protofleet.coordinator")

Works = Callable[[frozenset[str]], bool]


@dataclass(frozen=True)
class FailedRound:
    """A round that failed, with its data from the disk."""

    past: Recovered
    state: Arrays  # State of the server half at the start of the round.
    members: Sequence[Member]
    # Phase -> device -> update. The phases are in their order in the round.
    closed: Mapping[str, Mapping[str, Accepted]]
    # Members of the next round, if the next round failed at its beginning. None if the failed round is still open.
    next_members: Sequence[Member] | None
    # Enrolled devices. The server half forgets the kept answers of all others, as it does in the round itself.
    enrolled: Collection[str] | None = None
    next_evaluates: bool = False  # True if the next round is the last evaluation.

    @staticmethod
    def load(
        spool: Spool, saved: SavedRound, members: Mapping[str, Member], next_cohort: Sequence[str] | None,
        enrolled: Collection[str] | None = None, next_evaluates: bool = False,
    ) -> FailedRound:  # fmt: skip
        if spool.damaged_answers:
            spool.delete_damaged_answers()
        past = saved.recovered
        known = {phase: spool.answers(past.round, phase) for phase in past.closed}
        closed = {
            phase: {d: known[phase][d] for d in devices if d in known[phase]}
            for phase, devices in past.closed.items()
            # Leave out the evaluation before a round, because the server half does not use the updates of an
            # evaluation.
            if phase != EVALUATE
        }
        next_members = None if next_cohort is None else [members[d] for d in next_cohort]
        cohort = [members[d] for d in past.cohort]
        return FailedRound(past, saved.state, cohort, closed, next_members, enrolled, next_evaluates)

    @property
    def round(self) -> int:
        return self.past.round

    @property
    def phase(self) -> str:
        """Return the last phase that is closed; "" if there is none."""
        return list(self.closed)[-1] if self.closed else ""

    def works(self, stepper: Stepper, phase: str, kept: frozenset[str]) -> bool:
        """Return whether the round succeeds if it uses, from this phase on, only updates of the devices `kept`."""
        report_progress()
        try:
            return not self._run(stepper, phase, kept)
        # The data on the disk are damaged, or belong to another coordinator, so no update has caused this error.
        except (Rejected, RunMismatchError):
            raise
        except Exception as error:
            if is_ours(error):
                raise
            return False

    def _run(self, stepper: Stepper, phase: str, kept: frozenset[str]) -> str:
        stepper.server.restore(to_torch(self.state))
        ask: Ask | None = stepper.begin(self.round, self.members, enrolled=self.enrolled)
        leaving = False
        for name, answers in self.closed.items():
            leaving |= name == phase
            given = {d: a for d, a in answers.items() if d in kept or not leaving}
            ask = stepper.send(given, self.enrolled)
            dict(stepper.server.monitor())
        fault = "" if ask else stepper.fault()
        if not (ask or fault) and self.next_members is not None:
            ask = stepper.begin(self.round + 1, self.next_members, self.next_evaluates, self.enrolled)
        if ask:
            to_numpy(ask.payload)
        return fault


@dataclass(frozen=True)
class Culprits:
    phase: str
    devices: tuple[str, ...]


class CulpritSearch:
    """The search for the updates that made a round fail.

    The search runs on the thread of the worker, and uses only data from the disk.
    """

    def __init__(self, new_stepper: Callable[[], Stepper], arrays: Callable[[Accepted], LazyPayload]) -> None:
        self._new_stepper, self._arrays = new_stepper, arrays

    def find(self, blame: Blame, failed: FailedRound | None) -> Blamed:
        """Find the devices whose updates made a round fail.

        `failed` is None if the round is not on the disk any more.
        """
        if failed is None or not failed.closed:
            past = failed.past if failed else Recovered(blame.round, 0, ())
            return Blamed(past, "", words=f"{blame.why}; no answer to round {blame.round} is known any more")
        try:
            sizes = sizes_by_device(failed.closed[failed.phase], self._arrays)
            if blame.trial:
                return one_more(blame, failed, farthest(sizes))
            if blame.server_half and not self._works_with_all(failed):
                return self._by_trial(blame, failed, farthest(sizes))
            return self._by_size(blame, failed, worst(sizes))
        # The data on the disk are damaged, or belong to another coordinator, so no update has caused this error.
        except (Rejected, RunMismatchError):
            raise
        except Exception as error:
            if is_ours(error):
                raise
            log.exception("the updates cannot be compared because of an error, so none of them can be blamed")
            return Blamed(failed.past, failed.phase, words=f"{blame.why}; its answers cannot be compared")

    def _works_with_all(self, failed: FailedRound) -> bool:
        return failed.works(self._new_stepper(), failed.phase, frozenset(failed.closed[failed.phase]))

    def _by_trial(self, blame: Blame, failed: FailedRound, suspicion: Mapping[str, Outlier]) -> Blamed:
        found = self._culprits(failed, suspicion, blame.aside)
        if found is None:
            words = f"{blame.why}; it is so without any minority of the answers to round {blame.round} too"
            return Blamed(failed.past, failed.phase, words=words)
        words = f"{blame.why}; it was tried, and is not so without {', '.join(found.devices)}"
        return Blamed(failed.past, found.phase, found.devices, words, tried=True)

    def _by_size(self, blame: Blame, failed: FailedRound, one: Outlier | None) -> Blamed:
        if one is None:
            words = f"{blame.why}; no answer to round {blame.round} can be told from the others"
            return Blamed(failed.past, failed.phase, words=words)
        where = f"of the answers to round {blame.round} this one is farthest from the others"
        return Blamed(failed.past, failed.phase, (one.device,), f"{blame.why}; {where}: {one.words}")

    def _culprits(
        self, failed: FailedRound, suspicion: Mapping[str, Outlier], aside: Mapping[int, Sequence[str]]
    ) -> Culprits | None:
        """Return the devices whose updates must be left out, and the phase from which they are left out.

        Return None if these devices are at least half of the cohort, or if the updates are not the cause.
        """
        in_hand = failed.next_members is None
        for phase in [*failed.closed][::-1] if in_hand else [failed.phase]:
            before = aside.get(failed.round, ())
            known = [device for devices in aside.values() for device in devices]
            order = sorted(
                failed.closed[phase],
                key=lambda d: (known.count(d), suspicion[d].ratio if d in suspicion else 0.0, d),
            )
            most = (len(order) + len(before) - 1) // 2 - len(before)
            log.warning(
                "the coordinator is trying round %d without some of its %d updates of phase %s; at most %d of these "
                "updates may be put aside",
                failed.round, len(order), phase, max(0, most),
            )  # fmt: skip
            if found := GroupTest(self._trial_of(failed, phase), most).left_out(order):
                return Culprits(phase, tuple(sorted(found)))
        return None

    def _trial_of(self, failed: FailedRound, phase: str) -> Works:
        return lambda kept: failed.works(self._new_stepper(), phase, kept)


def one_more(blame: Blame, failed: FailedRound, suspicion: Mapping[str, Outlier]) -> Blamed:
    """Choose one update that was not left out before.

    Prefer a device whose updates were put aside in other rounds. If there is no such device, choose the update that
    differs most from the other updates.
    """
    closed = failed.closed[failed.phase]
    left = [device for device in closed if device not in blame.tried]
    left = left or ([*closed] if blame.endless else [])
    if not left or len(closed) + bool(blame.tried) < 2:
        words = f"{blame.why}; it is so without any one of the answers to round {blame.round} too"
        return Blamed(failed.past, failed.phase, words=words)
    known = [device for devices in blame.aside.values() for device in devices]

    def rank(device: str) -> tuple[int, float, str]:
        return -known.count(device), -suspicion[device].ratio if device in suspicion else 0.0, device

    one = min(left, key=rank)
    words = f"{blame.why}; its answers are left out one at a time, now that of {one}"
    return Blamed(failed.past, failed.phase, (one,), words, trial=True)


@dataclass
class GroupTest:
    """A group test: it finds the updates that must be left out so that a round works."""

    works: Works
    most: int  # Largest number of updates that may be left out.
    _left_out: list[str] = field(default_factory=list)
    # Devices whose updates are used -> whether the round works with them.
    _results: dict[frozenset[str], bool] = field(default_factory=dict)

    def left_out(self, order: Sequence[str]) -> list[str]:
        """Return the devices whose updates must be left out so that the round works.

        Return an empty list if more than `most` updates would be left out. `order` begins with the least
        suspected device.
        """
        if self.most < 1:
            return []
        self._results[frozenset(order)] = False
        self._grow(self._grow([], order[:-1]), order[-1:])
        return self._left_out if len(self._left_out) <= self.most else []

    def _grow(self, core: Sequence[str], more: Sequence[str]) -> Sequence[str]:
        both = [*core, *more]
        if len(self._left_out) > self.most or not more or self._works_with(frozenset(both)):
            return both
        if len(more) == 1:
            self._left_out += more
            return core
        half = (len(more) + 1) // 2
        return self._grow(self._grow(core, more[:half]), more[half:])

    def _works_with(self, kept: frozenset[str]) -> bool:
        if kept not in self._results:
            self._results[kept] = self.works(kept)
        return self._results[kept]
