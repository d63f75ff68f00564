"""The runner of the server half, which runs each round as a generator on the thread of the worker.

After a crash, a new generator replays the round.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final

from protofleet.coordinator.round.events import Advance
from protofleet.coordinator.round.past_sums import PastSum
from protofleet.coordinator.round.robust import Robust
from protofleet.coordinator.secagg.phase import SummedPhases
from protofleet.coordinator.secagg.steps import AttemptEndedError
from protofleet.coordinator.server.first_state import start_with
from protofleet.coordinator.server.stepper import Stepper
from protofleet.coordinator.spool.broadcast_chain import BroadcastChain, ChainLink
from protofleet.coordinator.spool.index import RunMismatchError
from protofleet.coordinator.spool.spool import Accepted, Spool
from protofleet.coordinator.spool.update_reader import UpdateReader
from protofleet.methods.contract.base import Ask, Member, ServerHalf
from protofleet.methods.contract.bridge import to_numpy, to_torch
from protofleet.methods.contract.given import tensors_of
from protofleet.methods.contract.plan import Plan
from protofleet.methods.plugins.authors import AuthorError
from protofleet.protocol.settings.reader import SettingsError
from protofleet.protocol.wire.messages import Arrays, Manifest
from protofleet.protocol.wire.printable import printable
from protofleet.protocol.wire.reasons import Rejected
from protofleet.runtime.faults import is_ours
from protofleet.runtime.logs import place_of

log = logging.getLogger("protofleet.coordinator")


MAX_FAULT_LETTERS: Final = 300  # Records and log lines contain at most this many letters of an error message.


@dataclass(frozen=True, slots=True)
class Step:
    """The result of a step of the server half: its next task, or the end of the round if `ask` is None."""

    round: int
    ask: Ask | None
    manifest: Manifest | None = None
    figures: Mapping[str, float] = field(default_factory=dict)
    phase: str | None = None  # The phase whose updates were used. None if the step began the round.
    counted: Mapping[str, str] = field(default_factory=dict)  # Device -> hash of the update that was used.
    aside: Mapping[str, str] = field(default_factory=dict)  # Device -> reason why its update was not used.
    chain: tuple[ChainLink, ...] = ()  # The chain of broadcasts, in a run whose broadcasts are coded.
    fault: str = ""  # Reason why no device can go on from the result of the round, or "".
    # Reason why this attempt of the round has no result, so that the round begins again, or "".
    ended: str = ""
    # Devices whose answers the server half keeps; no later round asks them.
    kept: frozenset[str] = frozenset()
    unused: tuple[str, ...] = ()  # Devices whose kept answers hold nothing that the server half can use.
    removed: tuple[str, ...] = ()  # Devices whose kept answers this step has deleted.
    # The last sum of each stage, if the cohort of a later masked sum depends on it.
    sums: tuple[PastSum, ...] = ()
    without_sum: str = ""  # Reason why the round of a masked sum ends without a sum, or "".


class ServerRunner:
    def __init__(
        self, plan: Plan, spool: Spool, outlier: float = math.inf, confusion: int = 0,
        weight_cap: float = 0.0, weight_of: Callable[[int], float] = lambda staleness: 1.0,
        robust: Robust | None = None,
        summed: SummedPhases | None = None,
    ) -> None:  # fmt: skip
        self._spool, self.chain = spool, BroadcastChain(plan, spool.chain_store, spool.chain())
        self.reader = UpdateReader(spool, plan, self.chain)
        self.arrays = self.reader.accepted
        self.new_stepper = partial(
            Stepper,
            plan,
            outlier,
            confusion,
            self.arrays,
            weight_cap,
            lambda: spool.fleet_size,
            weight_of,
            robust,
            summed,
        )
        self._stepper, self._summed = self.new_stepper(), summed
        # True if the server half has forgotten a kept answer since the last save.
        self.has_forgotten = False
        self.errors = 0  # Number of errors of the server half during its use of updates.
        self._unwritten: Ask | None = None  # The task whose broadcast did not fit on the disk.
        if (saved := spool.server_state()) is not None:
            self.server.restore(to_torch(saved))
        elif (first := spool.first_state()) is not None:
            start_with(self.server, to_torch(first[0]), first[1].words())

    @property
    def server(self) -> ServerHalf:
        return self._stepper.server

    def state(self) -> Arrays:
        return to_numpy(tensors_of(self.server.state(), self.server.state))

    def restore(self) -> None:
        """Set the server half back to the state that was saved last."""
        self._stepper.forget()
        self._unwritten = None
        if (saved := self._spool.server_state()) is not None:
            self.server.restore(to_torch(saved))

    def step(
        self, advance: Advance, members: Sequence[Member], answers: Mapping[str, Accepted], block: int,
        enrolled: Collection[str] | None = None,
    ) -> Step:  # fmt: skip
        """Run the server half to its next task, on the thread of the worker.

        The caller passes all data from the spool's index as arguments, because this thread must not use the
        index. If the disk is full, the broadcast cannot be written. Then a retry writes the broadcast, but does
        not repeat the step. As a round begins or ends, the server half forgets the kept answers of devices that are
        not in `enrolled`; None means that it forgets none.

        If the updates of devices cannot have caused an error, the error is raised. After any other error of the
        server half, this method returns a step with a fault, and the updates count as the cause. A state that is not
        finite has the same result.
        """
        found = self._step_or_fault(advance, members, answers, block, enrolled)
        return replace(found, sums=self._summed.last_sums) if self._summed else found

    def _step_or_fault(
        self, advance: Advance, members: Sequence[Member], answers: Mapping[str, Accepted], block: int,
        enrolled: Collection[str] | None,
    ) -> Step:  # fmt: skip
        try:
            return self._step(advance, members, answers, block, enrolled)
        # The disk is damaged, the code of a plug-in is wrong, or the settings do not fit the devices. Updates are not
        # the cause.
        except (Rejected, RunMismatchError, AuthorError, SettingsError):
            raise
        except AttemptEndedError as end:
            return self._end_without_sum(advance, end)
        except Exception as error:
            nobody_has_answered = advance.round == 1 and advance.phase is None
            if is_ours(error) or nobody_has_answered:
                raise
            self.errors += 1
            where = f"after {advance.phase}" if advance.phase else "at its start"
            log.exception("the server half raised an error in round %d, %s", advance.round, where)
            place = place_of(error.__traceback__)
            words = printable(f"the server half raised {type(error).__name__}{place} {where}: {error}")
            words = words[:MAX_FAULT_LETTERS]
            aside = self._stepper.aside
            return Step(advance.round, None, None, phase=advance.phase, aside=aside, fault=words)

    def _end_without_sum(self, advance: Advance, end: AttemptEndedError) -> Step:
        """Return the step after an attempt without a sum.

        Devices that have helped to unmask a sum join no other attempt of this round. So the round ends with the model
        with which it began.
        """
        if not end.spent:
            return Step(advance.round, None, None, phase=advance.phase, ended=str(end))
        log.warning("round %d ends without a sum, and the model stays as it was: %s", advance.round, end)
        self.restore()
        return Step(advance.round, None, None, phase=advance.phase, without_sum=str(end))

    def _step(
        self, advance: Advance, members: Sequence[Member], answers: Mapping[str, Accepted], block: int,
        enrolled: Collection[str] | None,
    ) -> Step:  # fmt: skip
        given = {device: answers[device] for device in advance.devices}
        ask = self._unwritten or self._next(advance, members, given, enrolled)
        counted = {device: answer.object.hex() for device, answer in self._stepper.used(given).items()}
        common = (dict(self.server.monitor()), advance.phase, counted, self._stepper.aside)
        server = self.server
        kept, unused = frozenset(server.answered()), tuple(sorted(server.unused()))
        removed = self._stepper.forgotten
        if ask is None:
            fault = self._stepper.fault()
            return Step(
                advance.round, None, None, *common, fault=fault, kept=kept, unused=unused, removed=removed
            )
        self._unwritten = ask
        manifest = self._put_broadcast(advance, ask, block) if ask.payload else None
        self._unwritten = None
        chain = self.chain.links
        return Step(
            advance.round, ask, manifest, *common, chain=chain, kept=kept, unused=unused, removed=removed
        )

    def _put_broadcast(self, advance: Advance, ask: Ask, block: int) -> Manifest:
        if self.chain:
            return self._spool.put_coded_broadcast(self.chain.put(advance, ask), block)
        return self._spool.put_broadcast(to_numpy(ask.payload), block)

    def _next(
        self, advance: Advance, members: Sequence[Member], given: Mapping[str, Accepted],
        enrolled: Collection[str] | None,
    ) -> Ask | None:  # fmt: skip
        if advance.phase is not None:
            ask = self._stepper.send(given, enrolled)
        else:
            ask = self._stepper.begin(advance.round, members, advance.evaluate, enrolled, advance.attempt)
        self.has_forgotten |= bool(self._stepper.forgotten)
        for device in self._stepper.forgotten:
            log.info("the kept answer of %s is deleted, because its enrolment has ended", device)
        return ask
