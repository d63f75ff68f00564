"""Tests that `protofleet settings` prints the keys of each TOML table as the dataclasses declare them."""

import json
import os
import subprocess
import sys
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

import pytest

from protofleet.cli.main import main
from protofleet.cli.settings_tables import file_tables
from protofleet.coordinator.round.policy import Policy
from protofleet.lab.local.experiment import LocalPolicy
from protofleet.methods.contract.catalog import load
from protofleet.protocol.settings.bounds import Within
from protofleet.protocol.settings.described import keys, tables
from protofleet.protocol.settings.sentences import sentences
from tests.rooms import ROOT


@dataclass(frozen=True)
class Inner:
    """The inner table."""

    ratio: Annotated[float, Within(0, 1)] = 0.5
    """Ratio of one thing to another."""


@dataclass(frozen=True)
class Outer:
    number: Annotated[int, Within(1, 9, also=((0, "off"),))]
    word: Literal["one", "two"] = "one"
    either: Annotated[int, Within(0, 9)] | Literal["auto"] = "auto"
    limit: Annotated[float, Within(0, 1)] | None = None
    many: tuple[Annotated[int, Within(1, 9)], ...] = (20_000, 3)
    named: dict[str, tuple[str, ...]] = field(default_factory=dict)
    anything: dict[str, Any] = field(default_factory=dict)
    inner: Inner = field(default_factory=Inner)
    rows: dict[str, Inner] = field(default_factory=dict)
    hidden: str = field(default="", init=False)


def said(capsys, *words):
    assert main(["settings", *words]) == 0
    return capsys.readouterr().out


def objects(capsys, *words):
    return json.loads(said(capsys, *words, "--json"))["tables"]


def test_a_key_has_the_type_the_bounds_and_the_default_of_its_field():
    found = {one.key: (one.type, one.bounds, one.default_text) for one in keys(Outer)}
    assert found == {
        "number": ("whole number", "0 (off), or at least 1 and at most 9", "required"),
        "word": ("string", 'one of "one", "two"', '"one"'),
        "either": ("whole number or string", 'at least 0 and at most 9, or "auto"', '"auto"'),
        "limit": ("number", "at least 0 and at most 1", "left out"),
        "many": ("list of whole numbers", "each at least 1 and at most 9", "[20000, 3]"),
        "named": ("lists of strings by name", "", "{}"),
        "anything": ("table", "", "{}"),
        "inner": ("table", "", "{}"),
        "rows": ("tables by name", "", "{}"),
    }
    assert [path for path, _ in tables(Outer)] == [(), ("inner",), ("rows", "NAME")]


def test_all_tables_are_listed_with_a_line_each(capsys):
    lines = {line.split()[0]: line for line in said(capsys).splitlines()}
    for table in file_tables():
        assert len(lines[table.name].split()) > 2, f"{table.name} has no summary"
    assert "fedavg" in lines["method.NAME"]
    listed = json.loads(said(capsys, "--json"))
    assert [one["table"] for one in listed["tables"]] == [*(table.name for table in file_tables()), "method"]
    assert "method.fedavg" in listed["methods"]


def test_a_table_is_printed_with_bounds_defaults_and_sentences(capsys):
    out = said(capsys, "policy")
    assert "[policy] of an experiment\n" in out and "[policy] of a coordinator\n" in out
    assert "  attempts               = 1 " in out and '  attempts               = "auto" ' in out
    for cls in (Policy, LocalPolicy):
        for sentence in sentences(cls).values():
            assert f"      {sentence}\n" in out
    assert "at least 1 and at most 1_000_000" in out


def test_equal_tables_are_printed_once(capsys):
    out = said(capsys, "network")
    assert out.startswith("[network] of an experiment, a coordinator or a device\n")
    assert out.count("  feature_size ") == 1
    assert [one["table"] for one in objects(capsys, "network")] == [
        "experiment.network", "coordinator.network", "device.network"
    ]  # fmt: skip


def test_the_full_name_of_a_table_selects_one_file(capsys):
    (one,) = objects(capsys, "device.limits")
    assert "epochs" in {key["key"] for key in one["keys"]}
    (one,) = objects(capsys, "coordinator")
    assert {"key": "rounds", "required": True}.items() <= one["keys"][1].items()


@pytest.mark.parametrize("name", ["hosts", "hosts.NAME", "hosts.board-1", "fleet.hosts", "[hosts.board-1]"])
def test_a_table_for_each_host_is_found_with_any_host_name_and_without_one(capsys, name):
    (one,) = objects(capsys, name)
    assert one["table"] == "fleet.hosts.NAME"


def test_the_settings_of_a_method_are_printed(capsys, tmp_path):
    (one,) = objects(capsys, "method.fedavg")
    assert {key["key"]: key["sentence"] for key in one["keys"]} == sentences(load("fedavg").Hyper)
    (common,) = objects(capsys, "method")
    assert {key["key"] for key in one["keys"]} == {key["key"] for key in common["keys"]} | {"final_fit"}
    (tmp_path / "own_prox.py").write_text((ROOT / "methods" / "fedprox.py").read_text())
    (own,) = objects(capsys, f"method.{tmp_path / 'own_prox.py'}")
    assert own["keys"][-1]["sentence"] == "Weight of the proximal term; 0 means off."


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("polcy", "there is no table 'polcy'; did you mean policy? there are experiment, network"),
        ("device.polcy", "there is no table 'device.polcy'; "),
        ("method.fedavgg", "no method 'fedavgg'; did you mean fedavg? there are adcol"),
    ],
)
def test_an_unknown_table_is_refused_with_the_nearest_name(capsys, name, words):
    assert main(["settings", name]) == 2
    assert words in capsys.readouterr().err


WITHOUT_DOCSTRINGS = """
from protofleet.cli.main import main
for words in ([], ["policy"], ["method.fedprox"], ["policy", "--json"]):
    if main(["settings", *words]) != 0:
        raise SystemExit(1)
"""


@pytest.mark.slow
def test_sentences_are_printed_when_python_drops_docstrings():
    done = subprocess.run(
        [sys.executable, "-OO", "-c", WITHOUT_DOCSTRINGS],
        capture_output=True, text=True, cwd=ROOT, timeout=240,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    for words in ("The rules for rounds", "Smallest number of updates", "Weight of the proximal term"):
        assert words in done.stdout
