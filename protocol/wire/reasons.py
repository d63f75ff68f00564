"""Name the reasons why a received message was not used; each message is counted under one reason at most."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final


class Reason(str, Enum):
    """The reasons why a message is not used.

    The list is closed. Each reason has its own counter and may cause an alert. MEANINGS explains each reason.
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


# docs/protocol.md shows these texts; `python -m tools.pages.reasons` writes them.
MEANINGS: Final[Mapping[Reason, str]] = {
    Reason.MALFORMED: "not a frame, header or payload as specified",
    Reason.VERSION: "another major version, or a suite that is not read",
    Reason.UNKNOWN_SENDER: "no key for that name",
    Reason.BAD_SIGNATURE: "it was not signed so by its sender",
    Reason.WRONG_TOPIC: "header and topic do not belong together",
    Reason.WRONG_RECIPIENT: "for somebody else",
    Reason.NOT_SEALED: "readable by any broker, at a party that seals",
    Reason.NOT_FOR_US: "sealed to another key, or changed by one who may sign",
    Reason.WRONG_FEDERATION: "of another federation",
    Reason.STALE_BOOT: "an older process of the same sender",
    Reason.BOOT_AHEAD: (
        "a boot more than a day ahead of the coordinator's clock, above the highest one heard; a "
        "`hello` gets a `refusal`. Where the device's clock was wrong, `protofleet enrol renew` lets "
        "it count anew"
    ),
    Reason.STALE_EPOCH: "an older coordinator",
    Reason.EPOCH_AHEAD: "an epoch more than a day ahead of the clock, above the highest one heard: a clock is wrong",
    Reason.STALE_ROUND: "a task of a round before the last one answered in this run",
    Reason.BAD_BODY: "tensors that do not decode, or blocks that do not make the object",
    Reason.TOO_LARGE: "a payload or an object over its limit",
    Reason.BAD_BLOCK: "a block of a wrong length or index, or that does not match its hash",
    Reason.UNKNOWN_OBJECT: "a block of something that is not being fetched",
    Reason.NO_ROOM: "the receiver's disk, or its budget for answers, is full; it will be asked for or said again",
    Reason.FLOOD: "more than its sender may say at a time",
    Reason.BANNED: (
        "of a name that flooded, or that an error of the receiver's own met, a while ago: for a day "
        "at most, then it is heard again; nothing of it is looked at, and no answer given"
    ),
    Reason.UNFIT: "a `hello` of a device that cannot take part; it gets a `refusal`",
    Reason.NOT_INVITED: "an `update` or a `want` of a device that was not asked",
    Reason.LATE: "an answer to a question that is not open; it gets a `receipt`",
    Reason.EQUIVOCATION: "another answer to a question that is answered already",
    Reason.BAD_CLAIM: "`examples`, counts or `metrics` that cannot be",
    Reason.WRONG_ARRAYS: "an array that was not asked for, or one that is missing",
    Reason.WRONG_DTYPE: "an array of another dtype than was asked for",
    Reason.WRONG_SHAPE: "an array of another shape",
    Reason.NOT_FINITE: "NaN or an infinity in an array",
    Reason.OUT_OF_BOUNDS: "a number in an array outside of what was asked for: a class, a count, a feature",
}


class DisconnectReason(str, Enum):
    """The reason why a device sends a Bye: the part of the Bye's text before the colon.

    The list is closed, and each reason has its own counter.
    """

    OUT_OF_MEMORY = "out_of_memory"  # the training ran out of memory; the device connects again later
    TRAINING_DIED = "training_died"  # the training ended in another way; the device connects again later
    WRONG_ARRAYS = "wrong_arrays"  # the device cannot use the arrays of a broadcast; it connects again later
    DRAINED = "drained"  # the device's operator has asked it to stop between two tasks
    # The device takes no work for a while, because its operator paused it or because it is too hot.
    PAUSED = "paused"
    SIGNAL = "signal"  # the device was stopped
    FINISHED = "finished"  # the run is over, and the device knows it
    CANNOT_FOLLOW = "cannot_follow"  # the plan requires something that the device cannot do
    # An update of the device is lost, so its next update would differ from the right result.
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
    """The problem for which an update or a device is refused: a reason for the counters, and a message for people.

    Code that stores or sends a problem uses the message only.
    """

    reason: Reason
    message: str
