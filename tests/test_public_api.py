"""Tests that every public class, function, method and property of the Python API has its own docstring."""

import functools
import inspect

import pytest

import protofleet
import protofleet.testing
from protofleet.lab.api.comparison import Row
from protofleet.lab.api.results import Bytes, Point

EXPORTED = {
    **{f"protofleet.{name}": getattr(protofleet, name) for name in protofleet.__all__},
    **{
        f"protofleet.testing.{name}": getattr(protofleet.testing, name) for name in protofleet.testing.__all__
    },
    **{cls.__name__: cls for cls in (Row, Bytes, Point)},  # The types that a comparison and a result return.
}
ALIASES = {"protofleet.Payload", "protofleet.Round"}  # Names of types cannot have docstrings.


def undocumented(name, thing):
    """Yield the public names of a class or a function that have no docstring of their own."""
    if not own_docstring(thing):
        yield name
    for base in thing.__mro__ if inspect.isclass(thing) else ():
        if not base.__module__.startswith("protofleet."):
            continue
        for inner, value in vars(base).items():
            if not inner.startswith("_") and is_code(value) and not own_docstring(value):
                yield f"{name}.{inner}"


def is_code(value):
    return callable(value) or isinstance(
        value, property | functools.cached_property | classmethod | staticmethod
    )


def own_docstring(thing):
    """Return the docstring, without the one that Python makes for a dataclass."""
    text = thing.__doc__ or ""
    return "" if inspect.isclass(thing) and text.startswith(f"{thing.__name__}(") else text


@pytest.mark.parametrize("name", sorted(EXPORTED.keys() - ALIASES))
def test_every_public_name_has_a_docstring(name):
    assert list(undocumented(name, EXPORTED[name])) == []


def test_names_without_a_docstring_are_found():
    class Bare:
        __module__ = "protofleet.example"

        def method(self): ...

        @property
        def quality(self): ...

        @functools.cached_property
        def rows(self): ...

        @classmethod
        def of(cls): ...

        def _private(self): ...

    assert set(undocumented("Bare", Bare)) == {"Bare", "Bare.method", "Bare.quality", "Bare.rows", "Bare.of"}
