"""Observers cannot change a run through its view."""

import dataclasses
from collections.abc import Mapping
from enum import Enum
from pathlib import Path
from types import MappingProxyType

import pytest

from protofleet.coordinator.observe.view import RunView
from tests.support.small_federation import simulation

READ = [name for name, what in vars(RunView).items() if isinstance(what, property)]
ASKED = {
    "rules": (),
    "answers": (2, "train"),
    "arrays": (2, "evaluate"),
    "traffic": (),
    "traffic_by_device": (),
    "earlier_traffic": (2,),
    "uncoded": (2,),
    "missing": (),
    "is_enrolled": ("device-0",),
    "selects": ("device-0",),
}
# These can be changed, but a change has no effect on the run.
COPIES = ("traffic", "traffic_by_device", "missing", "earlier_traffic")


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    run = simulation(tmp_path_factory.mktemp("run"), "fedavg")
    run.run(until=lambda: run.service.run.machine.round == 2 and bool(run.service.run.machine.answered))
    return run.service.run


def changeable(value, seen=""):
    """Return the path and the type of each part of `value` that code could change."""
    match value:
        case None | bool() | int() | float() | str() | bytes() | Enum() | Path():
            return []
        case tuple() | frozenset():
            return [found for inner in value for found in changeable(inner, seen)]
        case MappingProxyType():
            return [found for inner in value.values() for found in changeable(inner, f"{seen}[...]")]
    if dataclasses.is_dataclass(value) and value.__dataclass_params__.frozen:
        return []
    return [f"{seen}: {type(value).__name__}"]


@pytest.mark.parametrize("name", READ)
def test_a_property_of_the_view_cannot_be_assigned_and_its_value_cannot_be_changed(run, name):
    with pytest.raises(AttributeError, match=name):
        setattr(run.view, name, None)
    assert name in COPIES or changeable(getattr(run.view, name), name) == []


@pytest.mark.parametrize("name", ASKED)
def test_a_changed_copy_does_not_change_the_run(run, name):
    def asked():
        return getattr(run.view, name)(*ASKED[name])

    before = repr(asked())
    match asked():
        case bool():
            return
        case MappingProxyType() as found:
            assert changeable(found, name) == []
        case Mapping() as found:
            found.clear()
        case list() as found:
            found.append(None)
        case meter:
            meter.payload.clear()
    assert repr(asked()) == before


def test_this_file_tries_each_method_of_the_view():
    methods = {name for name, what in vars(RunView).items() if callable(what) and not name.startswith("_")}
    assert methods == ASKED.keys()
