"""Rules for the tests: they use only public names, wait for events instead of sleeping, and can fail."""

import ast
import functools
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

HERE = Path(__file__).parent
FILES = sorted(HERE.rglob("*.py"))
CHECKS = sorted((HERE.parent / "lab" / "contract").glob("*.py"))
INSIDE = {
    "simulator/federation.py": "closes the files of a dead process, as the system does, and audits the open files",
    "chaos/party.py": "reports the current line of a live process that does not end",
}
ANY_MISTAKE = {"Exception", "BaseException", "ValueError", "TypeError", "RuntimeError", "OSError", "LookupError",
               "KeyError", "AttributeError", "AssertionError"}  # fmt: skip
OTHERS = {"_exit", "_Pickler", "_replace", "_make"}  # Public names of Python that begin with an underscore.
OTHERS |= {"_to_copy", "_make_wrapper_subclass", "_C"}  # Names of torch, for other kinds of tensors.
# The other files are not parsed, because each use of a private member and each sleep contains one of these words.
CANDIDATE = re.compile(r"(?<!\bself\.)\b_[A-Za-z]|setattr|sleep")


def private(tree: ast.AST) -> Iterator[str]:
    """Yield the uses of private members of other objects: named, imported, or given to setattr as a string."""
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(ast.Name("self" | "cls") | ast.Call(ast.Name("super")), _):
                pass
            case ast.Attribute(_, name) if hidden(name):
                yield f"line {node.lineno}: {ast.unparse(node)}"
            case ast.ImportFrom(_, names):
                yield from (f"line {node.lineno}: {one.name}" for one in names if hidden(one.name))
            case ast.Call(ast.Attribute(_, "setattr") | ast.Name("setattr"), arguments):
                named = [one.value for one in arguments[:2] if isinstance(one, ast.Constant)]
                yield from (f"line {node.lineno}: {one}" for one in named if hidden(str(one).split(".")[-1]))


def hidden(name: str) -> bool:
    return bool(re.match(r"_[A-Za-z]", name)) and name not in OTHERS


def sleeps(text: str, tree: ast.AST) -> Iterator[str]:
    """Yield the sleeps that are outside of while loops and have no comment with a reason on their line."""
    lines = text.splitlines()
    turns = {id(inner) for loop in ast.walk(tree) if isinstance(loop, ast.While) for inner in ast.walk(loop)}
    calls = [one for one in ast.walk(tree) if isinstance(one, ast.Call) and id(one) not in turns]
    for call in calls:
        if ast.unparse(call.func) == "time.sleep" and "  # " not in lines[call.lineno - 1]:
            yield f"line {call.lineno}: {ast.unparse(call)}"


def name_of(node: ast.AST) -> str:
    match node:
        case ast.Call(ast.Name(name) | ast.Attribute(_, name)):
            return name
    return ""


def calls(function: ast.AST) -> frozenset[str]:
    """Return the names of what a function calls, and "assert" if it asserts or raises."""
    names = {
        "assert" if isinstance(node, ast.Assert | ast.Raise) else name_of(node) for node in ast.walk(function)
    }
    return frozenset("assert" if name.startswith(("assert", "raises")) else name for name in names if name)


class Seen(NamedTuple):
    """The facts about a file that tell whether its tests can fail."""

    called: list[tuple[str, frozenset[str]]]  # The functions and what they call.
    unspecific: list[str]


@functools.cache
def seen_in(path: Path) -> Seen:
    """Parse a file once for both questions, because parsing takes most of the time."""
    tree = ast.parse(path.read_text())
    return Seen(called_in(tree), list(unspecific(tree)))


def called_in(tree: ast.AST) -> list[tuple[str, frozenset[str]]]:
    return [(node.name, calls(node)) for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]


@functools.cache
def asserting() -> frozenset[str]:
    """Return the names of all functions of tests and shipped checks that assert, or call a function that does."""
    called = [one for path in [*FILES, *CHECKS] for one in seen_in(path).called]
    found = frozenset({"assert"})
    while (more := found | {name for name, names in called if names & found}) != found:
        found = more
    return found


def without_assertion(called: list[tuple[str, frozenset[str]]], helpers: frozenset[str]) -> list[str]:
    return [name for name, names in called if name[:5] == "test_" and not names & helpers]


def unspecific(tree: ast.AST) -> Iterator[str]:
    """Yield each `pytest.raises` of a very common error whose message the test does not check."""
    for item in (item for node in ast.walk(tree) if isinstance(node, ast.With) for item in node.items):
        match item.context_expr:
            case ast.Call(ast.Attribute(ast.Name("pytest"), "raises"), [ast.Name(name)], []) as call:
                if name in ANY_MISTAKE and item.optional_vars is None:
                    yield f"line {call.lineno}: {ast.unparse(call)}"


def test_each_test_asserts_something_and_checks_the_words_of_common_errors():
    empty = {str(path): without_assertion(seen_in(path).called, asserting()) for path in FILES}
    assert {path: names for path, names in empty.items() if names} == {}, (
        "assert the behaviour that the name states"
    )
    unclear = {str(path): seen_in(path).unspecific for path in FILES}
    assert {path: found for path, found in unclear.items() if found} == {}, "match the error's words"


def test_tests_without_assertions_and_raises_without_match_are_found():
    empty, helped = (called_in(ast.parse(f"def test_a(): {body}")) for body in ("go()", "checked(go())"))
    assert without_assertion(empty, frozenset({"checked"})) == ["test_a"]
    assert without_assertion(helped, frozenset({"checked"})) == []
    assert list(unspecific(ast.parse("with pytest.raises(ValueError): go()")))
    assert not list(unspecific(ast.parse("with pytest.raises(ValueError, match='no'): go()")))
    assert not list(unspecific(ast.parse("with pytest.raises(ValueError) as error: go()")))


def test_no_test_uses_private_members_or_sleeps_without_a_reason():
    for path in FILES:
        text = path.read_text()
        tree = ast.parse(text if CANDIDATE.search(text) else "")
        if str(path.relative_to(HERE)) not in INSIDE:
            assert not list(private(tree)), (
                f"{path}: test the public result, or give the member a public name"
            )
        assert not list(sleeps(text, tree)), (
            f"{path}: wait for a condition, or give on the line the reason for the sleep"
        )


@pytest.mark.parametrize(
    "text",
    ["run._workers", "a.b._c = 1", "from a import _b", "patch.setattr('a.b._c', 1)", "setattr(A, '_b', 1)"],
)
def test_each_use_of_a_private_member_is_found(text):
    assert list(private(ast.parse(text)))
    assert not list(private(ast.parse("self._a; super()._b(); a.__dict__; row._replace(b=1); os._exit(0)")))


def test_a_sleep_is_found_unless_it_has_a_reason():
    bare = "time.sleep(1)\n"
    explained = "time.sleep(1)  # as long as it takes\nwhile not over():\n    time.sleep(0.1)\n"
    assert list(sleeps(bare, ast.parse(bare)))
    assert not list(sleeps(explained, ast.parse(explained)))
