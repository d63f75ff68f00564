"""Write the page of the public Python API. Sphinx adds the signatures and docstrings."""

from __future__ import annotations

import inspect
from types import ModuleType
from typing import Final

import protofleet
import protofleet.testing

INTRO: Final = """\
Python API
==========

Every public name of the package, written from the code.
"""
# The kinds of names, in the order of the page.
KINDS: Final = ("autofunction", "autoclass", "autodata", "autoexception")
WITH_MEMBERS: Final = ("autoclass", "autoexception")
MEMBERS: Final = "   :members:\n   :undoc-members:\n   :member-order: bysource\n"


def api_page() -> str:
    return INTRO + section(protofleet) + section(protofleet.testing)


def section(module: ModuleType) -> str:
    """Return the part about one module: first its functions, then its types and its exceptions."""
    names = sorted(module.__all__, key=lambda name: (KINDS.index(kind(getattr(module, name))), name.lower()))
    title = f"``{module.__name__}``"
    about = (inspect.getdoc(module) or "").split("\n")[0]
    return f"\n{title}\n{'-' * len(title)}\n\n{about}\n" + "".join(entry(module, name) for name in names)


def entry(module: ModuleType, name: str) -> str:
    how = kind(getattr(module, name))
    members = MEMBERS if how in WITH_MEMBERS else ""
    return f"\n{name}\n{'~' * len(name)}\n\n.. {how}:: {module.__name__}.{name}\n{members}"


def kind(thing: object) -> str:
    """Return the Sphinx directive for an object. An object that is not a function, class or exception is data."""
    if inspect.isclass(thing):
        return "autoexception" if issubclass(thing, Exception) else "autoclass"
    return "autofunction" if inspect.isroutine(thing) else "autodata"
