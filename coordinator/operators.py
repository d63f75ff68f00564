"""Carry out the commands that operators send through the broker."""

from __future__ import annotations

import contextlib
import json
import logging
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from protofleet.coordinator.connection import CoordinatorConnection
from protofleet.coordinator.devices.bans import Bans
from protofleet.coordinator.devices.error_boundary import ErrorBoundary
from protofleet.coordinator.news import RunNews, nothing
from protofleet.coordinator.queue.commands import DONE, REFUSED, Sender
from protofleet.coordinator.request_form import FOLLOW, RequestHandler
from protofleet.protocol.link.base import FRAME_OVERHEAD
from protofleet.protocol.link.operators import CommandReceiver, ReceivedCommand
from protofleet.protocol.link.rate_limit import UNKNOWN_SENDER, TokenBucket
from protofleet.protocol.security.operators import OperatorRecord
from protofleet.protocol.transport.base import Arrived, Connected, Done, Item
from protofleet.protocol.wire.codec import MAX_PAYLOAD
from protofleet.protocol.wire.messages import CommandOutcome
from protofleet.protocol.wire.reasons import Rejected
from protofleet.runtime.event_loop import EventLoopApp, WorkThread

LAST_SECONDS: Final = 5.0  # Seconds that a process waits at its end until the operators have their results.
MOST_WAITING: Final = 4  # Largest number of commands of one operator that wait to be carried out.

log = logging.getLogger("protofleet.coordinator")


class BrokerOperators:
    """The operators who are enrolled, and their commands that wait.

    One thread carries out the commands in the order of their arrival, because the check of an experiment takes long.
    A command that finds no room is dropped; its sender sends it again.
    """

    def __init__(
        self, link: CommandReceiver, handle: RequestHandler, put: Callable[[Callable[[], None]], None], bans: Bans,
        news: RunNews | None = None,
    ) -> None:  # fmt: skip
        """Set up the operators; `put` makes the thread of the event loop call a function.

        `handle` may wait for the thread of the event loop.
        """
        self._link, self._handle, self._put, self._bans, self._news = link, handle, put, bans, news
        self._now, self._room = 0.0, 0
        self._waiting = Counter[str]()
        self._log_rate = TokenBucket(rate=1.0, burst=20.0)
        self._boundary = ErrorBoundary(bans, lambda: self._now, self._counted_as)
        self._thread: WorkThread | None = None  # The thread begins with the first command.
        link.rate_limiter.on_flood = self._flooded

    @property
    def are_waiting(self) -> bool:
        """Return whether an operator waits for the result of a command."""
        return bool(self._waiting)

    def is_for_us(self, topic: str) -> bool:
        return self._link.operator_of_topic(topic) is not None

    def unwanted(self, topic: str, of_devices: Callable[[str], bool] = lambda topic: False) -> bool:
        """Return whether messages on this topic are dropped unread. Any thread may call this method.

        `of_devices` decides about topics that no operator writes to.
        """
        if not self.is_for_us(topic):
            return of_devices(topic)
        name = self._link.operator_of_topic(topic) or ""
        if not self._bans.ignored:
            return False
        return self._bans.drops(name) or self._bans.drops(self._counted_as(name))

    def _counted_as(self, name: str) -> str:
        return name if name in self._link.operators else UNKNOWN_SENDER

    def _flooded(self, name: str) -> None:
        self._bans.ban(name, self._now)

    def connected(self, max_packet: int) -> None:
        self._room = min(max_packet, MAX_PAYLOAD) - FRAME_OVERHEAD

    def arrived(self, topic: str, frame: bytes, now: float) -> None:
        self._now = now
        try:
            with self._around(self._link.operator_of_topic(topic) or ""):
                self._accept(self._link.arrived(topic, frame, now))
        except Rejected as fault:
            if self._log_rate.take(now):
                log.warning("rejected a frame on the topic %.100r: %s", topic, fault)

    @contextlib.contextmanager
    def _around(self, name: str) -> Iterator[None]:
        """Catch an error of ours in the work for one operator, and pause the operator after an error."""
        with self._boundary.around(name):
            yield
        self._boundary.take_excluded()  # No run waits for an operator.

    def _accept(self, received: ReceivedCommand | None) -> None:
        if received is not None and self._waiting[received.operator.name] < MOST_WAITING:
            self._waiting[received.operator.name] += 1
            if self._thread is None:
                self._thread = WorkThread()
                self._thread.start()
            self._thread.put(lambda: self._carry_out(received))

    @property
    def wake_at(self) -> float:
        return self._news.wake_at if self._news else float("inf")

    def end_turn(self, now: float) -> None:
        self._now = now
        if self._news is not None:
            self._news.end_turn(now)

    def end(self, now: float) -> None:
        """Send all news that wait, because the process ends."""
        if self._news is not None:
            self._news.end(now)

    def _carry_out(self, received: ReceivedCommand) -> None:
        request = _request_in(received)
        try:
            answer = self._answer_of(received, request)
        except Exception:
            log.exception("a command of %s failed", received.operator.name)
            answer = {"verdict": "failed", "words": "the command failed; see the log of the coordinator"}
        self._put(lambda: self._send(received, request or {}, answer))

    def _answer_of(
        self, received: ReceivedCommand, request: Mapping[str, Any] | None
    ) -> Mapping[str, Any]:  # fmt: skip
        operator = received.operator
        if request is None:
            return {"verdict": REFUSED, "words": "the arguments of the command are not a JSON object"}
        sender = Sender(operator.grants, received.boot, received.newest, operator.holder)
        return self._handle(operator.name, request, sender)

    def _send(
        self, received: ReceivedCommand, request: Mapping[str, Any], answer: Mapping[str, Any]
    ) -> None:  # fmt: skip
        name = received.operator.name
        self._waiting[name] -= 1
        self._waiting += Counter()  # This removes the names whose count is 0.
        data = {key: value for key, value in answer.items() if key not in ("verdict", "words")}
        if self._news is not None and received.request.verb == FOLLOW and answer["verdict"] == DONE:
            data |= self._news.follow(
                name, request["run"], request.get("after"), request.get("epoch", 0), self._now
            )
        with self._around(name):
            packed = packed_within(data, self._room)
            self._link.answer(
                name, CommandOutcome(received.request.id, answer["verdict"], answer["words"], packed)
            )


def set_up_operators(
    connection: CoordinatorConnection, records: Mapping[str, OperatorRecord], is_enrolled: bool,
    heard: Mapping[str, tuple[int, int, str]], handle: RequestHandler,
    put: Callable[[Callable[[], None]], None], final_state: Callable[[str], str], only_run: str = "",
) -> tuple[BrokerOperators, RunNews]:  # fmt: skip
    """Return the operators of a coordinator and the news for them; call this before the connection begins.

    Nobody sends commands through the broker to a coordinator that is not enrolled.
    """
    link = connection.link
    receiver = CommandReceiver(link, records)
    receiver.remember(heard)
    news = RunNews(link.epoch, receiver.tell, final_state, lambda: put(nothing), only_run=only_run)
    if is_enrolled:
        connection.transport.subscribe(receiver.topics.all_commands)
    return BrokerOperators(receiver, handle, put, connection.context.bans, news), news


def _request_in(received: ReceivedCommand) -> dict[str, Any] | None:
    """Return the request of a command; None if its arguments are not a JSON object."""
    command = received.request
    try:
        args = json.loads(command.args)
    except (ValueError, RecursionError):
        return None
    if not isinstance(args, dict):
        return None
    return {"run": "", "reason": "", **args, "id": command.id.hex(), "verb": command.verb}


class OperatorLoop:
    """An app of the event loop whose process takes commands of operators, too.

    When the app has finished, the loop goes on until the operators have the results of their commands, for example
    of the command that has ended the run, but at most LAST_SECONDS.
    """

    def __init__(self, app: EventLoopApp[Item], operators: BrokerOperators) -> None:
        self._app, self._operators, self._now, self._ends_at = app, operators, 0.0, float("inf")

    @property
    def wake_at(self) -> float:
        return self._ends_at if self._app.finished else min(self._app.wake_at, self._operators.wake_at)

    @property
    def finished(self) -> bool:
        return self._app.finished and (not self._operators.are_waiting or self._now >= self._ends_at)

    def take(self, item: Item, now: float) -> None:
        match item:
            case Arrived(topic, frame) if self._operators.is_for_us(topic):
                if not self._app.finished:
                    self._operators.arrived(topic, frame, now)
                return
            case Connected(max_packet):
                self._operators.connected(max_packet)
        if isinstance(item, Done) or not self._app.finished:
            self._app.take(item, now)

    def wake(self, now: float) -> None:
        self._now = now
        if not self._app.finished and now >= self._app.wake_at:
            self._app.wake(now)

    def end_turn(self, now: float) -> None:
        self._app.end_turn(now)
        self._operators.end_turn(now)
        self._now = now
        if self._app.finished:
            self._operators.end(now)
            self._ends_at = min(self._ends_at, now + LAST_SECONDS)


def packed_within(data: Mapping[str, Any], room: int) -> bytes:
    """Return the data as JSON; shorten its list, so that the JSON has at most `room` bytes.

    The first runs or devices and the newest commands stay, and `left_out` counts the others.
    """
    rows: list[Any]
    key, all_rows = next(
        ((key, data[key]) for key in ("runs", "devices", "commands") if key in data), ("", [])
    )
    kept = len(all_rows)
    while len(packed := json.dumps(data, allow_nan=False).encode()) > room:
        if not kept:
            return b"{}"
        kept //= 2
        rows = all_rows[:kept] if key != "commands" else all_rows[len(all_rows) - kept :]
        data = {**data, key: rows, "left_out": len(all_rows) - kept}
    return packed
