"""Write the page of the public Python API; Sphinx fills in signatures and docstrings."""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from types import ModuleType
from typing import Final

import protofleet
import protofleet.testing

INTRO: Final = """\
Python API
==========

Every public name of the package, written from the code.
"""
MEMBERS: Final = "   :members:\n   :undoc-members:\n   :member-order: bysource\n"


def api_page() -> str:
    return INTRO + section(protofleet) + section(protofleet.testing)


def section(module: ModuleType) -> str:
    """Return the part about one module: functions first, then classes, then exceptions."""
    names = sorted(module.__all__, key=lambda name: (order(getattr(module, name)), name.lower()))
    title = f"``{module.__name__}``"
    about = (inspect.getdoc(module) or "").split("\n")[0]
    return f"\n{title}\n{'-' * len(title)}\n\n{about}\n" + "".join(entry(module, name) for name in names)


def order(thing: object) -> int:
    if not inspect.isclass(thing):
        return 0
    return 2 if issubclass(thing, Exception) else 1


def entry(module: ModuleType, name: str) -> str:
    thing = getattr(module, name)
    full = f"{module.__name__}.{name}"
    heading = f"\n{name}\n{'~' * len(name)}\n\n"
    if not inspect.isclass(thing):
        return f"{heading}.. autofunction:: {full}\n"
    kind = "autoexception" if issubclass(thing, Exception) else "autoclass"
    return f"{heading}.. {kind}:: {full}\n{MEMBERS}"
