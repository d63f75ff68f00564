"""Carry out what a coordinator that leads does about other processes that have its key or its name."""

from __future__ import annotations

import logging
from collections.abc import Callable

from protofleet.coordinator.context import ProcessContext
from protofleet.coordinator.leading.leadership import CUT_SECONDS, MOST_CUTS, Leadership
from protofleet.coordinator.leading.look import NEVER, Blocked, LookResult, Rank, Taken
from protofleet.coordinator.leading.standby import Looked
from protofleet.coordinator.spool.epochs import epoch_file
from protofleet.protocol.link.base import Received
from protofleet.protocol.link.standby import SeenState
from protofleet.protocol.transport.base import Disconnected
from protofleet.protocol.wire.messages import State, StepDown
from protofleet.protocol.wire.printable import printable
from protofleet.runtime.command.errors import OutrankedError, RunError, SteppedDownError

log = logging.getLogger("protofleet.coordinator")

# Seconds of a connection that another client may have ended without a word of the broker. Such a client comes back
# within its longest pause, which is 30 s. The end of a longer connection is probably a fault of the network.
SHORT_SECONDS = 60.0


class Leader:
    """The part of a coordinator that knows whether this process still leads the federation.

    `end` ends the process with an error. `say_birth` and `say_here` publish the state of the coordinator.
    """

    def __init__(
        self, context: ProcessContext, end: Callable[[RunError], None], say_birth: Callable[[], None],
        say_here: Callable[[], None],
    ) -> None:  # fmt: skip
        self._context, self._link = context, context.link
        self._end, self._say_birth, self._say_here = end, say_birth, say_here
        self._rules = Leadership(Rank(self._link.epoch, self._link.who))
        self._connected_at = NEVER
        self._asked_by = ""  # The process that has asked this one to end.
        # Makes another thread look who leads, which then calls a function on this thread. Without it, this process
        # cannot look.
        self.look: Callable[[Rank, Callable[[Looked | Exception], None]], None] | None = None
        self.reconnect: Callable[[], None] = lambda: None

    @property
    def wake_at(self) -> float:
        return self._rules.wake_at

    def wake(self, now: float) -> None:
        if self._rules.gives_birth(now):
            log.warning(
                "another state had replaced the birth of this coordinator, so the birth is sent again"
            )
            self._say_birth()

    def connected(self, now: float) -> None:
        self._connected_at = now

    # Methods for messages of other processes with the key of the coordinator.

    def state_received(self, received: Received, state: State, retained: bool, now: float) -> None:
        if self._rules.rank.is_below(SeenState(received.epoch, received.run, state, retained)):
            self._outranked(SeenState(received.epoch, received.run, state, retained))
        else:
            self._rules.state_seen(received.epoch, state, retained, now)

    def probed(self, now: float) -> None:
        if self._rules.answers_probe(now):
            self._say_here()

    def asked_to_end(self, asked: StepDown) -> None:
        """Note the request of another process, if it is for this coordinator."""
        if self._rules.is_asked(asked.epoch):
            self._asked_by = printable(asked.by) or "another process"

    def end_turn(self) -> None:
        """End the process if another one has asked for it. All that this turn has written is committed."""
        if by := self._asked_by:
            self._asked_by = ""
            self._context.announce(State(False, "another coordinator takes over"))
            self._end(SteppedDownError(f"this coordinator has ended in good order, because {by} takes over"))

    def _outranked(self, by: SeenState) -> None:
        """End this process, because another coordinator of the federation takes precedence.

        This process sends nothing more, because the devices would ignore its messages.
        """
        epoch, who, is_there = by.epoch, by.state.who, by.state.online and not by.retained
        mine, theirs = self._link.epoch, f"epoch {epoch} and run {by.run or '?'}"
        known = epoch_file(self._context.bans.folder.parents[1], self._link.topics.federation)
        said = f"; the other is {printable(who)}" if who else ""
        if epoch == mine:
            words = (
                f"another coordinator of this federation was started in the same second and goes on with {theirs}; "
                f"only one may run{said}"
            )
        else:
            words = (
                f"a later coordinator conducts this federation: it has {theirs}, this one has epoch {mine}; only "
                f"one may run{said}"
            )
            if not is_there:  # The broker has stored the state, so its coordinator may be gone.
                words += f". Where there is no other, a clock was ahead: write {epoch} into {known} and start again"
        self._end(OutrankedError(words))

    # Methods for a connection that another client may have ended.

    def cut(self, lost: Disconnected, now: float) -> None:
        """Look who leads, and then connect again or end."""
        self._rules.ended()
        is_short, self._connected_at = now - self._connected_at < SHORT_SECONDS, NEVER
        if self.look is None:
            return

        def then(looked: Looked | Exception) -> None:
            if isinstance(looked, Exception):
                self._failed(looked)
            else:
                self._looked(looked.result, lost.taken_over or (is_short and looked.at_once))

        self.look(self._rules.rank, then)

    def _failed(self, error: Exception) -> None:
        """End the process after an unexpected error of the look; otherwise it would stay without a connection."""
        log.error("the look for another coordinator has failed", exc_info=error)
        self._end(RunError(f"this coordinator cannot ask whether another one leads: {error!r}"))

    def _looked(self, result: LookResult | None, by_other: bool) -> None:
        match result:
            case None:
                return
            case Taken(seen):
                self._outranked(seen)
                return
            case Blocked(reason):
                log.warning(
                    "this coordinator cannot ask whether another one leads, so it connects again: %s", reason
                )
        if by_other and self._rules.was_cut(self._context.now):
            minutes = CUT_SECONDS / 60
            self._end(
                RunError(
                    "another program keeps connecting to the broker under the name of the coordinator: it has ended "
                    f"the connection {MOST_CUTS + 1} times within {minutes:.0f} minutes, and it does not answer as a "
                    "coordinator of this federation; find that program and end it"
                )
            )
            return
        self.reconnect()
