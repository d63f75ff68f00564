"""Tests of how lists of class names are compared, hashed and shown."""

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


def test_the_first_difference_and_both_lists_are_one_line():
    words = difference("board-3", ("cat", "cow", "owl"), "this run", PETS)
    assert words == (
        "class 1 is 'cow' in board-3 and 'dog' in this run; board-3: cat, cow, owl; this run: cat, dog, owl"
    )


def test_a_list_that_goes_on_where_another_ends_differs_there():
    assert "class 2 is none in a and 'owl' in b" in difference("a", PETS[:2], "b", PETS)


def test_lists_are_cut_at_eight_and_how_many_there_are_is_said():
    names = tuple(f"class-{i}" for i in range(100))
    assert listed(names).endswith("class-7 ... (100)") and listed(names).count(",") == SHOWN - 1
    assert listed(names[:SHOWN]).endswith("class-7")


def test_both_lists_of_the_longest_names_fit_a_refusal():
    one, other = (tuple(f"{i}-{letter * 99}"[:MAX_LETTERS] for i in range(100)) for letter in "xy")
    words = f"its classes have other names: {difference('its data', one, 'this run', other)}"
    assert len(words) <= MAX_TEXT and words.count("(100)") == 2


@given(NAMES, NAMES)
def test_there_is_a_difference_where_both_say_names_and_they_are_not_the_same(one, other):
    words = difference("a", one, "b", other)
    assert bool(words) == bool(one and other and one != other)
    assert bool(words) == (bool(one and other) and digest_of(one) != digest_of(other))


def test_the_hash_is_that_of_the_msgpack_array():
    packed = b"\x93\xa3cat\xa3dog\xa3owl"
    assert msgpack.unpackb(packed) == [*PETS]
    assert digest_of(PETS) == hashlib.sha256(packed).digest()


def test_two_spellings_of_one_letter_are_one_name():
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
def test_what_cannot_be_said_is_told_in_words_that_can_be_printed(names, words):
    fault = problem_with(names)
    assert fault.isprintable()
    assert re.search(words, fault)


def test_what_is_heard_has_the_same_bounds_as_what_is_said():
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
