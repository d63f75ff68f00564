"""The methods by name: `load("fedprox")` imports methods/fedprox.py and returns its METHOD.

For a plug-in, `load` also needs the hash, and this process must have loaded the plug-in.
"""

from __future__ import annotations

import traceback
from functools import cache
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules

from protofleet import methods
from protofleet.methods.contract.base import Method
from protofleet.methods.plugins.found import find
from protofleet.protocol.settings.reader import SettingsError
from protofleet.protocol.settings.suggest import there_are


def names() -> list[str]:
    return sorted(m.name for m in iter_modules(methods.__path__) if not m.ispkg)


@cache
def load(name: str, plugin: str = "") -> Method:
    """Return a method.

    The file is read from the disk only at the first call, because a device calls this function at every hello.
    """
    if plugin:
        return find("method", name, plugin, Method)  # type: ignore[no-any-return]
    if name not in names():
        raise LookupError(f"no method {name!r}; {there_are(name, names())}")
    try:
        method: Method = import_module(f"{methods.__name__}.{name}").METHOD
    except Exception as error:
        raise BrokenMethodError(f"the method {name} cannot be loaded: {described(error)}") from error
    return method


class BrokenMethodError(SettingsError):
    """The error for a file in methods/ that is not a valid method; the other methods can still be used."""


def described(error: Exception) -> str:
    """Return the message of an error, with the file and the line that must be corrected."""
    if isinstance(error, SyntaxError):
        return f"{error.filename}:{error.lineno}: {error.msg}"
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if Path(frame.filename).parent == Path(methods.__path__[0])] or frames
    return f"{own[-1].filename}:{own[-1].lineno}: {type(error).__name__}: {error}"
