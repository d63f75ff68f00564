"""A plug-in that is one file. The file is read once, hashed and checked. Then exactly the hashed bytes are run.

This is the only place in protofleet that runs code read from a file (tests/test_nothing_executable.py).
"""

from __future__ import annotations

import hashlib
import importlib.util
import linecache
import os
import stat
import sys
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Final

from protofleet.methods.plugins.errors import PlugInError, guarded

LARGEST: Final = 1 << 20  # The largest size of a file in bytes.
# A module's name is this prefix and all 64 digits of its hash. `loaded` finds a module by this name.
PREFIX: Final = "protofleet_plugin_"


@dataclass(frozen=True)
class PluginFile:
    """The content of a file at the time when it was read.

    A later change of the file, or of a link to the file, does not change this content.
    """

    path: Path
    text: bytes
    sha256: str


def read(path: Path, seen: str = "") -> PluginFile:
    """Read a file and return its content with its hash.

    `seen` is a hint for the user about the folder to which the path is relative.
    """
    try:
        text = _bytes_of(path)
    except FileNotFoundError:
        hint = seen if path.is_absolute() else f"it was looked for in {Path.cwd()}"
        raise PlugInError(f"{path}: there is no such file{hint and f'; {hint}'}") from None
    except IsADirectoryError:
        raise PlugInError(f"{path} is a folder; a plug-in is one Python file") from None
    except OSError as error:
        raise PlugInError(f"{path} cannot be read: {error.strerror}; name a Python file") from None
    if len(text) > LARGEST:
        raise PlugInError(
            f"{path} has more than {LARGEST:,} bytes; a plug-in is one Python file of at most this size"
        )
    return PluginFile(path, text, hashlib.sha256(text).hexdigest())


def _bytes_of(path: Path) -> bytes:
    """Return the bytes of a regular file; a pipe is refused, because reading it could wait forever."""
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    with os.fdopen(handle, "rb") as file:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            raise PlugInError(f"{path} is not a regular file; a plug-in is one Python file")
        return file.read(LARGEST + 1)


def from_file(path: Path, allowed: Collection[str] | None, seen: str = "") -> tuple[PluginFile, ModuleType]:
    """Read a file and run it, or raise PlugInError if its hash is not allowed.

    If `allowed` is None, any hash is allowed, because the user of this machine has named the file.
    """
    source = read(path, seen)
    if allowed is not None and source.sha256 not in allowed:
        raise PlugInError(
            f"{path} has SHA-256 {source.sha256}, which is not allowed here; the owner of this machine can add "
            "the hash to plugins.allow, or put the allowed file back"
        )
    return source, module_of(source)


def module_of(source: PluginFile) -> ModuleType:
    """Return the module of a file, which is run only once in a process."""
    name = PREFIX + source.sha256
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_loader(name, loader=None, origin=str(source.path))
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    module.__file__ = str(source.path)
    # The module must be in sys.modules before its file runs, because dataclasses look up their module.
    sys.modules[name] = module
    _remember_lines(source)
    try:
        guarded(lambda: _run(source, module), str(source.path), {str(source.path)})
    except BaseException:
        sys.modules.pop(name, None)
        raise
    return module


def _run(source: PluginFile, module: ModuleType) -> None:
    exec(compile(source.text, str(source.path), "exec", dont_inherit=True), module.__dict__)


def _remember_lines(source: PluginFile) -> None:
    """Keep the lines of the file, so that tracebacks show the code that was run, even if the file has changed."""
    path, lines = str(source.path), source.text.decode(errors="replace").splitlines(keepends=True)
    linecache.cache[path] = (len(source.text), None, lines, path)


def loaded(sha256: str) -> ModuleType | None:
    """Return the module of a file that this process has run, or None."""
    return sys.modules.get(PREFIX + sha256)
