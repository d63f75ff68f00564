"""Read the navigation of the site from docs/README.md, which on GitHub is the index of the pages.

A section begins with a heading of the second level. The navigation lists the pages to which the section
links, in the same order. A row of a table describes the page to which the first link of the row points.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from tools.site.links import linked_targets

HEADING: Final = re.compile(r"^##? (.+)$", re.MULTILINE)
# A line such as "Fleets:" or "### Fleets", which is the caption of the pages below it.
CAPTION: Final = re.compile(r"^(?:### +(.+)|(\w[\w ,]*):)$")


@dataclass(frozen=True)
class Group:
    """Pages under one caption, by their paths in the repository. The caption may be empty."""

    caption: str
    pages: tuple[str, ...]


@dataclass(frozen=True)
class Section:
    """A section of the navigation, with its text in docs/README.md."""

    title: str
    text: str
    groups: tuple[Group, ...]

    @property
    def pages(self) -> tuple[str, ...]:
        return tuple(page for group in self.groups for page in group.pages)


def read_sections(index: str, path: str, pages: frozenset[str]) -> list[Section]:
    """Return the sections of the index at `path` that link to pages.

    A page belongs to the first section with a link to it.
    """
    left, found = set(pages), []
    for title, text in _parts(index):
        groups = tuple(_groups(text, path, left))
        if groups:
            found.append(Section(title, text, groups))
    return found


def _parts(index: str) -> Iterator[tuple[str, str]]:
    _, *pieces = HEADING.split(index)
    return zip(pieces[::2], pieces[1::2], strict=True)


def _groups(text: str, path: str, left: set[str]) -> Iterator[Group]:
    """Yield the groups of a section, and remove the pages of these groups from `left`."""
    caption, members = "", list[str]()
    for line in text.splitlines():
        if named := CAPTION.match(line):
            if members:
                yield Group(caption, tuple(members))
            caption, members = named[1] or named[2], []
        targets = linked_targets(path, line)
        for target in targets[:1] if line.startswith("|") else targets:
            if target in left:
                left.remove(target)
                members.append(target)
    if members:
        yield Group(caption, tuple(members))
