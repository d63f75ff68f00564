"""The topics on which a coordinator receives messages of other processes that have its key.

A later coordinator publishes its state. A process that does not lead yet asks whether another process leads.
"""

from __future__ import annotations

from protofleet.protocol.link.base import Received
from protofleet.protocol.link.clocks import Clock, days
from protofleet.protocol.security.envelope import Header, contents, verified
from protofleet.protocol.security.keys import Identity, Keys
from protofleet.protocol.wire import codec
from protofleet.protocol.wire.codec import TaskId
from protofleet.protocol.wire.messages import Message, Probe, State, StepDown
from protofleet.protocol.wire.names import COORDINATOR
from protofleet.protocol.wire.printable import printable
from protofleet.protocol.wire.reasons import Reason, Rejected


def opened_by_own_key(keys: Keys, federation: str, frame: bytes) -> tuple[Header, Message]:
    """Return the header and the message of a frame that a coordinator with these keys has signed.

    Raise Rejected for all other frames, and for a sealed message: no such message is sealed.
    """
    header, start, _ = verified(frame, {COORDINATOR: keys.public})
    if header.federation != federation:
        raise Rejected(Reason.WRONG_FEDERATION, header.federation[:64])
    message, _ = codec.decode(header.kind, contents(frame, header, start, None), COORDINATOR, TaskId())
    return header, message


class OwnTopic:
    """The reader of the messages that coordinators of the federation send, this coordinator included."""

    def __init__(self, me: Identity, federation: str, who: str, clock: Clock) -> None:
        self._me, self._federation, self._who, self._clock = me, federation, who, clock
        # True after this coordinator has received one of its own messages. This shows that it would also receive
        # the messages of a later coordinator.
        self.brings_own_messages = False

    def state_of_other(self, frame: bytes) -> Received | None:
        """Return the state of another coordinator, or a state that says that this one is offline; otherwise None."""
        header, message = opened_by_own_key(self._me.keys, self._federation, frame)
        self.brings_own_messages |= header.epoch == self._me.boot
        if not isinstance(message, State) or self._is_own(header, message):
            return None
        self._demand_not_ahead(header, message)
        return Received(COORDINATOR, message, header.run, header.epoch)

    def _is_own(self, header: Header, state: State) -> bool:
        return header.epoch == self._me.boot and state.online and state.who == self._who

    def _demand_not_ahead(self, header: Header, state: State) -> None:
        if seconds := self._clock.ahead(header.epoch) if header.epoch > self._me.boot else 0:
            raise Rejected(
                Reason.EPOCH_AHEAD,
                f"a coordinator ({printable(state.who) or 'at an unknown place'}) has sent epoch {header.epoch}, "
                f"which is {days(seconds)} ahead of this clock: one of the clocks is wrong; stop that coordinator",
            )

    def proven_epoch(self, frame: bytes) -> int:
        """Return the epoch of a state that a device has sent on, if this epoch is higher; otherwise return 0.

        Raise Rejected if this coordinator's key did not sign the state for this federation.
        """
        header, state = opened_by_own_key(self._me.keys, self._federation, frame)
        if not isinstance(state, State) or header.epoch <= self._me.boot:
            return 0
        self._demand_not_ahead(header, state)
        return header.epoch

    def from_standby(self, frame: bytes) -> Received:
        """Return the message of a process that does not lead yet.

        It has no boot and no sequence number, so it is not compared with earlier messages.
        """
        header, message = opened_by_own_key(self._me.keys, self._federation, frame)
        if header.recipient != COORDINATOR:
            raise Rejected(Reason.WRONG_RECIPIENT, f"a {header.kind} is for {header.recipient[:64]}")
        if not isinstance(message, (Probe, StepDown)):
            raise Rejected(Reason.MALFORMED, f"a {header.kind} of a standby, which sends only probes")
        return Received(COORDINATOR, message, header.run, header.epoch)
