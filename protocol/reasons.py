"""Why something received was not used. Every received message ends in exactly one counter."""

from __future__ import annotations

from enum import Enum


class Reason(str, Enum):
    """A closed list: each has a counter of its own and may be alerted on."""

    MALFORMED = "malformed"  # the frame or its header is not what docs/protocol.md says
    VERSION = "version"  # a major protocol version we do not speak
    UNKNOWN_SENDER = "unknown_sender"  # no key for that name
    BAD_SIGNATURE = "bad_signature"
    WRONG_TOPIC = "wrong_topic"  # the header does not belong to the topic it came on
    WRONG_RECIPIENT = "wrong_recipient"
    WRONG_FEDERATION = "wrong_federation"
    STALE_BOOT = "stale_boot"  # an older process of the same sender
    STALE_EPOCH = "stale_epoch"  # an older coordinator
    BAD_BODY = "bad_body"  # tensors that do not decode
    TOO_LARGE = "too_large"
    BAD_BLOCK = "bad_block"  # a block that does not match its hash
    UNKNOWN_OBJECT = "unknown_object"  # a block of something that is not being fetched
    NO_ROOM = "no_room"  # the disk is full


class Rejected(ValueError):  # noqa: N818 - it reads as what happened: `except Rejected`
    """A peer's fault, as data: drop, count, go on."""

    def __init__(self, reason: Reason, detail: str) -> None:
        super().__init__(f"{reason.value}: {detail}")
        self.reason, self.detail = reason, detail
