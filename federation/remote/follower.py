"""Follow a run through the broker: the coordinator sends each new log line of the run.

Other commands with the same keys go through this connection, because two connections with one name end each other.
"""

from __future__ import annotations

import os
import pwd
import queue
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from protofleet.federation.remote.boot import keys_in_use
from protofleet.federation.remote.client import NOBODY, REPEAT_SECONDS, WAIT_SECONDS, unknown_effect
from protofleet.federation.remote.connection import (
    UNHEARD,
    OperatorConnection,
    command_of,
    response_of,
)
from protofleet.federation.remote.settings import OperatorSettings
from protofleet.protocol.link.operators import ReceivedNews
from protofleet.protocol.settings.reader import SettingsError
from protofleet.protocol.transport.address import BrokerError
from protofleet.protocol.transport.base import Arrived, Connected, Denied, Disconnected, Done
from protofleet.protocol.wire.messages import MOST_ARGS, CommandOutcome, CommandRequest
from protofleet.runtime import credentials
from protofleet.runtime.command.errors import RunError
from protofleet.runtime.control_socket import listening

# Seconds between two questions. The coordinator sends news for 60 s, and one that has started needs a question first.
RENEW_SECONDS: Final = 10.0
GAP_SECONDS: Final = 1.0  # Least time between two questions about missing lines.
MOST_ASKED: Final = 8  # Number of the latest questions whose results count.
LAST_SECONDS: Final = (
    5.0  # Seconds after the end of the run in which the results of other commands may arrive.
)
# Number of questions, one every REPEAT_SECONDS, that no coordinator receives. After them, a coordinator that ends
# with its run is taken to have ended. A host that is started anew takes less time.
MOST_UNHEARD: Final = 24


ENDS_WITH_RUN: Final = (
    "this coordinator conducts only one run, and ends with it; the folder of the run shows how it has ended"
)


@dataclass(slots=True)
class OtherCommand:
    """A command of another process with the same keys."""

    command: CommandRequest
    reply: Callable[[Mapping[str, Any]], None]
    deadline: float
    send_at: float = 0.0
    times: int = 0  # Number of times that the command was sent.


@dataclass(slots=True)
class OtherCommands:
    """The commands of other processes that wait for their results."""

    connection: OperatorConnection
    waiting: dict[bytes, OtherCommand] = field(default_factory=dict)

    def carry_out(self, user: str, request: Mapping[str, Any]) -> Mapping[str, Any]:
        """Send the command of another process, and return its response. Any thread may call this method."""
        if user not in (f"local:{pwd.getpwuid(os.getuid()).pw_name}", "local:root"):
            return {"verdict": NOBODY, "words": f"{user} may not use the keys of another user"}
        plain = {key: value for key, value in request.items() if key != "seconds"}
        seconds = min(float(request.get("seconds", WAIT_SECONDS)), 2 * WAIT_SECONDS)
        try:
            command = command_of(plain)
        except (SettingsError, KeyError, ValueError) as error:
            return {"verdict": NOBODY, "words": str(error)}
        replies: queue.SimpleQueue[Mapping[str, Any]] = queue.SimpleQueue()
        other = OtherCommand(command, replies.put, time.monotonic() + seconds)
        self.connection.put(Done(lambda: self.waiting.update({command.id: other})))
        try:
            return replies.get(timeout=seconds + 1)
        except queue.Empty:
            return {"verdict": NOBODY, "words": f"{self.connection.nobody}{unknown_effect(command)}"}

    @property
    def wake_at(self) -> float:
        return min((min(one.send_at, one.deadline) for one in self.waiting.values()), default=float("inf"))

    def send_due(self, now: float) -> None:
        for one in list(self.waiting.values()):
            if now >= one.deadline:
                self._fail(one, f"{self.connection.nobody}{unknown_effect(one.command)}")
            elif now >= one.send_at:
                self.connection.send(one.command)
                one.send_at, one.times = now + REPEAT_SECONDS, one.times + 1

    def arrived(self, result: CommandOutcome) -> None:
        if (one := self.waiting.pop(result.id, None)) is not None:
            try:
                one.reply(response_of(result))
            except RunError as error:
                one.reply({"verdict": NOBODY, "words": str(error)})

    def unheard(self) -> None:
        for one in list(self.waiting.values()):
            # A coordinator may have received a command that was sent before.
            end = (
                ", and nothing is queued; start the coordinator"
                if one.times < 2
                else unknown_effect(one.command)
            )
            self._fail(one, f"{self.connection.nobody}{end}")

    def _fail(self, one: OtherCommand, words: str) -> None:
        del self.waiting[one.command.id]
        one.reply({"verdict": NOBODY, "words": words})


def follow_run(
    settings: OperatorSettings, run: str, say: Callable[[str], None],
    words_of: Callable[[Mapping[str, Any]], str],
) -> str | None:  # fmt: skip
    """Say each new line of a run until the run is over, and return its final state, or "" if it is refused.

    Return None at once if another process with the same keys follows a run.
    """
    folder, enrolment = Path(settings.enrolled), credentials.of_operator(settings.enrolled)
    with keys_in_use(folder, or_served=True) as are_ours:
        if not are_ours:
            return None
        connection = OperatorConnection(settings, *enrolment)
        others = OtherCommands(connection)
        try:
            with listening(folder, others.carry_out, 2 * MOST_ARGS):
                return NewsReader(connection, run, say, words_of, others).follow()
        finally:
            connection.close()


class NewsReader:
    def __init__(
        self, connection: OperatorConnection, run: str, say: Callable[[str], None],
        words_of: Callable[[Mapping[str, Any]], str], others: OtherCommands,
    ) -> None:  # fmt: skip
        """Set up the follower; `words_of` returns the words of a run's state."""
        self._connection, self._run, self._say, self._words_of = connection, run, say, words_of
        self._others = others
        self._epoch, self._last = (
            0,
            0,
        )  # The coordinator whose lines are counted, and its newest line that was said.
        self._asked = deque[bytes](maxlen=MOST_ASKED)
        self._ask_at, self._ask_again_at = float("inf"), 0.0
        self._was_connected = self._has_answered = self._is_cut = self._is_over = False
        self._ends_with_run, self._unheard, self._reason = False, 0, ""
        self._end: str | None = None

    def follow(self) -> str:
        self._connection.connect()
        give_up_at = time.monotonic() + WAIT_SECONDS
        while self._end is None:
            now = time.monotonic()
            if not self._has_answered and now >= give_up_at:
                raise RunError(self._connection.nobody)
            if now >= self._ask_at:
                self._ask(now)
            if self._was_connected:
                self._others.send_due(now)
            wake_at = min(self._ask_at, self._others.wake_at if self._was_connected else now + 1.0)
            self._take(self._connection.next(min(wake_at - now, REPEAT_SECONDS)), time.monotonic())
        self._wait_for_results(time.monotonic() + LAST_SECONDS)
        return self._end

    def _wait_for_results(self, deadline: float) -> None:
        """Wait for the results of other commands, for example of the command that has ended the run."""
        while self._others.waiting and (now := time.monotonic()) < deadline:
            match self._connection.next(deadline - now):
                case Arrived(topic, frame):
                    result = self._connection.read(topic, frame)
                    if isinstance(result, CommandOutcome):
                        self._others.arrived(result)
                case None | Denied() | Disconnected():
                    return

    def _ask(self, now: float) -> None:
        place = {"epoch": self._epoch, "after": self._last} if self._epoch else {}
        command = command_of({"verb": "follow", "run": self._run, "reason": "", **place})
        self._asked.append(command.id)
        self._connection.send(command)
        self._ask_at = now + REPEAT_SECONDS

    def _take(self, item: object, now: float) -> None:
        match item:
            case Connected():
                self._was_connected, self._ask_at = True, now
            case Arrived(topic, frame):
                match self._connection.read(topic, frame):
                    case ReceivedNews() as news if news.run == self._run:
                        self._heard(news, now)
                    case CommandOutcome(id=name) as result if name in self._asked:
                        self._answered(response_of(result), now)
                    case CommandOutcome() as result:
                        self._others.arrived(result)
            case Denied(_, reason) if reason == UNHEARD:
                self._others.unheard()
                self._cut(RunError(f"{self._connection.nobody}"))
                self._unheard += 1
                if self._ends_with_run and self._unheard >= MOST_UNHEARD:
                    seconds = MOST_UNHEARD * REPEAT_SECONDS
                    self._say(f"nobody has answered for {seconds:.0f} s; {ENDS_WITH_RUN}")
                    self._end = ""
            case Denied(_, reason):
                raise BrokerError(f"the command cannot be sent: {reason}")
            case Disconnected(reason, final):
                if final or not self._was_connected:
                    raise BrokerError(reason)
                self._ask_at = float("inf")
                self._cut(BrokerError(reason))
            case Done(call):
                call()

    def _cut(self, error: Exception) -> None:
        """Say once that nobody answers; raise the error if nobody has ever answered."""
        if not self._has_answered:
            raise error
        if not self._is_cut:
            self._say(f"{error}; waiting for it")
        self._is_cut = True

    def _answered(self, state: Mapping[str, Any], now: float) -> None:
        if state["verdict"] != "done":
            self._say(str(state["words"]))
            self._end = "" if state["verdict"] in ("refused", "denied") else None
            return
        self._ask_at, self._unheard = now + RENEW_SECONDS, 0
        self._ends_with_run = bool(state.get("only_run"))
        begins, self._has_answered = not self._has_answered, True
        if state["epoch"] != self._epoch:
            # A coordinator that has started while we follow sends its lines from the first one.
            self._epoch, self._last = state["epoch"], state["line"] if begins else 0
        self._skip_to(state["oldest"])
        # The lines of a run that is over come first. If they do not come, the next answer ends the wait for them.
        ends = bool(state.get("over")) and (self._last >= state["line"] or self._is_over)
        self._is_over = bool(state.get("over"))
        is_new = bool(state["reason"]) and state["reason"] != self._reason
        self._reason = state["reason"]
        if begins or self._is_cut or ends or (is_new and not self._is_over):
            self._say(self._words_of(state))
        self._is_cut = False
        if ends:
            self._end = str(state["state"])

    def _skip_to(self, number: int) -> None:
        """Say how many lines before this number cannot be shown any more."""
        if (lost := number - 1 - self._last) > 0:
            self._say(f"{lost} lines are lost; the log of the coordinator has them")
            self._last = number - 1

    def _heard(self, heard: ReceivedNews, now: float) -> None:
        news = heard.news
        is_gap = heard.epoch != self._epoch or news.first > self._last + 1
        if is_gap and not news.over:
            if now >= self._ask_again_at:
                self._ask_at, self._ask_again_at = now, now + GAP_SECONDS
            return
        self._skip_to(news.first)
        for line in news.lines[self._last + 1 - news.first :]:
            self._say(line)
        self._last = max(self._last, news.first + len(news.lines) - 1)
        if news.over:
            self._say(news.over)
            self._end = news.over
