"""The topic on which a coordinator publishes its own state and receives the state of a later coordinator."""

from __future__ import annotations

from protofleet.protocol.link.base import Received
from protofleet.protocol.link.clocks import Clock, days
from protofleet.protocol.security.envelope import Header, contents, verified
from protofleet.protocol.security.keys import Identity
from protofleet.protocol.wire import codec
from protofleet.protocol.wire.codec import TaskId
from protofleet.protocol.wire.messages import Message, State
from protofleet.protocol.wire.names import COORDINATOR
from protofleet.protocol.wire.printable import printable
from protofleet.protocol.wire.reasons import Reason, Rejected


class OwnTopic:
    """The reader of the states that the coordinators of the federation publish, this coordinator included."""

    def __init__(self, me: Identity, federation: str, who: str, clock: Clock) -> None:
        self._me, self._federation, self._who, self._clock = me, federation, who, clock
        # True after this coordinator has received one of its own messages. This shows that it would also receive
        # the messages of a later coordinator.
        self.brings_own_messages = False

    def later_state(self, frame: bytes) -> Received | None:
        """Return the message if it is the state of a later coordinator; otherwise return None."""
        header, start, _ = verified(frame, {COORDINATOR: self._me.keys.public})
        self.brings_own_messages |= header.epoch == self._me.boot
        if header.federation != self._federation or header.epoch < self._me.boot:
            return None
        state = _message_in(frame, header, start)
        if not isinstance(state, State) or not self._is_later_coordinator(header, state):
            return None
        return Received(COORDINATOR, state, header.run, header.epoch)

    def proven_epoch(self, frame: bytes) -> int:
        """Return the epoch of a state that a device has sent on, if this epoch is higher; otherwise return 0.

        Raise Rejected if this coordinator's key did not sign the state for this federation.
        """
        header, start, _ = verified(frame, {COORDINATOR: self._me.keys.public})
        if header.federation != self._federation:
            raise Rejected(Reason.WRONG_FEDERATION, header.federation[:64])
        state = _message_in(frame, header, start)
        if not isinstance(state, State) or header.epoch <= self._me.boot:
            return 0
        return header.epoch if self._is_later_coordinator(header, state) else 0

    def _is_later_coordinator(self, header: Header, state: State) -> bool:
        """Return whether the state comes from a coordinator that replaces this one.

        If two coordinators were started in the same second, they have the same epoch. Then the coordinator
        with the higher `who` continues.
        """
        if header.epoch == self._me.boot:
            return state.who > self._who != ""
        if seconds := self._clock.ahead(header.epoch):
            raise Rejected(
                Reason.EPOCH_AHEAD,
                f"a coordinator ({printable(state.who) or 'at an unknown place'}) has sent epoch {header.epoch}, "
                f"which is {days(seconds)} ahead of this clock: one of the clocks is wrong; stop that coordinator",
            )
        return True


def _message_in(frame: bytes, header: Header, start: int) -> Message:
    message, _ = codec.decode(header.kind, contents(frame, header, start, None), COORDINATOR, TaskId())
    return message
