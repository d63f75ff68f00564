"""Bugs to plant, one at a time, to see whether the simulator finds them.

`python -m tests.simulator --planted` plants them. Each bug is a line that a programmer could have written, or
that really stood there.
"""

from __future__ import annotations

import contextlib
import sys
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from unittest import mock

from protofleet.coordinator.spool import update_reader
from protofleet.protocol.settings.reader import decode, read_toml
from tests.simulator.run import Verdict, run_seed, run_seed_of_several, run_seed_of_sums


@dataclass(frozen=True)
class Bug:
    name: str
    module: str
    old: str
    new: str
    seeds: tuple[int, ...] = ()  # Each found it once; later changes may alter their histories.
    several: bool = False  # Its seeds are those of two runs.
    summed: bool = False  # Its seeds are those of masked sums.
    fixed: bool = False  # The bug was real.
    also_old: str = ""  # A second place, for a bug on which both ends must agree.
    also_new: str = ""
    test: str = ""  # A test that finds it too.
    seen_as: str = ""  # The promise that it breaks.
    of_300: int = 0  # The number of the seeds 0 to 299 that found it when all were counted.

    @property
    def places(self) -> list[tuple[str, str]]:
        return [(self.old, self.new), *([(self.also_old, self.also_new)] if self.also_old else [])]


def read_bugs() -> dict[str, Bug]:
    rows = read_toml(Path(__file__).with_name("planted.toml"))["bug"]
    return {row["name"]: decode(Bug, row, f"bug {row['name']!r}") for row in rows}


BUGS = read_bugs()


def kind_of(bug: Bug) -> Callable[[int], Verdict]:
    """Return the function that runs a seed of the kind that finds a bug."""
    if bug.summed:
        return run_seed_of_sums
    return run_seed_of_several if bug.several else run_seed


@contextlib.contextmanager
def planted(bug: Bug) -> Iterator[None]:
    """Replace the real functions by those that the bug changes."""
    module = import_module(bug.module)
    source = Path(str(module.__file__)).read_text()
    for old, new in bug.places:
        assert source.count(old) == 1, f"{old!r} stands {source.count(old)} times in {bug.module}"
        source = source.replace(old, new)
    broken = types.ModuleType(bug.module)
    exec(compile(source, "planted", "exec"), broken.__dict__)
    found = dict(vars(broken))
    broken.__dict__.update({name: value for name, value in vars(module).items() if isinstance(value, type)})
    with contextlib.ExitStack() as stack:
        # The updates here are small. If their decoded arrays were kept, a fault in a later reading would not be seen.
        stack.enter_context(mock.patch.object(update_reader, "SMALL", -1))
        for name, value in found.items():
            real = getattr(module, name, None)
            if isinstance(value, type) and isinstance(real, type) and value.__module__ == bug.module:
                for part, changed in changes(real, value):
                    plant(stack, real, part, changed)
            elif isinstance(real, types.FunctionType) and differs(code_of(real), code_of(value)):
                other_code(stack, real, value)
        assert sys.modules[bug.module] is module
        yield


def plant(stack: contextlib.ExitStack, owner: type, part: str, changed: object) -> None:
    real = vars(owner)[part]
    plain = [f for f in (real, changed) if isinstance(f, types.FunctionType) and not f.__code__.co_freevars]
    if len(plain) == 2:
        other_code(stack, *plain)
    else:
        stack.enter_context(mock.patch.object(owner, part, changed))


def other_code(stack: contextlib.ExitStack, real: types.FunctionType, changed: types.FunctionType) -> None:
    """Give a function other code.

    Other modules hold the function by an imported name or in a table, so it must stay the same object.
    """
    stack.callback(setattr, real, "__code__", real.__code__)
    real.__code__ = changed.__code__


def changes(real: type, broken: type) -> Iterator[tuple[str, object]]:
    for name, changed in vars(broken).items():
        if differs(code_of(vars(real).get(name)), code_of(changed)):
            yield name, changed


def differs(one: types.CodeType | None, other: types.CodeType | None) -> bool:
    if one is None or other is None:
        return False
    return (one.co_code, constants(one)) != (other.co_code, constants(other))


def code_of(value: object) -> types.CodeType | None:
    value = value.fget if isinstance(value, property) else getattr(value, "__wrapped__", value)
    return value.__code__ if isinstance(value, types.FunctionType) else None


def constants(code: types.CodeType) -> tuple[object, ...]:
    """Return the constants of a code object, with those of the functions inside it.

    Code objects themselves are never equal.
    """
    inner = [(c.co_code, constants(c)) if isinstance(c, types.CodeType) else c for c in code.co_consts]
    return (*inner, *code.co_names)
