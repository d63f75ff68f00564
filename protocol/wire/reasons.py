"""Why something received was not used. Every received message ends in exactly one counter."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Reason(str, Enum):
    """A closed list: each has a counter of its own and may be alerted on."""

    MALFORMED = "malformed"  # the frame or its header is not what docs/protocol.md says
    VERSION = "version"  # a major protocol version we do not speak
    UNKNOWN_SENDER = "unknown_sender"  # no key for that name
    BAD_SIGNATURE = "bad_signature"
    WRONG_TOPIC = "wrong_topic"  # the header does not belong to the topic it came on
    WRONG_RECIPIENT = "wrong_recipient"
    NOT_SEALED = "not_sealed"  # readable by the broker, in a federation that seals
    NOT_FOR_US = "not_for_us"  # sealed, but not to our key
    WRONG_FEDERATION = "wrong_federation"
    STALE_BOOT = "stale_boot"  # an older process of the same sender
    BOOT_AHEAD = "boot_ahead"  # more than a day ahead of the receiver's clock
    STALE_EPOCH = "stale_epoch"  # an older coordinator
    EPOCH_AHEAD = "epoch_ahead"  # likewise, of a coordinator
    STALE_ROUND = "stale_round"  # a task of a round before the one that was answered last
    BAD_BODY = "bad_body"  # tensors that do not decode
    TOO_LARGE = "too_large"
    BAD_BLOCK = "bad_block"  # a block that does not match its hash
    UNKNOWN_OBJECT = "unknown_object"  # a block of something that is not being fetched
    NO_ROOM = "no_room"  # the disk is full, or the budget for answers is
    FLOOD = "flood"  # more than its sender may say; later it may speak again
    BANNED = "banned"  # of a name that flooded, or that an error of ours met: nothing of it is looked at
    UNFIT = "unfit"  # a hello of a device that cannot take part
    NOT_INVITED = "not_invited"  # of a device that was not asked
    LATE = "late"  # an answer to a question that is not open
    EQUIVOCATION = "equivocation"  # another answer than the one that is in
    BAD_CLAIM = "bad_claim"  # examples, counts or metrics that cannot be
    WRONG_ARRAYS = "wrong_arrays"  # an array that was not asked for, or one that is missing
    WRONG_DTYPE = "wrong_dtype"
    WRONG_SHAPE = "wrong_shape"
    NOT_FINITE = "not_finite"
    OUT_OF_BOUNDS = "out_of_bounds"  # a number outside of what was asked for: classes, counts, features


class Farewell(str, Enum):
    """Why a device says Bye: the word before the colon. A closed list: each has a counter of its own."""

    OUT_OF_MEMORY = "out_of_memory"  # its training was ended for want of memory; it comes back
    TRAINING_DIED = "training_died"  # its training ended in another way; it comes back
    DRAINED = "drained"  # its operator has asked it to stop between two questions
    PAUSED = "paused"  # it takes no work for a while: told so, or too hot
    SIGNAL = "signal"  # it was stopped
    FINISHED = "finished"  # its run is over, and it has heard so
    CANNOT_FOLLOW = "cannot_follow"  # the plan asks for what it cannot do
    DAMAGED = "damaged"  # an answer of its own is lost: other bits would come of its next one
    OTHER = "other"


def farewell_of(reason: str) -> Farewell:
    """What a Bye is counted as."""
    word = reason.partition(":")[0]
    return Farewell(word) if word in {known.value for known in Farewell} else Farewell.OTHER


class Rejected(ValueError):  # noqa: N818 - it reads as what happened: `except Rejected`
    """A peer's fault, as data: drop, count, go on."""

    def __init__(self, reason: Reason, detail: str) -> None:
        super().__init__(f"{reason.value}: {detail}")
        self.reason, self.detail = reason, detail


@dataclass(frozen=True, slots=True)
class Problem:
    """Why an answer or a device is refused: the reason that is counted, and words for it and for people.

    It is no text, or it would get into records whole: whoever keeps or sends it takes the words.
    """

    reason: Reason
    words: str
