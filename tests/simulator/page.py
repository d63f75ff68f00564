"""Write the table of planted bugs in docs/simulator.md anew, from planted.toml.

The command is `python -m tests.simulator.page`.
"""

from tests.simulator.planted import BUGS
from tools.pages.generated_table import DOCS, replace_table

PAGE = DOCS / "simulator.md"
HEAD = "| part | bug | seeds of 300 that find it | broken promise | test that finds it |\n|---|---|---|---|---|\n"


def row(bug):
    where, _, what = bug.name.partition(": ")
    path, _, function = bug.test.removeprefix("tests/").partition("::")
    return f"| {where} | {what} | {bug.of_300 or 'not counted'} | {bug.seen_as} | `{path}`: `{function}` |\n"


def generate(text):
    """Replace the table in the page; bugs of the same part stand together."""
    bugs = sorted(BUGS.values(), key=lambda bug: bug.name.partition(": ")[0])
    return replace_table(text, "tests.simulator.page", HEAD + "".join(map(row, bugs)))


if __name__ == "__main__":
    PAGE.write_text(generate(PAGE.read_text()))
