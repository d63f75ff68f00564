"""Name the reasons why a device or coordinator refuses a step of secure aggregation."""

from __future__ import annotations

from enum import Enum


class SecaggFault(str, Enum):
    """All reasons for which a step is refused. Each reason has its own counter."""

    MALFORMED = "malformed"  # bytes of a wrong length or form
    OUT_OF_RANGE = "out_of_range"  # a number of the vector is outside of the field's limit
    OTHER_TERMS = "other_terms"  # the terms are not the ones of this attempt
    OLD_ROUND = "old_round"  # the device has begun a later round of this run
    SEEN_ATTEMPT = "seen_attempt"  # the nonce of the attempt was used before
    SPENT = "spent"  # the device has helped to unmask a sum of this round and stage
    NOT_ENROLLED = "not_enrolled"  # a name without a valid record
    BAD_SIGNATURE = "bad_signature"
    BAD_KEYS = "bad_keys"  # a weak key, or a key that occurs twice
    OWN_ENTRY = "own_entry"  # the roster does not contain the device's own keys as it sent them
    TOO_FEW = "too_few"  # fewer devices than the threshold or than `least`
    TOO_MANY = "too_many"  # more devices than the field has room for
    BAD_SHARES = "bad_shares"  # too few shares could be opened, or shares do not give a committed secret
    CHANGED_QUESTION = "changed_question"  # the step was asked before with other contents
    WRONG_SET = "wrong_set"  # survivors that were not there, or without the device itself
    CLOSE_COHORT = "close_cohort"  # the survivors differ from those of the last round by only a few devices
    OVER = "over"  # the attempt has ended at this device, or a step was left out


class SecaggError(ValueError):
    """The error for a step that is refused. The error contains the reason."""

    def __init__(self, why: SecaggFault, detail: str) -> None:
        super().__init__(detail)
        self.why, self.detail = why, detail
