"""Some of the methods, for tests that would say the same with every other method."""

from collections.abc import Iterable
from typing import Final

import pytest

from protofleet.methods.contract.catalog import load

# In this order: weights; prototypes; answers of ragged shapes; two phases; statistics without training.
SHAPES: Final = ("fedavg", "fedproto", "fedplcc", "fedpall", "fedncm")


def of_each_shape(methods: Iterable[str]) -> list[object]:
    """Return all methods for `parametrize`; those that are not in SHAPES are marked slow.

    So `make test` tests one method of each shape, and `make test-all` tests all methods.
    """
    return [
        method if method in SHAPES else pytest.param(method, marks=pytest.mark.slow) for method in methods
    ]


def with_own_arrays(methods: Iterable[str]) -> list[str]:
    """Return the first method of each set of kinds of arrays, and the methods in SHAPES.

    On the wire, methods with the same kinds of arrays look alike.
    """
    found = {load(method).arrays: method for method in sorted(methods, reverse=True)}
    return sorted({*SHAPES, *found.values()})
