"""Whose answers a server half cannot go on with: found by running the round again without them.

Where the method's own arithmetic breaks, a norm tells nothing of whose answer it broke at. So the round is tried on a
fresh server half, from the state that it began with and the answers on the disk alone: what is found depends on
nothing else, and a coordinator that died meanwhile finds the same. The answers are added in groups, those that are
farthest from the others last, and a group that cannot be added is halved. One answer among n costs about 2 log2(n)
trials, or one where it is the one most suspected; never more than 2n. Who is left remains the majority.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from protofleet.coordinator.server.outliers import Outlier
from protofleet.coordinator.server.stepper import Stepper
from protofleet.coordinator.spool.index import RunMismatchError
from protofleet.coordinator.spool.spool import Accepted
from protofleet.methods.contract.base import Ask, Member
from protofleet.methods.contract.bridge import to_numpy, to_torch
from protofleet.methods.contract.liveness import report_progress
from protofleet.protocol.wire.messages import Arrays
from protofleet.protocol.wire.reasons import Rejected
from protofleet.runtime.faults import is_ours

log = logging.getLogger("protofleet.coordinator")

Works = Callable[[frozenset[str]], bool]


@dataclass(frozen=True)
class FailedRound:
    """A round that came to nothing, as the disk has it."""

    round: int
    state: Arrays  # of the server half, when the round began
    members: Sequence[Member]
    closed: Mapping[str, Mapping[str, Accepted]]  # phase -> device -> answer, in the order of the phases
    then: Sequence[Member] | None = None  # of the next round, where it is its beginning that fails
    in_hand: bool = False  # so its devices can still be asked a later phase once more

    @property
    def phase(self) -> str:
        """The last that is closed."""
        return list(self.closed)[-1] if self.closed else ""

    def works(self, stepper: Stepper, phase: str, kept: frozenset[str]) -> bool:
        """Whether the round comes to something when only these count, from that phase on."""
        report_progress()
        try:
            return not self._run(stepper, phase, kept)
        except (Rejected, RunMismatchError):  # of what is on the disk
            raise
        except Exception as error:
            if is_ours(error):
                raise
            return False

    def _run(self, stepper: Stepper, phase: str, kept: frozenset[str]) -> str:
        stepper.server.restore(to_torch(self.state))
        ask: Ask | None = stepper.begin(self.round, self.members)
        leaving = False
        for name, answers in self.closed.items():
            leaving |= name == phase
            ask = stepper.send({d: a for d, a in answers.items() if d in kept or not leaving})
            dict(stepper.server.monitor())
        fault = "" if ask else stepper.fault()
        if not (ask or fault) and self.then is not None:
            ask = stepper.begin(self.round + 1, self.then)
        if ask:
            to_numpy(ask.payload)
        return fault


@dataclass(frozen=True)
class Culprits:
    phase: str
    devices: tuple[str, ...]


def find_culprits(
    trial: FailedRound, make: Callable[[], Stepper], suspicion: Mapping[str, Outlier],
    aside: Mapping[int, Sequence[str]],
) -> Culprits | None:  # fmt: skip
    """Who must be left out of which phase; nobody is where that is no minority, or no matter of answers."""
    for phase in [*trial.closed][::-1] if trial.in_hand else [trial.phase]:
        before = aside.get(trial.round, ())
        known = [device for devices in aside.values() for device in devices]
        order = sorted(
            trial.closed[phase],
            key=lambda d: (known.count(d), suspicion[d].ratio if d in suspicion else 0.0, d),
        )
        most = (len(order) + len(before) - 1) // 2 - len(before)
        log.warning(
            "trying round %d without some of its %d answers to %s, of which at most %d may be put aside",
            trial.round, len(order), phase, max(0, most),
        )  # fmt: skip
        group = GroupTest(lambda kept, phase=phase: trial.works(make(), phase, kept), most)  # type: ignore[misc]
        if found := group.left_out(order):
            return Culprits(phase, tuple(sorted(found)))
    return None


@dataclass
class GroupTest:
    """Of answers with all of which together it does not work."""

    works: Works
    most: int  # that may be left out
    _out: list[str] = field(default_factory=list)
    _known: dict[frozenset[str], bool] = field(default_factory=dict)

    def left_out(self, order: Sequence[str]) -> list[str]:
        """Without whom it works, the least suspected first in `order`; nobody, if it takes too many."""
        if self.most < 1:
            return []
        self._known[frozenset(order)] = False
        self._grow(self._grow([], order[:-1]), order[-1:])
        return self._out if len(self._out) <= self.most else []

    def _grow(self, core: Sequence[str], more: Sequence[str]) -> Sequence[str]:
        both = [*core, *more]
        if len(self._out) > self.most or not more or self._tried(frozenset(both)):
            return both
        if len(more) == 1:
            self._out += more
            return core
        half = (len(more) + 1) // 2
        return self._grow(self._grow(core, more[:half]), more[half:])

    def _tried(self, kept: frozenset[str]) -> bool:
        if kept not in self._known:
            self._known[kept] = self.works(kept)
        return self._known[kept]
