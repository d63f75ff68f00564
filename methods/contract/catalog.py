"""Methods are modules: `load("fedprox")` imports methods/fedprox.py and returns its METHOD."""

from __future__ import annotations

from functools import cache
from importlib import import_module
from pkgutil import iter_modules

from protofleet import methods
from protofleet.methods.contract.base import Method


def names() -> list[str]:
    return sorted(m.name for m in iter_modules(methods.__path__) if not m.ispkg)


@cache
def load(name: str) -> Method:
    """Read from the disk once: a device asks for its method at every hello."""
    if name not in names():
        raise LookupError(f"no method {name!r}; there are {', '.join(names())}")
    method: Method = import_module(f"{methods.__name__}.{name}").METHOD
    return method
