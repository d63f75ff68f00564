from dataclasses import replace

import pytest

from protofleet.protocol.secagg.cohorts import may_follow
from protofleet.protocol.secagg.faults import SecaggError
from protofleet.protocol.secagg.field import Field
from protofleet.protocol.secagg.terms import read_terms, threshold
from tests.support.secagg_fleet import terms

CHANGES = [
    {"federation": "works"}, {"run": "autumn"}, {"round": 4}, {"attempt": bytes(16)}, {"stage": "presence"},
    {"base": bytes(32)}, {"length": 5}, {"least": 4}, {"apart": 3},
    {"field": Field(6, 30.0, 10, 24)}, {"field": Field(5, 29.0, 10, 24)}, {"field": Field(5, 30.0, 9, 24)},
    {"field": Field(5, 30.0, 10, 25)},
]  # fmt: skip


def test_the_hash_of_terms_depends_on_each_value():
    found = [terms(5), *(replace(terms(5), **change) for change in CHANGES)]
    assert len({one.hash for one in found}) == len(CHANGES) + 1
    assert [read_terms(one.encode()) for one in found] == found


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"stage": "other"}, "stage is 'other', it must be one of presence, values"),
        ({"attempt": bytes(15)}, "attempt and base have 15 and 32 bytes, but must have 16 and 32"),
        ({"length": 0}, "length is 0, it must be between 1 and"),
        ({"least": 2}, "least is 2, it must be between 3 and 5"),
        ({"least": 6}, "least is 6, it must be between 3 and 5"),
        ({"round": -1}, "round is -1"),
        ({"run": "a b"}, "is no name"),
    ],
)
def test_invalid_terms_are_refused_with_the_value_and_the_limit(change, words):
    with pytest.raises(ValueError, match=words):
        replace(terms(5), **change)


def test_terms_with_a_byte_more_or_less_are_refused():
    data = terms(5).encode()
    for wrong in (data[:-1], data + b"\x00", b"", data.replace(b"values", b"volume")):
        with pytest.raises(SecaggError, match="no terms"):
            read_terms(wrong)


def test_the_threshold_is_more_than_two_thirds_of_the_devices():
    assert [threshold(n) for n in range(3, 13)] == [3, 3, 4, 5, 5, 6, 7, 7, 8, 9]
    assert all(3 * threshold(n) > 2 * n >= 3 * (threshold(n) - 1) for n in range(1, 600))


def test_two_sets_of_survivors_require_that_a_third_of_the_devices_signs_both():
    """Two sets of signers have at least 2t - n devices in common; only malicious devices sign both."""
    assert [2 * threshold(n) - n for n in (10, 20)] == [4, 8]
    assert all(2 * threshold(n) - n > n / 3 for n in range(3, 600))


@pytest.mark.parametrize(
    ("previous", "survivors", "apart", "allowed"),
    [
        ("", "abc", 3, True),
        ("abcd", "abcd", 3, True),
        ("abcd", "abc", 3, False),
        ("abcd", "abce", 3, False),
        ("abcd", "abef", 3, True),
        ("abcd", "abcdefg", 3, True),
        ("abcd", "abc", 0, True),
        ("abcd", "abc", 1, True),
    ],
)
def test_survivors_may_follow_only_equal_or_sufficiently_different_survivors(
    previous, survivors, apart, allowed
):
    assert may_follow(tuple(previous), tuple(survivors), apart) is allowed
