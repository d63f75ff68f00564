"""Tests that lists of class names are compared, hashed and shown."""

import hashlib
import re
import unicodedata

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from protofleet.protocol.wire.class_names import (
    SHOWN,
    difference,
    digest_of,
    listed,
    normalized,
    problem_with,
)
from protofleet.protocol.wire.codec import MAX_TEXT
from protofleet.protocol.wire.tables import MAX_LETTERS, MAX_NAMES, class_names

PETS = ("cat", "dog", "owl")
NAMES = st.lists(st.sampled_from("abcdef"), unique=True).map(tuple)


def test_the_first_difference_and_both_lists_are_in_one_line():
    words = difference("board-3", ("cat", "cow", "owl"), "this run", PETS)
    assert words == (
        "class 1 is 'cow' in board-3 and 'dog' in this run; board-3: cat, cow, owl; this run: cat, dog, owl"
    )


def test_a_longer_list_differs_at_its_first_additional_name():
    assert "class 2 is none in a and 'owl' in b" in difference("a", PETS[:2], "b", PETS)


def test_a_long_list_shows_eight_names_and_the_number_of_names():
    names = tuple(f"class-{i}" for i in range(100))
    assert listed(names).endswith("class-7 ... (100)") and listed(names).count(",") == SHOWN - 1
    assert listed(names[:SHOWN]).endswith("class-7")


def test_both_lists_of_the_longest_names_fit_a_refusal():
    one, other = (tuple(f"{i}-{letter * 99}"[:MAX_LETTERS] for i in range(100)) for letter in "xy")
    words = f"its classes have other names: {difference('its data', one, 'this run', other)}"
    assert len(words) <= MAX_TEXT and words.count("(100)") == 2


@given(NAMES, NAMES)
def test_two_lists_differ_only_if_both_have_names_and_the_names_differ(one, other):
    words = difference("a", one, "b", other)
    assert bool(words) == bool(one and other and one != other)
    assert bool(words) == (bool(one and other) and digest_of(one) != digest_of(other))


def test_the_digest_of_names_is_the_hash_of_their_msgpack_array():
    packed = b"\x93\xa3cat\xa3dog\xa3owl"
    assert msgpack.unpackb(packed) == [*PETS]
    assert digest_of(PETS) == hashlib.sha256(packed).digest()


def test_two_unicode_forms_of_a_letter_give_one_name():
    one, other = (unicodedata.normalize(form, "café") for form in ("NFC", "NFD"))
    assert one != other and normalized([one]) == normalized([other])


@pytest.mark.parametrize(
    ("names", "words"),
    [
        (["cat", ""], "'' is no name of a class"),
        (["x" * (MAX_LETTERS + 1)], "1 to 64 printable letters"),
        (["cat\x1b[2J"], r"'cat\\x1b"),
        (["a\u202eb"], "printable"),
        (["cat", "dog", "cat"], "'cat' is the name of two classes"),
        ([str(i) for i in range(MAX_NAMES + 1)], "4097 class names, but at most 4096"),
    ],
)
def test_invalid_names_are_refused_with_a_printable_reason(names, words):
    fault = problem_with(names)
    assert fault.isprintable()
    assert re.search(words, fault)


def test_received_names_have_the_same_limits_as_sent_names():
    most = tuple(f"{i:04}" + "x" * (MAX_LETTERS - 4) for i in range(MAX_NAMES))
    assert not problem_with(most) and class_names([*most]) == most
    for bad, words in (
        ([""], "no name of a class"),
        (["x" * (MAX_LETTERS + 1)], "each of at most 64 letters"),
        (["a\nb"], "no name of a class"),
        (["a\x1b"], "no name of a class"),
        (["a\u202eb"], "no name of a class"),
        ([*most, "z"], "4097 texts; at most 4096 are allowed"),
        ([1], "no str"),
        ("abc", "no array"),
        ([b"a"], "no str"),
    ):
        with pytest.raises(TypeError, match=words):
            class_names(bad)
