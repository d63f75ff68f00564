"""Collect the sources of the site: the repository's pages, the sections of their index, and generated pages."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from protofleet.cli.parser import parser
from tools.site.commands import commands_page
from tools.site.index import Group, Section, read_sections
from tools.site.links import Links
from tools.site.python_api import api_page

INDEX: Final = "docs/README.md"
FRONT: Final = "README.md"
REFERENCE: Final = (
    "Reference"  # The title of the section in docs/README.md to which the generated pages are added.
)
GENERATED: Final = ("python-api.rst", "commands.md")
ABOUT_GENERATED: Final = """
From the code:

| page | what it holds |
|---|---|
| [Python API](python-api.rst) | Every public name of the package, with its signature and its docstring. |
| [Commands and options](commands.md) | Every command of `protofleet`, with all its arguments. |
"""


@dataclass(frozen=True)
class Source:
    """The input of Sphinx: texts by their names in the site, files to copy, and problems in the texts."""

    texts: Mapping[str, str]
    files: Mapping[str, str]
    problems: Sequence[str]


def read_sources(root: Path) -> Source:
    names = page_names(root)
    links = Links(root, names)
    texts = {name: links.rewrite(path, (root / path).read_text("utf-8")) for path, name in names.items()}
    texts |= links.further_pages()
    sections = read_sections((root / INDEX).read_text("utf-8"), INDEX, frozenset(names) - {INDEX, FRONT})
    # Copy the problems of the links before the pages of sections are made. These pages repeat the links of the index,
    # so a broken link of the index would be reported twice.
    problems = [*links.problems, *pages_in_no_section(names, sections)]
    sections = with_generated(sections)
    taken = {*map(section_name, sections), *GENERATED}
    problems += [
        f"{page} needs another name: a part of the site has it" for page in names if names[page] in taken
    ]
    names |= {name: name for name in GENERATED}
    texts |= {section_name(section): section_page(section, links, names) for section in sections}
    texts["index.md"] += toctree("", [*map(section_name, sections), names[INDEX]])
    texts |= {"python-api.rst": api_page(), "commands.md": commands_page(parser())}
    return Source(texts, links.files, problems)


def pages_in_no_section(names: Mapping[str, str], sections: Sequence[Section]) -> list[str]:
    listed = {INDEX, FRONT}.union(*(section.pages for section in sections))
    how = f"is not in {INDEX}: add it below a heading of the second level"
    return [f"{page} {how}" for page in names if page not in listed]


def page_names(root: Path) -> dict[str, str]:
    """Return the name of each page in the site, by the page's path in the repository."""
    found = [*sorted(root.glob("*.md")), *sorted((root / "docs").glob("*.md"))]
    names = {path.relative_to(root).as_posix(): path.name.lower() for path in found}
    return {**names, FRONT: "index.md", INDEX: "all-pages.md"}


def with_generated(sections: list[Section]) -> list[Section]:
    """Add the generated pages to the section "Reference". If there is no such section, add the section."""
    if REFERENCE not in [section.title for section in sections]:
        sections = [*sections, Section(REFERENCE, "", ())]
    added = Group("From the code", GENERATED)
    return [
        replace(section, groups=(*section.groups, added)) if section.title == REFERENCE else section
        for section in sections
    ]


def section_name(section: Section) -> str:
    return re.sub(r"\W+", "-", section.title.lower()) + ".md"


def section_page(section: Section, links: Links, names: Mapping[str, str]) -> str:
    text = links.rewrite(INDEX, section.text).replace("\n### ", "\n## ").strip()
    generated = ABOUT_GENERATED if section.title == REFERENCE else ""
    trees = "".join(toctree(group.caption, [names[page] for page in group.pages]) for group in section.groups)
    return f"# {section.title}\n\n{text}\n{generated}{trees}"


def toctree(caption: str, pages: Iterable[str]) -> str:
    listed = "".join(f"{page}\n" for page in pages)
    options = f":hidden:\n:caption: {caption}\n" if caption else ":hidden:\n"
    return f"\n```{{toctree}}\n{options}\n{listed}```\n"
