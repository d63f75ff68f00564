"""Connect under the name of the standby, and ask which coordinator leads the federation."""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from protofleet.coordinator.leading.look import (
    Blocked,
    Look,
    LookResult,
    Order,
    Rank,
    Reconnect,
    SendProbe,
    SendStepDown,
)
from protofleet.coordinator.leading.place import Place
from protofleet.protocol.link.standby import StandbyLink, standby_client_id
from protofleet.protocol.security.keys import Keys
from protofleet.protocol.transport.address import BrokerAddress, BrokerError
from protofleet.protocol.transport.base import Arrived, Connected, Denied, Disconnected, Done, Item
from protofleet.protocol.transport.mqtt import Mqtt
from protofleet.protocol.transport.tls import problem_of
from protofleet.protocol.wire.reasons import Rejected
from protofleet.protocol.wire.topics import Topics
from protofleet.runtime.event_loop import as_exception, serve

log = logging.getLogger("protofleet.coordinator")

POLL_SECONDS = 0.2  # Seconds between two checks whether the look has to stop.


@dataclass(frozen=True, slots=True)
class Looked:
    """The end of a look."""

    result: LookResult | None  # None if the look was stopped
    # True if the broker has accepted the first connection. So neither the network nor the broker had failed.
    at_once: bool = True


@dataclass(frozen=True, slots=True)
class LookNeeds:
    """The connections of a look to its caller, which may be another thread."""

    is_stopped: Callable[[], bool]
    # Called when a connection or an attempt has ended, with the reason.
    on_lost: Callable[[str], None] = lambda reason: None
    on_connected: Callable[[], None] = lambda: None
    # Called twice a second; it may raise an error, which ends the look.
    check: Callable[[], None] = lambda: None


@dataclass(frozen=True)
class Standby:
    """A process that may look under the name of the standby."""

    federation: str
    keys: Keys
    address: BrokerAddress
    who: str  # where this process runs
    # Returns whether an epoch is so far ahead of the clock that devices ignore it.
    is_ahead: Callable[[int], bool] = field(default=lambda epoch: False)

    def look(
        self, needs: LookNeeds, rank: Rank | None = None, take_over: bool = False,
        claimed: Rank | None = None,
    ) -> Looked:  # fmt: skip
        """Ask which coordinator leads, and wait for the result."""
        rules = Look(self.federation, Place.of(self.who), rank, take_over, claimed=claimed)
        items: queue.SimpleQueue[Item] = queue.SimpleQueue()
        app = _LookApp(self, rules, items, needs)
        app.transport.connect()
        try:
            serve(app, items, time.monotonic)
        finally:
            app.transport.close()
        return Looked(rules.result, app.at_once)

    def look_beside(self, needs: LookNeeds, rank: Rank, then: Callable[[Looked | Exception], None]) -> None:
        """Look on another thread; that thread calls `then` with the result, or with an unexpected error.

        The result is Blocked if the TLS files of the standby cannot be used.
        """

        def work() -> None:
            result: Looked | Exception
            try:
                result = self.look(needs, rank)
            except (BrokerError, OSError) as error:
                result = Looked(Blocked(str(error), is_lasting=True), at_once=False)
            except BaseException as error:  # noqa: BLE001 - `then` gets the error
                result = as_exception(error)
            then(result)

        threading.Thread(target=work, name="standby", daemon=True).start()


class _LookApp:
    """The event loop of a look."""

    def __init__(
        self, standby: Standby, rules: Look, items: queue.SimpleQueue[Item], needs: LookNeeds
    ) -> None:
        self._standby, self._rules, self._needs = standby, rules, needs
        topics = Topics(standby.federation)

        def unheard(topic: str) -> None:
            items.put(Done(self._nobody_listens))

        self.transport = Mqtt(
            standby_client_id(standby.federation), standby.address, items,
            subscriptions=topics.standby_subscriptions(), on_unheard=unheard, retries_after_cut=False,
        )  # fmt: skip
        self._link = StandbyLink(standby.keys, topics, self.transport)
        self._now = 0.0
        self._was_accepted, self.at_once = False, True

    @property
    def finished(self) -> bool:
        return self._rules.result is not None or self._needs.is_stopped()

    @property
    def wake_at(self) -> float:
        return min(self._rules.wake_at, self._now + POLL_SECONDS)

    def take(self, item: Item, now: float) -> None:
        self._now, rules = now, self._rules
        match item:
            case Connected():
                self._was_accepted = True
                self._needs.on_connected()
                self._do(rules.connected(now))
            case Arrived(topic, frame, retained):
                self._arrived(topic, frame, retained)
            case Done(call):
                call()
            case Disconnected(reason, final, cut):
                self.at_once &= self._was_accepted
                if final:
                    rules.result = Blocked(reason, is_lasting=True)
                elif rules.rank is not None and (problem := problem_of(self._standby.address.tls)):
                    # A coordinator that leads does not wait for the files of its standby.
                    rules.result = Blocked(problem, is_lasting=True)
                else:
                    self._needs.on_lost(reason)
                    self._do(rules.lost(cut, now))
            case Denied(_, reason):
                rules.result = Blocked(reason, is_lasting=True)

    def wake(self, now: float) -> None:
        self._now = now
        self._needs.check()
        self._do(self._rules.wake(now))

    def end_turn(self, now: float) -> None:
        pass

    def _nobody_listens(self) -> None:
        self._do(self._rules.nobody_listens(self._now))

    def _arrived(self, topic: str, frame: bytes, retained: bool) -> None:
        try:
            seen = self._link.arrived(topic, frame, retained)
        except Rejected as fault:
            log.debug("a frame on %.100r is not a state of the coordinator: %s", topic, fault)
            return
        rules = self._rules
        may_be_ahead = rules.rank is None and (rules.claimed is None or not retained)
        if may_be_ahead or not self._standby.is_ahead(seen.epoch):
            self._do(rules.seen(seen, self._now))

    def _do(self, orders: list[Order]) -> None:
        for order in orders:
            match order:
                case SendProbe():
                    self._link.probe()
                case SendStepDown(epoch):
                    self._link.step_down(epoch, self._standby.who)
                case Reconnect():
                    self.transport.connect()
