"""Tests that the documents import only names that docs/python.md calls public."""

import json
import re
from pathlib import Path

import pytest

import protofleet

DOCS = Path(__file__).parents[1] / "docs"
PYTHON = (DOCS / "python.md").read_text()
PAGES = [*sorted(DOCS.glob("*.md")), DOCS.parent / "README.md"]
METHOD = re.compile(r"protofleet\.methods\.[a-z]+")  # The module of each method of ours.


def public_by_path():
    """Return the (module, name) pairs in the table of modules."""
    found = set()
    for modules, names in re.findall(r"^\| (`protofleet\.[^|]+) \| ([^|]+) \|$", PYTHON, re.MULTILINE):
        first, *others = re.findall(r"`([\w.]+)`", modules)
        places = [first, *(first.rpartition(".")[0] + other for other in others)]
        found |= {(place, name) for place in places for name in re.findall(r"`(\w+)`", names)}
    return found


def examples():
    for page in PAGES:
        for number, text in enumerate(re.findall(r"^```python.*?\n(.*?)^```", page.read_text(), re.M | re.S)):
            yield pytest.param(text, id=f"{page.name}-{number}")
    for path in sorted((DOCS / "examples").glob("*")):
        if path.suffix == ".py":
            yield pytest.param(path.read_text(), id=path.name)
        if path.suffix == ".ipynb":
            cells = [c["source"] for c in json.loads(path.read_text())["cells"] if c["cell_type"] == "code"]
            yield pytest.param("\n".join("".join(cell) for cell in cells), id=path.name)


IMPORT = re.compile(
    r"^\s*(?:from (protofleet[\w.]*) import (\([^)]*\)|[^\n#]+)|import (protofleet[\w.]*))", re.MULTILINE
)


def imported(text):
    """Yield (module, name) of what an example imports from protofleet; the example may be part of a file."""
    for module, names, whole in IMPORT.findall(text):
        if whole:
            yield whole, ""
        for name in filter(None, re.split(r"[\s,()]+", re.sub(r" as \w+", "", names))):
            yield module, name


def is_public(module, name):
    if module == "protofleet":
        return name in protofleet.__all__ or name in ("", "testing")
    if module == "protofleet.methods":
        return METHOD.fullmatch(f"{module}.{name}") is not None
    if module == "protofleet.testing":
        return name == "simulate"
    return METHOD.fullmatch(module) is not None or (module, name) in public_by_path()


@pytest.mark.parametrize("text", [*examples()])
def test_an_example_imports_only_public_names(text):
    assert [place for place in imported(text) if not is_public(*place)] == []


def test_the_page_names_every_public_name():
    lacking = [name for name in protofleet.__all__ if not re.search(rf"`{name}\b", PYTHON)]
    assert lacking == []


def test_public_modules_are_found_by_their_paths():
    assert ("protofleet.methods.served.rebuild", "rebuild") in public_by_path()
    assert not is_public("protofleet.methods.contract.base", "Method")
