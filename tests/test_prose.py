"""Tests that the pages are easy to read: no paragraph has over 120 words, no list item over 60.

A word is what `wc -w` counts. Code blocks, tables, headings and HTML comments do not count. A nested list item counts
alone. The text of CHANGELOG.md is not checked.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGES = [
    *sorted((ROOT / "docs").glob("*.md")),
    *(page for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md") if (page := ROOT / name).exists()),
]
LIMITS = {"paragraph": 120, "list item": 60}
HIDDEN = re.compile(r"^ *(```+|~~~+).*?^ *\1 *$|<!--.*?-->", re.MULTILINE | re.DOTALL)
ITEM = re.compile(r"( *)(?:[-*+]|\d+[.)]) +(.*)")
NO_PROSE = re.compile(r" *(?:\||#+ |(?:-{3,}|\*{3,}|_{3,}) *$)")  # a row of a table, a heading, a rule


@dataclass
class Piece:
    """A paragraph or a list item of a page."""

    kind: str
    line: int
    indent: int
    words: int = 0


def visible(text: str) -> str:
    """Remove code blocks and HTML comments, and keep the number of each line."""
    return HIDDEN.sub(lambda hidden: "\n" * hidden[0].count("\n"), text)


def indent_of(line: str) -> int:
    return len(line) - len(line.lstrip(" "))


def pieces(text: str) -> Iterator[Piece]:
    """Yield the paragraphs and list items of a page. Indented paragraphs belong to the list item above them."""
    open_items: list[Piece] = []
    paragraph: Piece | None = None
    after_gap = True
    for number, line in enumerate(visible(text).splitlines(), 1):
        if not line.strip() or NO_PROSE.match(line):
            paragraph, after_gap = None, True
            continue
        item = ITEM.fullmatch(line)
        if item or after_gap:
            open_items = [one for one in open_items if one.indent < indent_of(line)]
        if item:
            paragraph = None
            open_items.append(Piece("list item", number, len(item[1])))
            yield open_items[-1]
        elif not open_items and paragraph is None:
            paragraph = Piece("paragraph", number, 0)
            yield paragraph
        target = open_items[-1] if open_items else paragraph
        assert target is not None
        target.words += len((item[2] if item else line).split())
        after_gap = False


def too_long(name: str, text: str) -> list[str]:
    """Return one message for each paragraph and each list item that has too many words."""
    return [
        f"{name}:{one.line}: {one.kind} of {one.words} words, limit {LIMITS[one.kind]}"
        for one in list(pieces(text))
        if one.words > LIMITS[one.kind]
    ]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_no_paragraph_and_no_list_item_is_too_long(page):
    wrong = too_long(str(page.relative_to(ROOT)), page.read_text())
    assert not wrong, "\n".join(["divide these, or use a table or numbered steps:", *wrong])


def words(number: int) -> str:
    """Return that many words, ten on each line."""
    return "".join("word" + ("\n" if i % 10 == 9 else " ") for i in range(number))


def test_a_paragraph_of_120_words_is_accepted():
    assert too_long("a.md", f"# Title\n\n{words(120)}\n\n{words(120)}\n") == []


def test_a_paragraph_of_121_words_is_refused_with_file_line_and_count():
    assert too_long("a.md", f"# Title\n\n{words(121)}\n") == ["a.md:3: paragraph of 121 words, limit 120"]


@pytest.mark.parametrize("mark", ["-", "*", "+", "1.", "12)"])
def test_a_list_item_of_60_words_is_accepted(mark):
    assert too_long("a.md", f"{mark} {words(60)}\n{mark} {words(60)}\n") == []


@pytest.mark.parametrize("mark", ["-", "*", "+", "1.", "12)"])
def test_a_list_item_of_61_words_is_refused(mark):
    assert too_long("a.md", f"Text:\n{mark} {words(61)}\n") == ["a.md:2: list item of 61 words, limit 60"]


def test_a_nested_list_item_is_counted_alone():
    assert too_long("a.md", f"- {words(60)}\n  - {words(60)}\n  - {words(60)}\n") == []
    assert too_long("a.md", f"- one\n  - {words(61)}\n") == ["a.md:2: list item of 61 words, limit 60"]


def test_an_indented_paragraph_is_counted_with_its_list_item():
    assert too_long("a.md", f"- {words(50)}\n\n  {words(11)}\n") == [
        "a.md:1: list item of 61 words, limit 60"
    ]


def test_a_paragraph_after_a_list_is_counted_as_a_paragraph():
    assert too_long("a.md", f"- one\n\n{words(120)}\n") == []


@pytest.mark.parametrize(
    "block",
    [
        "```sh long\n{}\n```",
        "   ```text\n{}\n   ```",
        "````\n```\n{}\n````",
        "<!-- {} -->",
        "| {} |",
    ],
)
def test_code_comments_and_tables_are_not_counted(block):
    text = "word " * 200 if block.startswith("|") else words(200)
    assert too_long("a.md", f"One.\n\n{block.format(text)}\n\nTwo.\n") == []


def test_a_code_block_does_not_change_the_line_number_of_a_later_paragraph():
    page = f"```\n{words(40)}```\n\n{words(121)}\n"
    assert too_long("a.md", page) == ["a.md:8: paragraph of 121 words, limit 120"]
