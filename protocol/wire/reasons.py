"""Name the reasons why a received message was not used; each message is counted under one reason at most."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final


class Reason(str, Enum):
    """All reasons for which a message is not used.

    Each reason has its own counter and may cause an alert. MEANINGS explains each reason.
    """

    MALFORMED = "malformed"
    VERSION = "version"
    UNKNOWN_SENDER = "unknown_sender"
    BAD_SIGNATURE = "bad_signature"
    WRONG_TOPIC = "wrong_topic"
    WRONG_RECIPIENT = "wrong_recipient"
    NOT_SEALED = "not_sealed"
    NOT_FOR_US = "not_for_us"
    WRONG_FEDERATION = "wrong_federation"
    STALE_BOOT = "stale_boot"
    BOOT_AHEAD = "boot_ahead"
    STALE_EPOCH = "stale_epoch"
    EPOCH_AHEAD = "epoch_ahead"
    STALE_ROUND = "stale_round"
    BAD_BODY = "bad_body"
    TOO_LARGE = "too_large"
    BAD_BLOCK = "bad_block"
    UNKNOWN_OBJECT = "unknown_object"
    NO_ROOM = "no_room"
    FLOOD = "flood"
    BANNED = "banned"
    UNFIT = "unfit"
    NOT_INVITED = "not_invited"
    LATE = "late"
    EQUIVOCATION = "equivocation"
    BAD_CLAIM = "bad_claim"
    WRONG_ARRAYS = "wrong_arrays"
    WRONG_DTYPE = "wrong_dtype"
    WRONG_SHAPE = "wrong_shape"
    NOT_FINITE = "not_finite"
    OUT_OF_BOUNDS = "out_of_bounds"


# `python -m tools.pages.reasons` writes these texts into docs/protocol.md.
MEANINGS: Final[Mapping[Reason, str]] = {
    Reason.MALFORMED: "no valid frame, header or payload",
    Reason.VERSION: "another major version, or a suite that the receiver does not know",
    Reason.UNKNOWN_SENDER: "the receiver has no key for the sender's name",
    Reason.BAD_SIGNATURE: "the signature does not match the message and its sender",
    Reason.WRONG_TOPIC: "the header does not match the topic",
    Reason.WRONG_RECIPIENT: "the message is for another recipient",
    Reason.NOT_SEALED: "a message that is not sealed, to a party that requires sealed messages",
    Reason.NOT_FOR_US: "sealed to another key, or changed by a party that may sign",
    Reason.WRONG_FEDERATION: "a message of another federation",
    Reason.STALE_BOOT: "a message of an older process of the same sender",
    Reason.BOOT_AHEAD: (
        "a boot more than a day ahead of the coordinator's clock and higher than any boot before; a "
        "`hello` gets a `refusal`. If the device's clock was wrong, `protofleet enrol renew` lets "
        "the device start its count again"
    ),
    Reason.STALE_EPOCH: "a message of an older coordinator",
    Reason.EPOCH_AHEAD: "an epoch more than a day ahead of the clock and higher than any epoch before: a clock "
    "is wrong",
    Reason.STALE_ROUND: "a task of a round before the last round that the device has answered in this run",
    Reason.BAD_BODY: "tensors that cannot be decoded, or blocks that do not form the object",
    Reason.TOO_LARGE: "a payload or an object over its limit",
    Reason.BAD_BLOCK: "a block with a wrong length, index or hash",
    Reason.UNKNOWN_OBJECT: "a block of an object that the receiver is not fetching",
    Reason.NO_ROOM: "the receiver's disk, or its budget for updates, is full; the receiver asks again, or the "
    "sender repeats the message",
    Reason.FLOOD: "the sender has sent more than it may send at a time",
    Reason.BANNED: (
        "the sender is banned because it sent too much, or paused because of an internal error of the receiver; "
        "for at most a day, the receiver neither reads nor answers its messages"
    ),
    Reason.UNFIT: "a `hello` of a device that cannot take part; it gets a `refusal`",
    Reason.NOT_INVITED: "an `update` or a `want` of a device that was not asked",
    Reason.LATE: "an answer to a task that is no longer open; it gets a `receipt`",
    Reason.EQUIVOCATION: "a second, different answer to a task",
    Reason.BAD_CLAIM: "impossible values of `examples`, counts or `metrics`",
    Reason.WRONG_ARRAYS: "an array that was not asked for, or an array that is missing",
    Reason.WRONG_DTYPE: "an array whose dtype is not the requested one",
    Reason.WRONG_SHAPE: "an array whose shape is not the requested one",
    Reason.NOT_FINITE: "NaN or an infinity in an array",
    Reason.OUT_OF_BOUNDS: "a number in an array that is outside the requested bounds: a class, a count, a feature",
}


class DisconnectReason(str, Enum):
    """All reasons for which a device sends a Bye. A reason is the part of the Bye's text before the colon.

    Each reason has its own counter.
    """

    OUT_OF_MEMORY = "out_of_memory"  # the training ran out of memory; the device connects again later
    TRAINING_DIED = "training_died"  # the training died for another reason; the device connects again later
    WRONG_ARRAYS = "wrong_arrays"  # the device cannot use the arrays of a broadcast; it connects again later
    DRAINED = "drained"  # the device's operator has asked it to stop between two tasks
    # The device takes no work for a while, because its operator paused it or because it is too hot.
    PAUSED = "paused"
    SIGNAL = "signal"  # the device was stopped
    FINISHED = "finished"  # the run is over, and the device knows it
    CANNOT_FOLLOW = "cannot_follow"  # the plan requires something that the device cannot do
    # An update of the device is lost. Without the lost update, the device's next update would be wrong.
    DAMAGED = "damaged"
    OTHER = "other"


def disconnect_reason_of(reason: str) -> DisconnectReason:
    """Return the reason under which a Bye is counted."""
    word = reason.partition(":")[0]
    return (
        DisconnectReason(word)
        if word in {known.value for known in DisconnectReason}
        else DisconnectReason.OTHER
    )


class Rejected(ValueError):  # noqa: N818 - it reads as what happened: `except Rejected`
    """A fault of another party: the receiver drops the message, counts it and continues."""

    def __init__(self, reason: Reason, detail: str) -> None:
        super().__init__(f"{reason.value}: {detail}")
        self.reason, self.detail = reason, detail


@dataclass(frozen=True, slots=True)
class Problem:
    """The problem that causes a refusal of an update or a device: a reason for counters, and a message for people.

    Code that stores or sends a problem uses the message only.
    """

    reason: Reason
    message: str
