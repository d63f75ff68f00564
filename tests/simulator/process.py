"""One process on one host: it takes items in turn, on its own clocks, until it ends, dies or is stopped."""

from __future__ import annotations

import contextlib
import random
import sqlite3
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from protofleet.coordinator.service import CoordinatorService
from protofleet.coordinator.spool.spool import FencedError, RunMismatchError
from protofleet.protocol.storage.disk import Disk
from protofleet.protocol.storage.store import DamagedError
from protofleet.protocol.transport.address import BrokerError
from protofleet.protocol.transport.base import Arrived, Connected, Disconnected, Done, Item
from protofleet.protocol.wire.blocks import is_block
from protofleet.runtime.event_loop import EventLoopApp
from tests.crash.platter import FrailDisk, Platter
from tests.simulator.clock import Clock
from tests.simulator.line import Line

T = TypeVar("T")
SAID = (FencedError, RunMismatchError, DamagedError, BrokerError)  # Errors that may end a process.
MOMENT = 0.0005  # Seconds that one item takes.
LONG_TURN = 0.02  # Seconds of a turn that takes several items, so that several items arrive in it.


class Killed(BaseException):
    """The death of the process at this instruction."""


@dataclass
class Host:
    """The clocks of a host. Wall clocks are wrong, and jump; monotonic clocks start anywhere."""

    clock: Clock
    wall_offset: float = 1.7e9
    drift: float = 1.0

    @property
    def is_behind(self) -> bool:
        return self.wall_offset < 1.7e9

    def wall(self) -> int:
        return max(0, int(self.wall_offset + self.clock.now))

    def set(self) -> None:
        """Set the wall clock to the right time, as an operator does."""
        self.wall_offset = 1.7e9


class Process:
    def __init__(self, clock: Clock, host: Host, dice: random.Random, name: str) -> None:
        self.clock, self.host, self.name, self.dice = clock, host, name, dice
        self.party: EventLoopApp[Item] | None = None
        self.line: Line | None = None
        self.worker = Worker(self, dice)
        self.disk: Disk = Mortal(self)
        self.alive, self.ended = True, ""  # `ended` says why it ended by itself.
        self.looked = 0
        self.doomed_step = ""  # The kind of step at which it dies; if empty, any kind.
        self.epoch = 0  # The epoch of the coordinator that it has heard last.
        self.too_far = 0  # The number of frames of a coordinator from the future.
        self.arrived = 0  # The number of frames that the party got.
        self.paused_until = 0.0
        self.doom = -1  # It dies before this many more steps that write to the disk or send a message.
        self.turn_items = 1  # The most items that it takes before its turn ends.
        self.watch: Callable[[Process], None] = lambda process: None
        self.exited: Callable[[Process], None] = lambda process: None
        self.committed: Callable[[Path], None] = lambda folder: None  # Called after each transaction.
        self._inbox: deque[Item] = deque()
        self._start_dice: random.Random | None = None
        self._stepping = False
        self._born, self._zero = clock.now, 1000.0 * dice.random()

    def start(self, party: EventLoopApp[Item], line: Line) -> None:
        self.party, self.line = party, line
        line.before_publish = self.maybe_die
        line.start()

    def time(self) -> float:
        return self._zero + (self.clock.now - self._born) * self.host.drift

    def tell(self, item: Item) -> None:
        if self.alive:
            self._inbox.append(item)
            self._soon(self._moment)

    def read_late(self, seconds: float, dice: random.Random) -> None:
        """Take no item for a while; then `Connected` has a random place among the items that have come."""
        self.paused_until, self._start_dice = self.clock.now + seconds, dice

    def _permute_inbox(self) -> None:
        dice, self._start_dice = self._start_dice, None
        items = list(self._inbox)
        last = next((i for i, item in enumerate(items) if isinstance(item, Disconnected)), len(items))
        place = next((i for i, item in enumerate(items[:last]) if isinstance(item, Connected)), None)
        if dice is not None and place is not None:
            items.insert(dice.randrange(last), items.pop(place))
            self._inbox = deque(items)

    def stop(self, until: float) -> None:
        """Stop the process as SIGSTOP does; time goes on without it."""
        self.paused_until = max(self.paused_until, until)

    def kill(self, power: bool = False) -> None:
        if self.alive:
            self.alive = False
            if self.line:
                self.line.kill(power)

    def maybe_die(self, step: str = "publish") -> None:
        if not self.alive:
            raise Killed
        if self.doom > 0 and self.doomed_step in ("", step):
            self.doom -= 1
            if self.doom == 0:
                raise Killed

    @property
    def _moment(self) -> float:
        return MOMENT if self.turn_items == 1 else LONG_TURN

    def _soon(self, seconds: float) -> None:
        if not self._stepping:
            self._stepping = True
            when = max(self.clock.now + seconds, self.paused_until)
            self.clock.at(when, f"{self.name} steps", self._step)

    def _step(self) -> None:
        self._stepping = False
        if not self.alive or self.party is None:
            return
        if self.clock.now < self.paused_until:
            self._soon(0.0)
            return
        self.guarded(self._work)
        if not self.alive:
            return
        if self.party.finished:
            self._leave()
        elif self._inbox:
            self._soon(self._moment)
        else:
            self._arm()

    def _work(self) -> None:
        assert self.party is not None
        party, now = self.party, self.time()
        with contextlib.ExitStack() as watched:
            for run in party.runs.values() if isinstance(party, CoordinatorService) else ():
                watched.enter_context(run.spool.index.detect_takeover())
            self._serve(party, now)

    def _serve(self, party: EventLoopApp[Item], now: float) -> None:
        if self._start_dice:
            self._permute_inbox()
        for _ in range(self.turn_items):
            if self._inbox and not party.finished:
                self._take(party, self._inbox.popleft(), now)
        if party.wake_at <= now and not party.finished:
            party.wake(now)
        party.end_turn(now)

    def _take(self, party: EventLoopApp[Item], item: Item, now: float) -> None:
        if isinstance(item, Arrived):
            self.arrived += 1
            ours = isinstance(party, CoordinatorService) and item.topic == party.link.topics.coord_state
            echo = ours and not is_block(item.frame)  # A block on this topic is a lie of another party.
            if self.line and not echo:  # A coordinator's own frame that comes back is not counted.
                self.line.count_in(item)
        party.take(item, now)

    def guarded(self, call: Callable[[], None]) -> None:
        """Run our own code; documented errors end the process with words, and any other error is a bug."""
        try:
            call()
        except Killed:
            self.clock.note(f"{self.name} dies here")
            self.kill(power=False)
            self.exited(self)
        except SAID as error:
            self.ended = f"{type(error).__name__}: {error}"
            self._leave()
        else:
            self.watch(self)

    def _leave(self) -> None:
        assert self.line is not None
        self.line.before_publish = lambda: None
        self.line.close()
        self.alive = False
        self.clock.note(f"{self.name} ends")
        self.watch(self)
        self.exited(self)

    def _arm(self) -> None:
        assert self.party is not None
        when = self.party.wake_at
        if when < float("inf"):
            due = self._born + (when - self._zero) / self.host.drift
            due = max(due, self.clock.now) + 1e-6
            self.clock.at(due, f"{self.name} wakes", lambda: self._bell())

    def _bell(self) -> None:
        if self.alive and self.party and not self.party.finished and self.party.wake_at <= self.time():
            self._soon(0.0)


class Mortal(Disk):
    """A disk that waits for no fsync; its owner may die at each of its steps."""

    def __init__(self, process: Process) -> None:
        super().__init__(durable=False)
        self._process = process

    def before_step(self, step: str, what: Path | str) -> None:
        self._process.maybe_die(step)

    def commit(self, db: sqlite3.Connection, path: Path, durable: bool = True) -> None:
        super().commit(db, path, durable)
        self._process.committed(path.parent)


class MortalAndFrail(FrailDisk):
    """A mortal disk from which a power cut takes unsynced data, or tears or flips it."""

    def __init__(self, process: Process, platter: Platter) -> None:
        super().__init__(platter)
        self._process = process

    def before_step(self, step: str, what: Path | str) -> None:
        self._process.maybe_die(step)

    def commit(self, db: sqlite3.Connection, path: Path, durable: bool = True) -> None:
        super().commit(db, path, durable)
        self._process.committed(path.parent)


class Worker:
    """A worker that does one job after another.

    A job writes its data when it begins or when it ends; the dice decide.
    """

    def __init__(self, process: Process, dice: random.Random) -> None:
        self._process, self._dice = process, dice
        self.seconds: Callable[[], float] = lambda: 0.1
        self._free = 0.0

    def submit(self, work: Callable[[], T], then: Callable[[T | Exception], None]) -> None:
        process, clock = self._process, self._process.clock
        begin = max(clock.now, self._free)
        self._free = begin + self.seconds()
        when = begin if self._dice.random() < 0.5 else self._free
        ready, name = self._free, process.name

        def do() -> None:
            if not process.alive:
                return
            if clock.now < process.paused_until:
                clock.at(process.paused_until, f"{name} works", do)
                return
            result: T | Exception
            try:
                result = work()
            except Killed:
                process.kill()
                process.exited(process)
                return
            except Exception as error:  # noqa: BLE001 - as a ThreadWorker does: `then` raises it again
                result = error
            clock.at(ready, f"{name} has worked", lambda: process.tell(Done(lambda: then(result))))

        clock.at(when, f"{name} works", do)
