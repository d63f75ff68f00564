"""Methods of every shape for `make test`; all the others are tried in `make test-all`."""

from collections.abc import Iterable
from typing import Final

import pytest

# Weights; prototypes; answers of ragged shapes; two phases.
SHAPES: Final = ("fedavg", "fedproto", "fedplcc", "fedpall")


def of_each_shape(methods: Iterable[str]) -> list[object]:
    """All of them, for `parametrize`: one of each shape is quick, the others are marked slow."""
    return [
        method if method in SHAPES else pytest.param(method, marks=pytest.mark.slow) for method in methods
    ]
