"""Tests that a list of names in a line is limited, and states the number of names that it leaves out."""

import pytest

from protofleet.protocol.wire.name_list import first_names


@pytest.mark.parametrize(
    "names, words",
    [([], ""), (["a"], "a"), (["a", "b"], "a, b"), (["a", "b", "c", "d", "e"], "a, b and 3 more")],
)
def test_the_first_names_are_listed_and_the_others_are_counted(names, words):
    assert first_names(names, 2) == words
