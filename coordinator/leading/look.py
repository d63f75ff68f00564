"""Decide, before a process acts as the coordinator, whether another process leads the federation.

The process asks under the name of the standby. The rules have no clock and no connection: they get events with their
times, and return what to do.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Final, TypeAlias

from protofleet.coordinator.leading.place import Place, described
from protofleet.protocol.link.standby import SeenState
from protofleet.protocol.wire.messages import CONNECTION_LOST, State

NEVER: Final = float("inf")
PROBE_SECONDS: Final = 1.0  # Seconds between two probes; a coordinator answers once a second at most.
# Seconds for which a coordinator may answer, may connect again, or may end after a request.
ANSWER_SECONDS: Final = 5.0
# Seconds after which the broker has published the will of a coordinator that is not connected: its keepalive is 30 s,
# and a broker waits for one and a half times this.
WILL_SECONDS: Final = 60.0
# Seconds for which the answer of another process with our host name and folder may come: a container, for example.
TWIN_SECONDS: Final = 2.0
# Seconds for which the retained state may still arrive after the broker has confirmed the first probe.
RETAINED_SECONDS: Final = 0.1
# Seconds for which a coordinator may answer the second look of a start: it answers once a second at most.
CONFIRM_SECONDS: Final = 2.0
# Limits, in seconds, of the random pause after another process has connected as the standby.
CUT_SECONDS: Final = (2.0, 8.0)
MOST_CUTS: Final = 5  # Largest number of such pauses.


@dataclass(frozen=True, slots=True)
class SendProbe:
    """The order to ask which coordinator leads."""


@dataclass(frozen=True, slots=True)
class SendStepDown:
    """The order to ask the coordinator of this epoch to end."""

    epoch: int


@dataclass(frozen=True, slots=True)
class Reconnect:
    """The order to connect again as the standby."""


@dataclass(frozen=True, slots=True)
class Clear:
    """The result that no other coordinator leads. The next epoch must be above `highest`."""

    highest: int


@dataclass(frozen=True, slots=True)
class Taken:
    """The result that another coordinator leads."""

    by: SeenState
    words: str


@dataclass(frozen=True, slots=True)
class Passed:
    """The result of a second look that a coordinator which is gone has had precedence over the claimed epoch."""

    by: SeenState


@dataclass(frozen=True, slots=True)
class Blocked:
    """The result that this process cannot find out who leads."""

    reason: str
    is_lasting: bool = False  # True if the broker does not let this process ask


LookResult: TypeAlias = Clear | Taken | Passed | Blocked
Order: TypeAlias = SendProbe | SendStepDown | Reconnect


@dataclass(frozen=True, slots=True)
class Rank:
    """The precedence of a coordinator: the later epoch, and of one epoch the greater `who`."""

    epoch: int
    who: str

    def is_below(self, seen: SeenState) -> bool:
        return self.epoch < seen.epoch or (self.epoch == seen.epoch and "" < self.who < seen.state.who)


def is_orderly(state: State) -> bool:
    """Return whether a coordinator has said itself that it ends; otherwise the broker has published its will."""
    return not state.online and state.reason != CONNECTION_LOST


class Look:
    """The question whether another process leads, from the first connection to the result.

    `place` is the folder and host of this process, which holds the lock of the folder. A process that leads already
    and has lost its connection passes its `rank`. With `take_over`, the coordinator that answers first is asked to
    end. The second look of a start has the rank that was `claimed` after the first look, which has waited already.
    """

    def __init__(
        self, federation: str, place: Place | None, rank: Rank | None = None, take_over: bool = False,
        dice: random.Random | None = None, claimed: Rank | None = None,
    ) -> None:  # fmt: skip
        self._federation, self._place, self.rank, self._take_over = federation, place, rank, take_over
        self.claimed = claimed
        self._dice = dice or random.Random()
        self.result: LookResult | None = None
        self.wake_at = NEVER
        self._highest = 0
        self._newest: SeenState | None = None
        self._newest_at = self._connected_at = self._probe_at = self._connect_at = NEVER
        self._nobody_listens = False  # True if the broker has said so about the newest probe.
        self._asked: SeenState | None = None  # The coordinator that was asked to end.
        self._ends_by = NEVER
        self._cuts = 0

    def connected(self, now: float) -> list[Order]:
        """Handle a new connection, on which the state of the coordinator is subscribed."""
        self._connected_at = self._probe_at = now
        self._connect_at, self._nobody_listens = NEVER, False
        return self._go_on(now)

    def seen(self, state: SeenState, now: float) -> list[Order]:
        self._highest = max(self._highest, state.epoch)
        if self._newest is None or state.epoch >= self._newest.epoch:
            self._newest, self._newest_at = state, now
        if self.rank is not None:
            if self.rank.is_below(state):
                self._take(state)
        elif state.state.online and not state.retained:
            return self._answered(state, now)
        return self._go_on(now)

    def nobody_listens(self, now: float) -> list[Order]:
        """Handle the broker's word that no client has subscribed to probes."""
        self._nobody_listens = True
        return self._go_on(now)

    def lost(self, cut: bool, now: float) -> list[Order]:
        """Handle the end of the connection; `cut` is true if another process may have taken the standby's name."""
        self._connected_at = self.wake_at = NEVER
        if not cut or self.result:
            return []
        self._cuts += 1
        if self._cuts > MOST_CUTS:
            self.result = Blocked(
                f"another process has connected as the standby of {self._federation} {self._cuts} times while this "
                "process asked who leads"
            )
            return []
        self._connect_at = self.wake_at = now + self._dice.uniform(*CUT_SECONDS)
        return []

    def wake(self, now: float) -> list[Order]:
        if now >= self._connect_at:
            self._connect_at = self.wake_at = NEVER
            return [Reconnect()]
        return self._go_on(now)

    def _answered(self, state: SeenState, now: float) -> list[Order]:
        """Handle the answer of a coordinator that leads."""
        if self._take_over and self._asked is None:
            self._asked, self._ends_by = state, now + ANSWER_SECONDS
            return [SendStepDown(state.epoch), *self._go_on(now)]
        if self._asked is None or state.epoch > self._asked.epoch:
            self._take(state)
        return self._go_on(now)

    def _take(self, state: SeenState) -> None:
        way_out = "" if self._take_over or self.rank else "; --take-over ends it"
        self.result = Taken(state, described(state, self._federation) + way_out)

    def _go_on(self, now: float) -> list[Order]:
        if self.result is not None or self._connected_at == NEVER:
            self.wake_at = NEVER if self.result is not None else self.wake_at
            return []
        clear_at = self._clear_at()
        if now >= clear_at:
            self.result, self.wake_at = self._end_of_patience(), NEVER
            return []
        orders: list[Order] = []
        if now >= self._probe_at:
            self._probe_at = now + PROBE_SECONDS
            # A request to end may be lost, so it is repeated.
            orders = [SendStepDown(self._asked.epoch)] if self._asked else [SendProbe()]
        self.wake_at = min(clear_at, self._probe_at)
        return orders

    def _end_of_patience(self) -> LookResult:
        """Return the result when the time is over in which another coordinator could answer."""
        # Another coordinator may have claimed the same epoch in the same second.
        if self.claimed is not None and self._newest is not None and self._newest.epoch >= self.claimed.epoch:
            return Passed(self._newest)
        return Clear(self._highest)

    def _clear_at(self) -> float:
        """Return the time at which no other coordinator leads, if nothing more is heard."""
        newest, since = self._newest, self._connected_at
        if self.claimed is not None:
            if not self._nobody_listens:
                return since + CONFIRM_SECONDS
            return since if newest is not None else since + RETAINED_SECONDS
        if self._asked is not None:
            has_ended = newest is not None and newest.epoch == self._asked.epoch and not newest.state.online
            return since if has_ended else self._ends_by
        at = self._patience_ends() if self.rank is None else self._reconnect_at(self.rank)
        return min(at, since + ANSWER_SECONDS) if self._take_over else at

    def _reconnect_at(self, rank: Rank) -> float:
        """Return the time at which a coordinator that leads already may connect again."""
        newest, since = self._newest, self._connected_at
        if newest is None:
            return since + (RETAINED_SECONDS if self._nobody_listens else ANSWER_SECONDS)
        # The broker has not noticed yet that the own connection is lost.
        still_there = newest.state.online and rank == Rank(newest.epoch, newest.state.who)
        earlier_answers = newest.state.online and not newest.retained
        at_once = self._nobody_listens or still_there or earlier_answers
        return since if at_once else since + ANSWER_SECONDS

    def _patience_ends(self) -> float:
        newest, since = self._newest, self._connected_at
        if newest is None:
            return since + (RETAINED_SECONDS if self._nobody_listens else ANSWER_SECONDS)
        is_ours = self._place is not None and self._place.has_folder_of(newest.state.who)
        if is_orderly(newest.state) and not newest.retained:
            return since  # It has answered that it ends.
        if self._nobody_listens and (is_ours or is_orderly(newest.state)):
            return since
        if is_ours:
            # The process has ended, because this one holds the lock of its folder. But a container of the same name
            # would have another folder of this path.
            return since + TWIN_SECONDS
        if newest.state.online:
            return since + WILL_SECONDS
        return max(since, self._newest_at) + ANSWER_SECONDS
