"""Tests that each number in the settings has two bounds; a value outside gives one line and exit code 2.

The tests find the settings by walking the dataclasses into which the tables are decoded, so they also find new ones.
"""

import argparse
import ast
import dataclasses
import functools
import math
import os
import subprocess
import sys
import types
from pathlib import Path
from typing import Annotated, Literal, Union, get_args, get_origin, get_type_hints

import pytest

from protofleet.coordinator.config import CoordinatorSettings
from protofleet.deploy.fleet.settings import Fleet
from protofleet.edge_client.config import DeviceSettings
from protofleet.edge_client.host.overrides import Overrides
from protofleet.federation.remote.settings import OperatorSettings
from protofleet.lab.local.experiment import Experiment
from protofleet.methods.contract.catalog import load, names
from protofleet.protocol.settings.bounds import Within
from protofleet.protocol.settings.reader import SettingsError, decode
from protofleet.runtime.command import arguments
from tools.pages import bounds as bounds_page

ROOT = Path(__file__).parents[3]
RUN = {"name": "absurd", "rounds": 1, "classes": 10, "method": {"name": "fedavg"}}
LEAST = {  # The smallest valid content of each table.
    Experiment: RUN,
    CoordinatorSettings: RUN,
    DeviceSettings: {"name": "a"},
    Fleet: {"root": "root", "hosts": {"a": {"address": "a"}}},
    Overrides: {},
    OperatorSettings: {},
}
NEVER = [
    math.nan,
    -math.inf,
    -(10**20),
    2**64,
    10**20,
    10**400,
    1e308,
    1e39,
    "",
    "1",
    [],
    [1],
    {},
    {"a": 1},
    True,
]
EDGES = [math.inf, -1, 0, 1e-300]  # Values that a few numbers may have.
MAY_BE_INFINITE = {"CoordinatorSettings.limits.norm", "DeviceSettings.patience_seconds"}


@dataclasses.dataclass(frozen=True)
class Leaf:
    """A number in a settings table: its path and its type as the dataclass declares it."""

    top: type
    path: tuple[str, ...]
    hint: object
    listed: bool = False  # Whether the number is an item of a list.

    def __str__(self):
        return ".".join((self.top.__name__, *self.path))

    def set(self, value):
        table = dict(LEAST[self.top])
        place = table
        for name in self.path[:-1]:
            place[name] = dict(place.get(name, {}))
            place = place[name]
        place[self.path[-1]] = value
        return table


@functools.cache
def hints(cls):
    """Return the type of each field; this is slow, and each test process needs all of them when it collects tests."""
    found = get_type_hints(cls, include_extras=True)
    return {field.name: found[field.name] for field in dataclasses.fields(cls)}


def leaves(top, cls, path=()):
    """Yield a leaf for each number in the settings class.

    The values of a dict have the path of the dict and the name "a"; the values of a list have the path of the list.
    """
    for name, hint in hints(cls).items():
        yield from below(top, hint, (*path, name))


def below(top, hint, path):
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        yield from below(top, next(a for a in arguments if a is not type(None)), path)
    elif dataclasses.is_dataclass(hint):
        yield from leaves(top, hint, path)
    elif origin is tuple:
        for leaf in below(top, arguments[0], path):
            yield dataclasses.replace(leaf, listed=True)
    elif origin is dict:
        yield from below(top, arguments[1], (*path, "a"))
    elif origin is Annotated or hint in (int, float):
        yield Leaf(top, path, hint)


LEAVES = [leaf for top in LEAST for leaf in leaves(top, top)]
HYPERS = [(name, leaf) for name in names() for leaf in leaves(load(name).Hyper, load(name).Hyper)]


def complaint(cls, table):
    """Return the message of the SettingsError for a table, or None if it is accepted; do not catch other errors."""
    try:
        decode(cls, table)
    except SettingsError as error:
        return str(error)
    return None


def test_the_walk_finds_the_numbers_of_nested_tables_lists_and_names():
    found = {str(leaf) for leaf in LEAVES}
    assert found >= {
        "Experiment.policy.quorum", "Experiment.devices.clients.a", "Experiment.pictures.rounds",
        "CoordinatorSettings.limits.norm", "CoordinatorSettings.network.feature_size",
        "DeviceSettings.data.own_test", "DeviceSettings.broker.port", "Fleet.hosts.a.port",
        "Overrides.trainer_seconds",
    }  # fmt: skip
    assert len(LEAVES) > 80 and {name for name, _ in HYPERS} == set(names())


def test_every_number_has_a_bound_on_both_sides():
    for leaf in [*LEAVES, *(leaf for _, leaf in HYPERS)]:
        assert get_origin(leaf.hint) is Annotated, (
            f"{leaf} has no bound; say one of protofleet.protocol.settings.bounds"
        )
        (bound,) = (b for b in leaf.hint.__metadata__ if isinstance(b, Within))
        assert math.isfinite(bound.least) and math.isfinite(bound.most) and bound.least < bound.most, leaf


@pytest.mark.parametrize("leaf", LEAVES, ids=str)
def test_an_absurd_number_is_refused_in_one_line_that_names_the_key(leaf):
    for value in [*NEVER, *EDGES]:
        tried = [value] if leaf.listed else value
        words = complaint(leaf.top, leaf.set(tried))
        assert words is not None or value in EDGES, (value, "is taken")
        assert words is None or ("\n" not in words and len(words) < 400), words
        if value not in EDGES:
            assert leaf.path[-1] in words
    infinite = complaint(leaf.top, leaf.set(math.inf))
    assert (infinite is None) == (str(leaf) in MAY_BE_INFINITE)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "leaf"), HYPERS, ids=lambda part: str(part))
def test_an_absurd_number_of_a_method_is_refused_in_one_line_that_names_the_key(name, leaf):
    for value in [*NEVER, *EDGES]:
        table = {**RUN, "method": {"name": name, leaf.path[-1]: value}}
        words = complaint(CoordinatorSettings, table)
        assert words is not None or value in EDGES[1:], (value, "is taken")
        assert words is None or ("\n" not in words and f"{leaf.path[-1]} is" in words), words


def texts(cls):
    for name, hint in hints(cls).items():
        if hint is str or get_origin(hint) is Literal or hint is bool:
            yield name


@pytest.mark.parametrize(("top", "key"), [(top, key) for top in LEAST for key in texts(top)])
def test_a_value_that_is_not_text_is_refused_in_one_line_that_names_the_key(top, key):
    for value in (math.nan, -1, 2**64, [], {}, [[]]):
        words = complaint(top, {**LEAST[top], key: value})
        assert words and key in words and "\n" not in words
    for value in ("", "\n", "\x00", "a" * 100_000):
        words = complaint(top, {**LEAST[top], key: value})
        assert words is None or "\n" not in words


def test_the_page_of_bounds_is_up_to_date():
    """If this test fails, run `python -m tools.pages.bounds`."""
    assert bounds_page.PAGE.read_text() == bounds_page.generate()
    bounds, _, _ = bounds_page.generate().partition("\n## All settings\n")
    assert bounds.count("\n| `") == len(LEAVES) + len(HYPERS)


# The numbers of command lines.


# The bounds of a size are tested in tests/lab/report/test_front.py, and of a share in tests/lab/local/test_share.py.
NO_NUMBERS = {"Path", "broker_changes", "_version", "_format", "experiment_file", "size_in_bytes"} | {
    "share_of_devices"
}
NUMBERS = {name: kind for name, kind in vars(arguments).items() if isinstance(kind, arguments.BoundedNumber)}


def added_arguments():
    """Yield the path and the syntax tree of each call of `add_argument` in the packages with command lines."""
    for package in ("protofleet", "lab", "federation", "deploy", "runtime"):
        for path in sorted((ROOT / package).rglob("*.py")):
            for call in ast.walk(ast.parse(path.read_text())):
                if isinstance(call, ast.Call) and getattr(call.func, "attr", "") == "add_argument":
                    yield path.relative_to(ROOT), call


def test_every_number_of_a_command_line_has_a_bound_on_both_sides():
    found = [
        (str(path), keyword.value.id)
        for path, call in added_arguments()
        for keyword in call.keywords
        if keyword.arg == "type"
    ]
    assert not {kind for _, kind in found} - {*NO_NUMBERS, *NUMBERS}, found
    assert sum(kind in NUMBERS for _, kind in found) > 15
    assert all(math.isfinite(n.bound.least) and math.isfinite(n.bound.most) for n in NUMBERS.values())


def asked_for(number):
    """Return the expected words of an error; they name the bound, except for seeds."""
    return (
        "it must be a whole number"
        if number in (arguments.SEED, arguments.SEEDS)
        else "it must be a .*(at least|above)"
    )


@pytest.mark.parametrize("name", NUMBERS)
def test_an_absurd_number_of_a_command_line_is_refused(name):
    for text in ("nan", "inf", "-inf", "18446744073709551616", "1" + "0" * 400, "1e308", "", "x", "[1]"):
        with pytest.raises(argparse.ArgumentTypeError, match=asked_for(NUMBERS[name])) as error:
            NUMBERS[name](text)
        assert "\n" not in str(error.value) and len(str(error.value)) < 300


# Tests that run the commands.


def command(folder, *words):
    return subprocess.run(
        [sys.executable, "-m", "protofleet", *words], cwd=folder, capture_output=True, text=True, timeout=120,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip


FILES = {
    "run": 'name = "absurd"\nrounds = 1\n[method]\nname = "fedavg"\n',
    "coordinator": 'name = "absurd"\nrounds = 1\nclasses = 10\n[method]\nname = "fedavg"\n',
    "device": 'name = "a"\n',
}


@pytest.mark.parametrize(
    "words",
    [
        ["run", "given.toml", "--seeds", "1", "18446744073709551616"],
        ["enrol", "root", "root", "--years", "nan"],
        ["enrol", "fleet", "here", "--count", "100000000000000000000"],
        ["deploy", "tune", "--hours", "1e308"],
        ["go-on", "here", "--from-round", "0"],
        ["compare", "here", "--share", "-1"],
        ["enrol"],
        ["no-such-command"],
    ],
    ids=lambda words: "-".join(words[:2]),
)
def test_an_invalid_command_line_gives_one_line_and_exit_code_2(tmp_path, words):
    done = command(tmp_path, *words)
    (line,) = done.stderr.splitlines()
    assert done.returncode == 2 and line.startswith("protofleet") and "--help" in line
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("job", "change"),
    [
        ("run", "seed=18446744073709551616"),
        ("run", "rounds=100000000000000000000"),
        ("run", "network.feature_size=1000000000"),
        ("run", "data.size=100000"),
        ("coordinator", "size=0"),
        ("coordinator", "network.feature_size=-5"),
        ("coordinator", "network.feature_size=0"),
        ("coordinator", "patience_seconds=nan"),
        ("coordinator", "watchdog_seconds=1e-6"),
        ("coordinator", "policy.patience_seconds=-1"),
        ("device", "data.size=0"),
        ("device", "patience_seconds=-1"),
        ("device", "session_seconds=4294967296"),
    ],
)
def test_a_command_refuses_an_absurd_number_with_one_line_and_exit_code_2(tmp_path, job, change):
    (tmp_path / "given.toml").write_text(FILES[job])
    done = command(tmp_path, job, "given.toml", "--set", change)
    assert done.returncode == 2, done
    (line,) = done.stderr.splitlines()
    key, value = change.split("=")
    assert (
        line.startswith("protofleet: given.toml with --set: ") and f"{key} is " in line and "must be" in line
    )
    assert sorted(path.name for path in tmp_path.iterdir()) == ["given.toml"]
