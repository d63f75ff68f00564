"""The docstring of a function begins with a verb in the imperative, which tells what the function does."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = (
    "benchmarks",
    "coordinator",
    "deploy",
    "edge_client",
    "federation",
    "lab",
    "methods",
    "protocol",
    "protofleet",
    "runtime",
    "tests",
    "tools",
)
FILES = sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))
PRONOUNS = (
    "all another both each every everybody he her his how it its itself many nobody none one other others our she "
    "some somebody such that their them these they this those we what whatever when where whether which whichever "
    "who whoever whom whose why you your"
)
PREPOSITIONS = (
    "about above across after against along among around as at because before behind below beneath beside between "
    "beyond but by despite down during except for from if in inside into like near of off on once onto out over per "
    "since than though through to towards under unless until up upon while with within without"
)
REFUSED = frozenset(f"{PRONOUNS} {PREPOSITIONS} a an the no not also only so then there here".split())
# These words end like participles but are verbs.
VERBS = {"bring", "embed", "feed", "need", "read", "seed", "shed", "speed", "spread", "string"}


def functions(path):
    tree = ast.parse(path.read_text())
    for node in ast.walk(tree):
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) or node.name.startswith("test_"):
            continue  # a test's docstring gives its reason
        if text := (ast.get_docstring(node, clean=False) or "").strip():
            yield node, text


def is_refused(text):
    word = text.split()[0].strip("`*\"'.,:;()").lower()
    participle = word.endswith(("ing", "ed")) and word not in VERBS
    return word in REFUSED or participle


@pytest.mark.parametrize("package", PACKAGES)
def test_the_docstring_of_a_function_begins_with_a_verb(package):
    wrong = [
        f"{path.relative_to(ROOT)}:{node.lineno} {node.name}: {text.splitlines()[0]}"
        for path in FILES
        if path.relative_to(ROOT).parts[0] == package
        for node, text in functions(path)
        if is_refused(text)
    ]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize(
    "text", ["What comes back.", "Whether it is.", "Of a run.", "Waited for.", "Sending."]
)
def test_a_docstring_without_a_verb_at_its_start_is_refused(text):
    assert is_refused(text)


@pytest.mark.parametrize("text", ["Return the devices.", "Read a file.", "Embed samples.", "Bring it back."])
def test_a_docstring_with_a_verb_at_its_start_is_accepted(text):
    assert not is_refused(text)
