"""`import protofleet` gives the public names, is cheap, and shows a type checker the same names."""

import ast
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

import protofleet
from tests.rooms import ROOT

STUB = ast.parse((ROOT / "protofleet" / "__init__.pyi").read_text())


def test_import_protofleet_loads_no_torch_and_no_submodule():
    code = "import sys, protofleet; dir(protofleet); print(*(m for m in sys.modules if m[:5] in ('torch', 'proto')))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout.split() == ["protofleet"], done.stderr


@pytest.mark.parametrize("name", protofleet.__all__)
def test_each_public_name_exists_and_is_the_same_object_in_the_stub(name):
    found = getattr(protofleet, name)
    (line,) = [one for one in STUB.body if [alias.asname for alias in one.names] == [name]]
    module = import_module(line.module)
    assert getattr(module, line.names[0].name) is found
    assert name in dir(protofleet)


def test_the_stub_has_only_the_public_names():
    named = [alias.asname for line in STUB.body for alias in line.names]
    assert sorted(named) == sorted(protofleet.__all__) == list(protofleet.__all__)


def test_the_error_for_a_name_that_is_not_public_lists_the_public_names():
    with pytest.raises(AttributeError, match=r"has no public 'rnu'; the public names are .*run"):
        getattr(protofleet, "rnu")  # noqa: B009 - the name is no attribute that a checker would know


def test_the_page_about_python_lists_every_public_name():
    page = (Path(ROOT) / "docs" / "python.md").read_text()
    assert [name for name in protofleet.__all__ if f"`{name}" not in page] == []
