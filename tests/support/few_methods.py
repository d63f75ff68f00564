"""Fewer methods, steps or cases, for tests that would find the same faults with all of them."""

from collections.abc import Iterable
from typing import Final

import pytest

from protofleet.lab.contract.worlds import Subject
from protofleet.methods.contract.catalog import load

# In this order: weights; prototypes; answers of ragged shapes; two phases; statistics without training.
SHAPES: Final = ("fedavg", "fedproto", "fedplcc", "fedpall", "fedncm")

# Steps of a run whose test checks bits or numbers, and not the accuracy.
FEW_STEPS: Final = {"epochs": 1, "head_epochs": 1, "server_epochs": 2, "server_steps": 2, "init_steps": 2}


def few_steps(method: str) -> Subject:
    return Subject(method, hyper=FEW_STEPS)


def of_each_shape(methods: Iterable[str]) -> list[object]:
    """Return all methods for `parametrize`; those that are not in SHAPES are marked slow.

    So `make test` tests one method of each shape, and `make test-all` tests all methods.
    """
    return [
        method if method in SHAPES else pytest.param(method, marks=pytest.mark.slow) for method in methods
    ]


def few(cases: Iterable[object], step: int) -> list[object]:
    """Return all cases for `parametrize`: `make test` takes the first of each `step`, `make test-all` takes all."""
    longer = pytest.mark.slow
    return [
        case
        if number % step == 0
        else pytest.param(*(case if isinstance(case, tuple) else (case,)), marks=longer)
        for number, case in enumerate(cases)
    ]


def with_own_arrays(methods: Iterable[str]) -> list[str]:
    """Return the first method of each set of kinds of arrays, and the methods in SHAPES.

    On the wire, methods with the same kinds of arrays look alike.
    """
    found = {load(method).arrays: method for method in sorted(methods, reverse=True)}
    return sorted({*SHAPES, *found.values()})
