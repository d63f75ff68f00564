"""Bugs to plant, one at a time, to see whether the simulator finds them: `python -m tests.simulator --plant`.

Each is a line that somebody could well have written, or that really stood there.
"""

from __future__ import annotations

import contextlib
import sys
import types
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from unittest import mock

from protocol.settings import decode, read_toml


@dataclass(frozen=True)
class Bug:
    name: str
    module: str
    old: str
    new: str
    seed: int = -1  # finds it; -1: none of the first 300 does
    fixed: bool = False  # it was real


def read_bugs() -> dict[str, Bug]:
    rows = read_toml(Path(__file__).with_name("planted.toml"))["bug"]
    return {row["name"]: decode(Bug, row, f"bug {row['name']!r}") for row in rows}


BUGS = read_bugs()


@contextlib.contextmanager
def planted(bug: Bug) -> Iterator[None]:
    """The functions that the bug changes take the places of the real ones."""
    module = import_module(bug.module)
    source = Path(str(module.__file__)).read_text()
    assert source.count(bug.old) == 1, f"{bug.old!r} stands {source.count(bug.old)} times in {bug.module}"
    broken = types.ModuleType(bug.module)
    exec(compile(source.replace(bug.old, bug.new), "planted", "exec"), broken.__dict__)
    found = dict(vars(broken))
    broken.__dict__.update({name: value for name, value in vars(module).items() if isinstance(value, type)})
    with contextlib.ExitStack() as stack:
        for name, value in found.items():
            real = getattr(module, name, None)
            if isinstance(value, type) and isinstance(real, type) and value.__module__ == bug.module:
                for part, changed in changes(real, value):
                    stack.enter_context(mock.patch.object(real, part, changed))
        assert sys.modules[bug.module] is module
        yield


def changes(real: type, broken: type) -> Iterator[tuple[str, object]]:
    for name, changed in vars(broken).items():
        one, other = code_of(vars(real).get(name)), code_of(changed)
        if one and other and (one.co_code, constants(one)) != (other.co_code, constants(other)):
            yield name, changed


def code_of(value: object) -> types.CodeType | None:
    value = value.fget if isinstance(value, property) else getattr(value, "__wrapped__", value)
    return value.__code__ if isinstance(value, types.FunctionType) else None


def constants(code: types.CodeType) -> tuple[object, ...]:
    """With those of the functions inside, whose code objects themselves are never equal."""
    inner = [(c.co_code, constants(c)) if isinstance(c, types.CodeType) else c for c in code.co_consts]
    return (*inner, *code.co_names)
