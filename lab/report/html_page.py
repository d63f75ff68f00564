"""Make an HTML page with sections, tables and parts that the reader can unfold. It needs no other file.

The page can also be used with a keyboard or a screen reader. Every table has a caption and marks its head
cells. If content may be wider than the screen, it is in a region that the keyboard can scroll. A shadow shows
at which side the content continues.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from html import escape
from pathlib import Path
from typing import Final

HEADING: Final = re.compile(r'<h2 id="([^"]+)">(.*?)</h2>')
FEWEST_LINKS: Final = 3  # A page with at least this number of sections begins with a list of links.

HASH: Final = re.compile(r"\b[0-9a-f]{64}\b")  # The form of a SHA-256.
HASH_DIGITS: Final = 12


def page(title: str, content: str, width: str = "") -> str:
    style = (Path(__file__).parent / "report.css").read_text()
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>'
        f'<meta name="viewport" content="width=device-width"><meta name="color-scheme" content="light dark">'
        f'<style>{style}</style></head><body><main class="{width}">'
        f"{_with_links(content)}</main></body></html>\n"
    )


def _with_links(content: str) -> str:
    """Put a list of the sections before the first section."""
    found = HEADING.findall(content)
    if len(found) < FEWEST_LINKS:
        return content
    links = "".join(f'<li><a href="#{name}">{text}</a></li>' for name, text in found)
    before, first, rest = content.partition("<section>")
    return f'{before}<nav aria-label="sections of this page"><ul>{links}</ul></nav>{first}{rest}'


def section(title: str, *content: str, note: str = "") -> str:
    """Make a section. `note` is a paragraph under the title, and `content` is the HTML of the section."""
    text = f"<p>{escape(note)}</p>" if note else ""
    return f'<section><h2 id="{slug(title)}">{escape(title)}</h2>{text}{"".join(content)}</section>'


def table(
    caption: str,
    head: Sequence[str],
    rows: Sequence[Sequence[str]],
    best: Collection[tuple[int, int]] = (),
    words: bool = False,
    left: Collection[int] = (),
    struck: Collection[int] = (),
) -> str:
    """Make a table. The first cell of each row is a heading.

    `best` has the row and the column of each cell that is bold. If `words` is true, the table has no numbers.
    Otherwise `left` has the columns with words, which are aligned to the left. The rows in `struck` are struck out.
    """
    kinds = [' class="word"' if j in left else "" for j in range(len(head))]
    top = "".join(f'<th scope="col"{kind}>{escape(h)}</th>' for kind, h in zip(kinds, head, strict=True))
    body = "".join(
        "<tr>"
        + "".join(_cell(text, j, (i, j) in best, kinds[j], i in struck) for j, text in enumerate(row))
        + "</tr>"
        for i, row in enumerate(rows)
    )
    kind = ' class="words"' if words else ""
    html = (
        f"<table{kind}><caption>{escape(caption)}</caption><thead><tr>{top}</tr></thead>"
        f"<tbody>{body}</tbody></table>"
    )
    return scrolling(caption, html)


def _cell(text: str, column: int, best: bool, kind: str, struck: bool = False) -> str:
    content = HASH.sub(_short, escape(text))
    content = f"<strong>{content}</strong>" if best else content
    content = f"<s>{content}</s>" if struck and text else content
    return f"<td{kind}>{content}</td>" if column else f'<th scope="row">{content}</th>'


def _short(found: re.Match[str]) -> str:
    """Shorten a hash.

    A short hash is enough to compare two runs. With whole hashes, the other columns would not fit on the screen.
    """
    return f'<span title="{found[0]}">{found[0][:HASH_DIGITS]}…</span>'


def scrolling(label: str, html: str) -> str:
    """Make a region that can be scrolled sideways, also with the keyboard.

    Each region on a page must have its own label.
    """
    return f'<div class="scroll" role="region" tabindex="0" aria-label="{escape(label)}">{html}</div>'


def unfolded(summary: str, html: str) -> str:
    """Make a part of the page that shows its content only when the reader unfolds it."""
    return f"<details><summary>{escape(summary)}</summary>{html}</details>"


def slug(text: str) -> str:
    """Make an HTML id from the letters and digits of a text."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-") or "x"
