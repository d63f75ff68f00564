"""Tests that every field of the settings has one plain sentence, which the command line and the pages print."""

import dataclasses
import re
import subprocess
import sys
from typing import get_args, get_type_hints

import pytest

from protofleet.coordinator.config import CoordinatorSettings
from protofleet.deploy.fleet.settings import Fleet
from protofleet.edge_client.config import DeviceSettings
from protofleet.edge_client.host.overrides import Overrides
from protofleet.federation.remote.settings import OperatorSettings
from protofleet.lab.local.experiment import Experiment, LocalPolicy
from protofleet.lab.local.sweep_file import SweepFile
from protofleet.lab.virtual.profiles import Profiles
from protofleet.methods.contract.catalog import load, names
from protofleet.protocol.settings.bounds import Within
from protofleet.protocol.settings.sentences import field_docstrings, sentences, summary

FILES = [
    Experiment,
    CoordinatorSettings,
    DeviceSettings,
    OperatorSettings,
    Fleet,
    Overrides,
    SweepFile,
    Profiles,
]
HYPERS = [load(name).Hyper for name in names()]
REFUSED = {"What", "Who", "Whether", "Of", "As", "Where"}


def bound_classes(hint):
    """Yield the settings class and all settings classes in its fields."""
    if dataclasses.is_dataclass(hint) and not isinstance(hint, Within):
        yield hint
        for inner in get_type_hints(hint, include_extras=True).values():
            yield from bound_classes(inner)
    for inner in get_args(hint):
        yield from bound_classes(inner)


CLASSES = list(dict.fromkeys(cls for top in [*FILES, *HYPERS] for cls in bound_classes(top)))
FIELDS = [(cls, field.name) for cls in CLASSES for field in dataclasses.fields(cls)]


def label(part):
    return f"{part.__module__}.{part.__qualname__}" if isinstance(part, type) else part


def test_the_walk_finds_the_tables_of_all_files():
    found = {cls.__name__ for cls in CLASSES}
    assert found >= {"LocalPolicy", "Policy", "Stop", "Scale", "TlsFiles", "Host", "Slots", "Hyper"}
    assert len(FIELDS) > 400


@pytest.mark.parametrize("cls", CLASSES, ids=label)
def test_each_field_has_one_plain_sentence(cls):
    for field in dataclasses.fields(cls):
        check_sentence(cls, field.name)


def check_sentence(cls, name):
    assert name in field_docstrings(cls), f"{name}: put a sentence as a string on the line after the field"
    sentence = sentences(cls)[name]
    assert re.match(r"[A-Z0-9`]", sentence), sentence
    assert sentence.endswith(".") and not re.search(r"[.!?] [A-Z]", sentence), sentence
    assert sentence.split()[0] not in REFUSED, sentence
    # Sphinx reads what precedes a colon in the first line as the type of the field.
    assert ":" not in field_docstrings(cls)[name].splitlines()[0], sentence


@pytest.mark.parametrize("cls", [cls for cls in CLASSES if cls.__name__ != "Hyper"], ids=label)
def test_each_settings_class_has_a_summary(cls):
    assert re.fullmatch(r"[A-Z].*\.", summary(cls))


def test_a_redeclared_field_keeps_its_sentence_or_has_its_own():
    assert sentences(LocalPolicy)["attempts"] == sentences(LocalPolicy.__base__)["attempts"]
    assert sentences(LocalPolicy)["gather"] != sentences(LocalPolicy.__base__)["gather"]


def test_a_class_without_source_has_no_sentences():
    made = dataclasses.make_dataclass("Made", [("a", int)])
    assert sentences(made) == {} and summary(made) == ""
    assert sentences(int) == {} and summary(int) == ""


def test_sentences_are_available_when_python_drops_docstrings():
    code = (
        "from protofleet.coordinator.round.policy import Stop; "
        "from protofleet.protocol.settings.sentences import sentences, summary; "
        "print('early' in Stop.__doc__, sentences(Stop)['accuracy'], summary(Stop))"
    )
    done = subprocess.run(
        [sys.executable, "-OO", "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.startswith("False Validation accuracy") and "policy.stop" in done.stdout
