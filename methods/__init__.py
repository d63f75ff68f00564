"""Methods are modules: `load("fedprox")` imports methods/fedprox.py and returns its METHOD."""

from __future__ import annotations

from importlib import import_module
from pkgutil import iter_modules

from protofleet.methods.base import Method

SUPPORT = frozenset(
    {
        "averaging",
        "base",
        "bridge",
        "cost",
        "liveness",
        "local",
        "optimizers",
        "plan",
        "pooled",
        "wants",
        "weights",
    }
)


def names() -> list[str]:
    return sorted(m.name for m in iter_modules(__path__) if not m.ispkg and m.name not in SUPPORT)


def load(name: str) -> Method:
    if name not in names():
        raise LookupError(f"no method {name!r}; there are {', '.join(names())}")
    method: Method = import_module(f"{__name__}.{name}").METHOD
    return method
