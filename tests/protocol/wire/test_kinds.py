"""Tests of the kinds under which bytes are counted, declared by a method or not."""

import pytest

from protofleet.protocol.wire.kinds import UNDECLARED, declared_kinds


def test_a_declared_array_is_of_the_kind_that_its_name_begins_with():
    kinds = declared_kinds(["weights", "generator"])
    assert [kinds.of(n) for n in ("weights.a.b", "generator", "weightsx.a", "logits")] == [
        "weights", "generator", "control", "control",
    ]  # fmt: skip
    assert kinds.undeclared(["weights.a", "logits", "cosines.x"]) == ["cosines", "logits"]


def test_undeclared_arrays_have_the_kind_other_and_framework_arrays_the_kind_control():
    assert [UNDECLARED.of(name) for name in ("weights.a", "x", "confusion", "manifest")] == [
        "other", "other", "control", "control",
    ]  # fmt: skip
    assert UNDECLARED.undeclared(["anything"]) == []


@pytest.mark.parametrize("name", ["", "a.b", "A", "a" * 21, "ä", "9a", "control", "confusion", "manifest", 5])
def test_an_invalid_name_of_a_kind_is_refused(name):
    with pytest.raises(ValueError, match="name"):
        declared_kinds(["weights", name])


def test_sixteen_kinds_can_be_declared_and_no_more():
    assert len(declared_kinds(f"k{i}" for i in range(16)).declared) == 16
    with pytest.raises(ValueError, match="17 kinds of arrays, but the limit is 16"):
        declared_kinds(f"k{i}" for i in range(17))
