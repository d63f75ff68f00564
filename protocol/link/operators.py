"""Receive the commands of operators, and send their results: the coordinator's end and the operator's end."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from protofleet.protocol.link.base import Link, kind_counted, unverified_header
from protofleet.protocol.link.clocks import Clock, days
from protofleet.protocol.link.coordinator import CoordinatorLink
from protofleet.protocol.link.rate_limit import RateLimiter
from protofleet.protocol.security.envelope import Header
from protofleet.protocol.security.keys import Identity, Keyring
from protofleet.protocol.security.operators import OperatorRecord
from protofleet.protocol.transport.base import Transport
from protofleet.protocol.wire import codec
from protofleet.protocol.wire.codec import Attachment
from protofleet.protocol.wire.messages import CommandOutcome, CommandRequest, Message, News
from protofleet.protocol.wire.names import COORDINATOR
from protofleet.protocol.wire.reasons import Reason, Rejected
from protofleet.protocol.wire.topics import Topics


@dataclass(frozen=True, slots=True)
class ReceivedCommand:
    """A command that passed every check of the link, and what was heard from its operator up to now."""

    operator: OperatorRecord
    request: CommandRequest
    boot: int
    newest: int  # newest sequence number of this boot


@dataclass(frozen=True, slots=True)
class ReceivedNews:
    """News that passed every check of the link, with their run and the epoch of their coordinator."""

    run: str
    epoch: int
    news: News


class CommandReceiver(Link):
    """The coordinator's end. It uses the connection, the keys and the sequence numbers of the link to the devices.

    Its replay windows and its rate limits are its own, so operators and devices cannot disturb each other.
    """

    def __init__(self, party: CoordinatorLink, operators: Mapping[str, OperatorRecord]) -> None:
        super().__init__(party.me, operators, party.topics, party.transport, party.sealed, party.clock)
        self.operators = operators
        self.rate_limiter = RateLimiter(operators)
        self._party = party

    def operator_of_topic(self, topic: str) -> str | None:
        """Return the only name that may send commands on this topic; None for other topics."""
        place = self.topics.parse(topic)
        return place.device if place and place.kind == "op_up" else None

    def arrived(self, topic: str, frame: bytes, now: float) -> ReceivedCommand | None:
        """Return the command in a frame, or None for a duplicate; raise Rejected if the frame has a fault."""
        meter, result = self._party.legacy.meter, "accepted"
        try:
            received = self._received(topic, frame, now)
            if received is None:
                result = "duplicate"
        except Rejected as fault:
            meter.rejected[fault.reason] += 1
            result = fault.reason.value
            raise
        finally:
            kind = kind_counted(unverified_header(frame))
            meter.count_message(self._party.unassigned.peer_direction, kind, result)
        return received

    def _received(self, topic: str, frame: bytes, now: float) -> ReceivedCommand | None:
        name = self.operator_of_topic(topic) or ""
        # A device may write to the topic of an operator with its own name, and pays as on its own topics.
        limiter = self.rate_limiter if name in self.operators else self._party.rate_limiter
        limiter.charge_frame(name, now)
        if (opened := self.open(topic, frame)) is None:
            return None
        _, message, _ = opened
        assert isinstance(message, CommandRequest)
        if (operator := self.operators.get(name)) is None:  # The enrolment has ended since the check.
            raise Rejected(Reason.UNKNOWN_SENDER, f"{name} is no operator any more")
        return ReceivedCommand(operator, message, *self.last_heard(name))

    def answer(self, operator: str, result: CommandOutcome) -> None:
        """Send a result, unless the enrolment of the operator has ended."""
        if (known := self.operators.get(operator)) is not None:
            frame = self._party.next_frame(result, "", (), operator, receive=known.receive)
            self.transport.publish(self.topics.results_of(operator), frame)

    def tell(self, operator: str, run: str, news: News) -> None:
        """Send news of a run, unless the enrolment of the operator has ended.

        Only the last news of a run have QoS 1. Other news may be lost, because the operator asks again after a gap.
        So they wait nowhere for an operator who is slow or gone.
        """
        if (known := self.operators.get(operator)) is not None:
            frame = self._party.next_frame(news, run, (), operator, receive=known.receive)
            self.transport.publish(self.topics.results_of(operator), frame, qos=1 if news.over else 0)

    def _check_header(self, header: Header, topic: str) -> None:
        if self.operator_of_topic(topic) != header.sender:
            raise Rejected(
                Reason.WRONG_TOPIC, f"a {header.kind} of {header.sender[:64]} must not be sent on {topic}"
            )
        if header.recipient != COORDINATOR:
            raise Rejected(Reason.WRONG_RECIPIENT, f"a command is for {header.recipient[:64]}")
        if header.boot > self.last_heard(header.sender)[0] and (seconds := self.clock.ahead(header.boot)):
            raise Rejected(
                Reason.BOOT_AHEAD,
                f"boot {header.boot} of {header.sender} lies {days(seconds)} ahead of the coordinator's clock",
            )

    def _check_content(self, message: Message, attachment: Attachment) -> None:
        if not isinstance(message, CommandRequest):
            raise Rejected(
                Reason.MALFORMED, f"an operator sends commands, not a {codec.KINDS[type(message)]}"
            )

    def _metric_names_of(self, header: Header) -> tuple[str, ...]:
        return ()


class CommandSender(Link):
    """The operator's end."""

    def __init__(
        self, me: Identity, keyring: Keyring, topics: Topics, transport: Transport, sealed: bool, clock: Clock
    ) -> None:  # fmt: skip
        super().__init__(me, keyring, topics, transport, sealed, clock)

    def send(self, command: CommandRequest) -> None:
        frame = self.next_frame(command, "", (), COORDINATOR)
        self.transport.publish(self.topics.commands_of(self.me.name), frame)

    def arrived(self, topic: str, frame: bytes) -> CommandOutcome | ReceivedNews | None:
        """Return the result or the news in a frame, or None for a duplicate; raise Rejected if it has a fault."""
        opened = self.open(topic, frame)
        if opened is None:
            return None
        header, message, _ = opened
        assert isinstance(message, (CommandOutcome, News))
        return ReceivedNews(header.run, header.epoch, message) if isinstance(message, News) else message

    def _check_header(self, header: Header, topic: str) -> None:
        if header.sender != COORDINATOR or topic != self.topics.results_of(self.me.name):
            raise Rejected(
                Reason.WRONG_TOPIC, f"a {header.kind} of {header.sender[:64]} came on {topic[:200]}"
            )
        if header.recipient != self.me.name:
            raise Rejected(Reason.WRONG_RECIPIENT, f"a result is for {header.recipient[:64]}")

    def _check_content(self, message: Message, attachment: Attachment) -> None:
        if not isinstance(message, (CommandOutcome, News)):
            raise Rejected(Reason.MALFORMED, f"a {codec.KINDS[type(message)]} is not for operators")

    def _metric_names_of(self, header: Header) -> tuple[str, ...]:
        return ()
