"""The runs in which a device takes part, up to a limit, and the coordinator's messages that concern all of them.

If the coordinator leads one run at a time, only the first place is used, and it changes to the run of each message.
If the coordinator leads several runs, each place keeps its run until this run is over.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Final

from protofleet.edge_client.active_runs import ActiveRuns
from protofleet.edge_client.conversation.hello_exchange import NEVER, HelloExchange
from protofleet.edge_client.conversation.hello_timer import is_birth
from protofleet.edge_client.conversation.proof_timer import ProofTimer
from protofleet.edge_client.run_end import says_run_is_over
from protofleet.edge_client.run_follower import RunFollower
from protofleet.edge_client.state.file import RunEntry
from protofleet.edge_client.work_turns import WorkTurns
from protofleet.protocol.link.base import Received
from protofleet.protocol.link.device import DeviceLink
from protofleet.protocol.link.rate_limit import TokenBucket
from protofleet.protocol.link.run_link import RunLink
from protofleet.protocol.wire import forms
from protofleet.protocol.wire.messages import (
    Bye,
    Hello,
    Refusal,
    RoundStatus,
    State,
    Task,
    Welcome,
)
from protofleet.protocol.wire.name_list import first_names
from protofleet.runtime.logs import lines_of_run

log = logging.getLogger("protofleet.device")

# Function that makes the follower of a run from the run's link and name. The run is empty for the first follower.
MakeFollower = Callable[[DeviceLink, str], RunFollower]
# Function that makes the exchange of the hellos that belong to no run.
MakeExchange = Callable[[DeviceLink], HelloExchange]
# Replies to messages of runs that the device does not have: one each second, and a few at once.
REPLY_RATE: Final = 1.0
REPLY_BURST: Final = 4.0
NO_PLACE: Final = "no_place"  # first word of the bye of a device that takes part in as many runs as it may


class RunPlaces:
    def __init__(self, limit: int, turns: WorkTurns, active: ActiveRuns) -> None:
        """Create the places; `limit` is the largest number of runs at the same time."""
        self.limit, self._turns, self.active = limit, turns, active
        self._replies = TokenBucket(REPLY_RATE, REPLY_BURST)

    def fill(self, first: RunFollower, make: MakeFollower, make_lobby: MakeExchange, stays: bool) -> None:
        """Set the first follower, and continue the runs on the disk if the coordinator led several runs."""
        self.first, self._make, self._stays = first, make, stays
        self.followers = [first]
        first.context.leaves_run = partial(self._leave, first)
        first.run_end.ended = partial(self._ended, first)
        # The hellos that belong to no run are sent while the device could take on a run.
        self._make_lobby, self._lobby = make_lobby, make_lobby(RunLink(first.link, ""))
        self._proof = ProofTimer(first.link.me.name)
        table = first.state.table
        table.most_runs = self.limit
        if self.limit == 1:
            table.several = False
        elif table.several:
            self._become_several()

    # The runs.

    @property
    def live(self) -> list[RunFollower]:
        """Return the followers of the runs in which the device takes part."""
        return [one for one in self.followers if one.is_live]

    @property
    def capacity(self) -> int:
        """Return the number of runs that the device could still take on."""
        taken = self.live if self.active.several else self._kept()
        return max(0, self.limit - len(taken))

    def _kept(self) -> list[RunEntry]:
        return [entry for entry in self.first.state.file.runs if not entry.over]

    @property
    def working(self) -> str:
        """Return the run whose task the device works on, or ""."""
        return next((one.run.name for one in self.followers if one.tasks is self._turns.working), "")

    def named(self, run: str) -> RunFollower | None:
        if not self.active.several:
            return self.first
        return next((one for one in self.live if one.run.name == run), None)

    def complete(self, hello: Hello, run: str, saved: RunEntry) -> Hello:
        """Add to a hello of `run` what a coordinator of several runs needs."""
        if self.limit == 1 or (self.active.heard and not self.active.several):
            return hello
        answered = saved.last_round if run and saved.run == run else 0
        can = (*hello.can, forms.RUNS)
        return replace(hello, can=can, capacity=self.capacity, working=self.working, answered=answered)

    # Time and the connection.

    @property
    def _exchanges(self) -> list[HelloExchange]:
        """Return the exchanges that send hellos now."""
        if not self.active.several:
            return [self.first.hellos]
        lobby = [self._lobby] if self._takes_more else []
        return [*(one.hellos for one in self.live if not one.refused), *lobby]

    @property
    def _takes_more(self) -> bool:
        """Return whether the device would take on a further run now."""
        ready = not (self._lobby.backoff.paused or self.first.tasks.draining)
        return ready and self.capacity > 0

    @property
    def wake_at(self) -> float:
        lobby = self._lobby.next_at if self._lobby in self._exchanges else NEVER
        return min([lobby, self._proof.at, *(one.wake_at for one in self._awake)])

    @property
    def _awake(self) -> list[RunFollower]:
        return [one for one in self.live if not one.refused] if self.active.several else [self.first]

    def wake(self, now: float) -> None:
        for follower in self._awake:
            follower.wake(now)
        if self._lobby in self._exchanges and now >= self._lobby.next_at:
            self._lobby.send()
        if now >= self._proof.at:
            self._proof.sent(now)
            (self._exchanges or [self._lobby])[0].prove_epoch()

    def lower_epoch_heard(self) -> None:
        """Prove the highest epoch soon, if a coordinator with a lower epoch has announced itself."""
        proof = self.first.link.proof
        if proof.is_due and self.first.context.connected:
            proof.is_due = False
            self._proof.lower_epoch_heard(self.first.context.now)

    def connected(self) -> None:
        waiting = {one.hellos: not one.tasks.idle for one in self.followers}
        for place, exchange in enumerate(self._exchanges or [self._lobby]):
            exchange.connected(waited_for=waiting.get(exchange, False), announces=place == 0)

    def disconnected(self) -> None:
        self._proof.disconnected()
        for exchange in (self._lobby, *(one.hellos for one in self.followers)):
            exchange.disconnected()

    def pause(self, why: str) -> None:
        for follower in self._awake:
            follower.hellos.pause(why)
        self._lobby.pause_silently()

    def resume(self) -> None:
        for exchange in (self._lobby, *(one.hellos for one in self._awake)):
            exchange.resume()

    def drain(self) -> None:
        for follower in self.followers:
            follower.tasks.drain()

    @property
    def drained(self) -> bool:
        return all(follower.tasks.drained for follower in self.followers)

    @property
    def largest_object(self) -> int:
        """Return the size in bytes of the largest arrays that the coordinator may fetch now."""
        return max(follower.tasks.delivery.largest_object for follower in self.followers)

    # The coordinator's messages.

    def received(self, received: Received) -> None:
        message = received.message
        if isinstance(message, Welcome) and message.instead:
            self._make_way(received, message)
        if isinstance(message, State):
            self._state_received(received, message)
        elif not self.active.several:
            self.first.handle(received)
        elif follower := self.named(received.run):
            if not follower.refused or says_run_is_over(message):
                follower.handle(received)
        else:
            self._stranger_received(received)

    def _state_received(self, received: Received, state: State) -> None:
        if state.online and self.limit > 1:
            self._coordinator_leads(state.runs)
        elif state.online:
            self.active.names = state.runs
        if not self.active.several:
            self.first.handle(received)
            return
        self.first.note_new_message()
        for follower in self._awake:
            follower.handle(replace(received, run=follower.run.name))
        self._lobby.received(state, received.epoch)
        if self._lobby not in self._exchanges:
            return
        if is_birth(state):
            self._lobby.coordinator_came(waited_for=False)
        elif isinstance(state.now, RoundStatus) and state.now.names(self.first.link.me.name):
            self._lobby.missed(by_name=state.now.waits is not None)

    def _coordinator_leads(self, runs: tuple[str, ...] | None) -> None:
        """Record the active runs, which may be another kind of coordinator than before."""
        before, self.active.names, self.active.heard = self.active.names, runs, True
        if runs is None and self.active.several:
            self._become_one()
        elif runs is not None and not self.active.several:
            self._become_several()
        elif before is not None and before != runs:
            for follower in self.live:
                if self.active.lacks(follower.run.name):
                    follower.hellos.send()  # If the run is over, the coordinator replies with `finished`.

    def _become_several(self) -> None:
        """Keep the run of the first place, and give a place to each other run on the disk."""
        first, table = self.first, self.first.state.table
        self.active.several = table.several = True
        first.link.follows = False
        kept = {entry.run: entry for entry in self._kept()}
        over = first.context.heard_file.last.over
        if over in kept and first.run.plan is None:
            first.state.of(over).end_run()
            del kept[over]
        if first.run.name in kept:
            first.state.follow(first.run.name)
        elif first.run.plan is None:
            self._vacate(first)
        first.link.run = first.run.name
        for run in kept:
            if self.named(run) is None:
                self._add(run)

    def _become_one(self) -> None:
        """Follow the run of each message in the first place, and keep the other runs on the disk only."""
        first = self.first
        for follower in [one for one in self.followers if one is not first]:
            self._remove(follower)
        self.active.several = first.state.table.several = False
        first.link.follows, first.link.run = True, first.link.heard_run

    def _stranger_received(self, received: Received) -> None:
        """Handle a message of a run that the device does not have."""
        match received.message:
            case Refusal() as refusal:
                self._lobby.refused(refusal)
            case Welcome() if self._takes_more:
                self._join(received)
            case Welcome() if not self.capacity:
                self._reply(received.run, self._full())
            case Task() if self._takes_more:
                self._reply(received.run, None)

    def _make_way(self, received: Received, welcome: Welcome) -> None:
        """Leave a run whose place another run takes: the same run, which goes on under another name on the wire."""
        old = self.named(welcome.instead) if self.active.several else None
        is_ready = not (self._lobby.backoff.paused or self.first.tasks.draining)
        if old is None or welcome.instead == received.run or not is_ready:
            return
        if self.named(received.run):
            old.state.end_run()
        else:
            self.first.state.table.replace(welcome.instead, received.run, welcome.keep == welcome.instead)
        self._remove(old)

    def _full(self) -> Bye:
        names = first_names([one.run.name for one in self.live], 8)
        reason = f"it takes part in {names}; its setting runs is {self.limit}"
        return Bye(f"{NO_PLACE}: {reason}")

    def _reply(self, run: str, bye: Bye | None) -> None:
        """Send a bye in a run that the device does not have, or a hello if there is no bye; keep nothing about it."""
        if not self._replies.take(self.first.context.now):
            return
        link = RunLink(self.first.link, run)
        if bye:
            link.send(bye)
        else:
            self._make_lobby(link).send()

    def _join(self, received: Received) -> None:
        follower = self._add(received.run)
        self._lobby.received(received.message, received.epoch)
        follower.handle(received)
        if self._lobby in self._exchanges:
            self._lobby.send()

    def _add(self, run: str) -> RunFollower:
        """Give a place to a run."""
        first = self.first
        if not first.is_live:
            first.state.follow(run)
            first.link.run = run
            first.tasks.change_run(run)
            first.run.over = first.refused = False
            return first
        link = RunLink(first.link, run)
        follower = self._make(link, run)
        follower.context.leaves_run = partial(self._leave, follower)
        follower.run_end.ended = partial(self._ended, follower)
        first.link.others.append(link)
        self.followers.append(follower)
        return follower

    def _vacate(self, first: RunFollower) -> None:
        first.tasks.change_run("")
        first.link.run = ""

    def _remove(self, follower: RunFollower) -> None:
        if follower is self.first:
            self._vacate(follower)
            return
        follower.tasks.leave_run()
        self.first.link.others.remove(follower.link)
        self.followers.remove(follower)

    def _ended(self, follower: RunFollower) -> None:
        """Free the place of a run that is over."""
        self._remove(follower)
        if not self.live and not self._stays:
            self.first.context.end(self.first.state.cannot_answer(""))
        elif self._lobby in self._exchanges and self.first.context.connected:
            self._lobby.send()

    def _leave(self, follower: RunFollower, problem: str) -> bool:
        """Leave one of several runs because of a problem; return False if the device has to end."""
        others = [one for one in self.live if one is not follower and not one.refused]
        if not self.active.several or not (others or self._stays):
            return False
        then = "goes on with its other runs" if others else "waits for other runs"
        with lines_of_run(follower.run.name):
            log.error("%s; the device %s", problem, then)
        if follower.state.saved.run == follower.run.name:
            follower.refused = True  # The run has a state on the disk, so it keeps its place.
        else:
            self._remove(follower)
        return True

    def leave_lobby(self, problem: str) -> bool:
        """Wait before the next hello that belongs to no run; return False if the device has to end."""
        if not (self.live or (self.active.several and self._stays)):
            return False
        seconds = self._lobby.back_off()
        log.error("%s; the device asks for other runs in %.0f s", problem, seconds)
        return True
