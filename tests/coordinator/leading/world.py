"""Several coordinators and one broker, as a simulation: connections, wills, retained states and lost packets.

The coordinators use the rules of the product. Time is a number, and all delays are drawn from one seed.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable
from dataclasses import dataclass, field

from protofleet.coordinator.leading.leadership import Leadership
from protofleet.coordinator.leading.look import (
    Clear,
    Look,
    Passed,
    Rank,
    Reconnect,
    SendProbe,
    SendStepDown,
    Taken,
)
from protofleet.coordinator.leading.place import Place
from protofleet.protocol.link.standby import SeenState
from protofleet.protocol.wire.messages import CONNECTION_LOST, State

START = 1_790_000_000
NEVER = float("inf")


class Clock:
    def __init__(self) -> None:
        self.now = 0.0
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self._number = 0

    def after(self, seconds: float, call: Callable[[], None]) -> None:
        self._number += 1
        heapq.heappush(self._due, (self.now + seconds, self._number, call))

    def run(self, until: float) -> None:
        while self._due and self._due[0][0] <= until:
            self.now, _, call = heapq.heappop(self._due)
            call()
        self.now = until


@dataclass
class Session:
    """A connection with a client id; the broker forgets it when another one takes its client id."""

    name: str
    owner: Process
    will: SeenState | None = None
    is_over: bool = False


class Broker:
    """A broker with one topic for states and one for probes."""

    def __init__(self, clock: Clock, dice: random.Random, late_will: float = 0.0) -> None:
        self.clock, self.dice, self.late_will = clock, dice, late_will
        self.sessions: dict[str, Session] = {}
        self.retained: SeenState | None = None
        self.highest = 0

    def delay(self) -> float:
        return self.dice.uniform(0.001, 0.05)

    def connect(self, session: Session) -> None:
        if (older := self.sessions.get(session.name)) is not None:
            self.drop(older, cut=True)
        self.sessions[session.name] = session

    def drop(self, session: Session, cut: bool = False, silent: bool = False) -> None:
        """End a session. The broker publishes its will, sometimes late. The owner does not notice a silent end."""
        if session.is_over:
            return
        session.is_over = True
        if self.sessions.get(session.name) is session:
            del self.sessions[session.name]
        if (will := session.will) is not None:
            self.clock.after(self.dice.uniform(0.0, self.late_will), lambda: self.publish(will))
        if not silent:
            self.clock.after(self.delay(), lambda: session.owner.lost(session, cut))

    def publish(self, seen: SeenState, retain: bool = True) -> None:
        self.highest = max(self.highest, seen.epoch)
        if retain:
            self.retained = seen
        for session in self.sessions.values():
            self._deliver(session, seen)

    def _deliver(self, session: Session, seen: SeenState) -> None:
        def arrive() -> None:
            if not session.is_over:
                session.owner.state(session, seen)

        self.clock.after(self.delay(), arrive)

    def subscribe(self, session: Session) -> None:
        if self.retained is not None:
            kept = self.retained
            self._deliver(session, SeenState(kept.epoch, kept.run, kept.state, retained=True))

    def probe(self, session: Session, epoch: int = 0) -> None:
        """Pass a probe on, or a request to end if an epoch is given; tell the sender if no client listens."""
        if (leader := self.sessions.get("coordinator")) is not None and leader.owner.listens:
            owner = leader.owner
            self.clock.after(self.delay(), lambda: owner.asked(epoch))
        else:
            self.clock.after(0.06, lambda: session.is_over or session.owner.nobody_listens(session))


@dataclass
class Disk:
    """The part of a process that survives it."""

    host: str
    epoch: int = 0
    claims: list[int] = field(default_factory=list)


class Process:
    """A coordinator from its start to its end."""

    listens = True

    def __init__(
        self, broker: Broker, disk: Disk, take_over: bool = False, behind: int = 0, set_up: float = 0.0
    ) -> None:  # fmt: skip
        self.broker, self.clock, self.disk = broker, broker.clock, disk
        self.rank = Rank(0, "")
        self.who = f"{disk.host} pid 1 folder 00000001 start {broker.dice.getrandbits(32):08x}"
        self.state_of_process, self.why, self.behind = "looking", "", behind
        self.leadership: Leadership | None = None
        self.session: Session | None = None
        self.is_reachable, self.cleared_after, self.set_up = True, NEVER, set_up
        self.claimed: Rank | None = None
        self.began = self.clock.now
        self._look(take_over=take_over)

    # -- the look

    def _look(self, take_over: bool = False) -> None:
        place, dice = Place.of(self.who), self.broker.dice
        rank = self.leadership.rank if self.leadership else None
        self.look = Look("lab", place, rank, take_over, dice, self.claimed if rank is None else None)
        self._connect("standby")

    def _look_again(self) -> None:
        if self.is_alive:
            self.state_of_process = "looking"
            self._look()

    def _connect(self, name: str, will: SeenState | None = None) -> None:
        if not self.is_reachable:
            self.clock.after(1.0, lambda: self._connect(name, will))
            return
        session = self.session = Session(name, self, will)

        def accepted() -> None:
            if self.state_of_process == "ended" or session is not self.session:
                return
            self.broker.connect(session)
            self.broker.subscribe(session)
            if name == "standby":
                self._do(self.look.connected(self.clock.now))
            else:
                self.state_of_process = "leading"
                self._say(online=True)

        self.clock.after(self.broker.delay(), accepted)

    def _do(self, orders: list[object]) -> None:
        session = self.session
        for order in orders:
            match order:
                case SendProbe():
                    self.clock.after(self.broker.delay(), lambda: self.broker.probe(session))
                case SendStepDown(epoch):
                    self.clock.after(
                        self.broker.delay(), lambda epoch=epoch: self.broker.probe(session, epoch)
                    )
                case Reconnect():
                    self._connect("standby")
        if self.look.result is not None:
            self._looked()
        elif self.look.wake_at < NEVER:
            look = self.look
            self.clock.after(max(0.0, look.wake_at - self.clock.now), lambda: self._wake(look))

    def _wake(self, look: Look) -> None:
        if look is self.look and look.result is None and look.wake_at <= self.clock.now and self.is_alive:
            self._do(look.wake(self.clock.now))

    def _looked(self) -> None:
        self._hang_up()
        match self.look.result:
            case Taken(_, words):
                self._end(f"taken: {words}")
            case Passed(by):
                self._end(f"passed by epoch {by.epoch}")
            case Clear(highest) if self.claimed is None:
                self.cleared_after = self.clock.now - self.began
                clock = START + int(self.clock.now) - self.behind
                self.disk.epoch = max(clock, self.disk.epoch + 1, highest + 1)
                self.disk.claims.append(self.disk.epoch)
                self.claimed = Rank(self.disk.epoch, self.who)
                self.state_of_process = "setting up"
                self.clock.after(self.set_up, self._look_again)
            case Clear() if self.leadership is None:
                self.leadership = Leadership(self.claimed)
                self._lead()
            case Clear():
                self._lead()
            case blocked:
                self._end(f"blocked: {blocked.reason}")

    def nobody_listens(self, session: Session) -> None:
        if session is self.session and self.look.result is None and self.is_reachable:
            self._do(self.look.nobody_listens(self.clock.now))

    # -- the leader

    def _lead(self) -> None:
        self.session = None
        self._connect(
            "coordinator", SeenState(self.disk.epoch, "r", State(False, CONNECTION_LOST, self.who), False)
        )

    def _say(self, online: bool, reason: str = "") -> None:
        said = SeenState(self.disk.epoch, "r", State(online, reason, self.who), False)
        self.clock.after(self.broker.delay(), lambda: self.is_reachable and self.broker.publish(said))

    def asked(self, epoch: int) -> None:
        """Handle a probe, or a request to end."""
        if self.state_of_process != "leading" or not self.is_reachable:
            return
        assert self.leadership is not None
        if not epoch and self.leadership.answers_probe(self.clock.now):
            self._say(online=True)
        elif epoch and self.leadership.is_asked(epoch):
            self._say(online=False, reason="asked to end")
            self.state_of_process = "ending"
            self.clock.after(0.2, lambda: self._end("stepped down", in_order=True))

    # -- messages for a look and for a leader

    def state(self, session: Session, seen: SeenState) -> None:
        if session is not self.session or not self.is_reachable or not self.is_alive:
            return
        if session.name == "standby":
            if self.look.result is None:
                self._do(self.look.seen(seen, self.clock.now))
            return
        if self.state_of_process == "ending":
            return
        assert self.leadership is not None
        if self.leadership.rank.is_below(seen):
            self._end(f"outranked by epoch {seen.epoch}")
            return
        self.leadership.state_seen(seen.epoch, seen.state, seen.retained, self.clock.now)
        if (at := self.leadership.wake_at) < NEVER:
            self.clock.after(at - self.clock.now, lambda: self._give_birth(session))

    def _give_birth(self, session: Session) -> None:
        if session is self.session and self.is_alive and self.leadership.gives_birth(self.clock.now):
            self._say(online=True)

    def lost(self, session: Session, cut: bool) -> None:
        if session is not self.session or self.state_of_process in ("ending", "ended"):
            return
        self.session = None
        if session.name == "standby":
            self._do(self.look.lost(cut, self.clock.now))
            if not cut:
                self._connect("standby")
            return
        self.state_of_process = "looking"
        self.leadership.ended()
        if cut and self.leadership.was_cut(self.clock.now):
            self._end("cut too often")
        else:
            self._look()

    # -- the end

    @property
    def is_alive(self) -> bool:
        return self.state_of_process != "ended"

    def _hang_up(self) -> None:
        if self.session is not None:
            self.session.will = None
            self.broker.drop(self.session, silent=True)
            self.session = None

    def _end(self, why: str, in_order: bool = False) -> None:
        if not self.is_alive:
            return
        self.state_of_process, self.why = "ended", why
        if self.session is not None:
            if in_order:
                self.session.will = None
            self.broker.drop(self.session, silent=True)

    def kill(self) -> None:
        self._end("killed")

    def cut_off(self, seconds: float) -> None:
        """Let no packet through for a while; the broker notices it after the keepalive."""
        self.is_reachable, session = False, self.session

        def back() -> None:
            self.is_reachable = True
            if session is not None and session is self.session and self.is_alive:
                self.broker.drop(session, silent=True)
                self.lost(session, cut=True)

        self.clock.after(seconds, back)
        if session is not None:
            self.clock.after(
                45.0, lambda: None if self.is_reachable else self.broker.drop(session, silent=True)
            )


class World:
    """A broker, and hosts that each start a process again as a service manager does."""

    def __init__(self, seed: int, late_will: float = 0.0) -> None:
        self.dice, self.clock = random.Random(seed), Clock()
        self.broker = Broker(self.clock, self.dice, late_will)
        self.processes: list[Process] = []
        self.disks = [Disk(f"hall-{number}") for number in range(3)]

    def start(self, host: int, **more: object) -> Process:
        process = Process(self.broker, self.disks[host], **more)
        self.processes.append(process)
        return process

    def run(self, seconds: float) -> None:
        self.clock.run(self.clock.now + seconds)

    @property
    def leading(self) -> list[Process]:
        return [one for one in self.processes if one.state_of_process == "leading" and one.is_reachable]
