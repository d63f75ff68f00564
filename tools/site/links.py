"""Turn the links of a page in the repository into links of the site, and report broken links.

A link to a page of the site becomes a link to the page's name in the site. A link to another file becomes a
link to a copy of the file. A folder and a Markdown file become pages of their own. Sphinx checks that the
sections in links exist.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final

# Code is matched first, because a text in code that looks like a link is not a link.
LINK: Final = re.compile(
    r"^ *```.*?^ *```$|(?P<ticks>`+)(?!`)(?:(?!\n\n).)+?(?P=ticks)(?!`)"
    r"|(?P<file>\[[\w./-]+\.md)?\]\((?P<target>[^)\s#]*)(?P<section>#[^)\s]*)?\)",
    re.MULTILINE | re.DOTALL,
)
ELSEWHERE: Final = re.compile(r"[a-z]+:")
ORPHAN: Final = (
    "---\norphan: true\n---\n\n"  # With this mark, Sphinx does not warn that the page is in no index.
)


class Links:
    """The links of all pages. `names` has the name of each page in the site, by the page's path in the repository."""

    def __init__(self, root: Path, names: Mapping[str, str]) -> None:
        self.root, self.names = root, names
        self.problems: list[str] = []
        # Names of copied files in the site, by the paths of the files in the repository.
        self.files: dict[str, str] = {}
        self.further: dict[str, str] = {}

    def rewrite(self, page: str, text: str) -> str:
        """Return the text of a page with its links changed to links of the site."""

        def replace(link: re.Match[str]) -> str:
            if not link["target"] or ELSEWHERE.match(link["target"]):
                return link[0]
            line = text.count("\n", 0, link.start()) + 1
            there = self._name_in_site(f"{page}:{line}", resolve(page, link["target"]))
            return f"{shown_text(link)}]({there}{link['section'] or ''})"

        return LINK.sub(replace, text)

    def _name_in_site(self, where: str, path: str) -> str:
        at = self.root / path
        if path in self.names:
            return self.names[path]
        if path.startswith("..") or not at.exists():
            self.problems.append(f"{where} links to {path}, which is not in the repository")
            return path
        if at.is_dir() or path.endswith(".md"):
            return self.further.setdefault(path, f"{path.replace('/', '-').lower().removesuffix('.md')}.md")
        return self.files.setdefault(path, f"files/{path}")

    def further_pages(self) -> dict[str, str]:
        """Return the pages that no index lists, but that other pages link to."""
        texts = dict[str, str]()
        while left := [path for path, name in self.further.items() if name not in texts]:
            for path in left:
                texts[self.further[path]] = ORPHAN + self.rewrite(path, self._text(path))
        return texts

    def _text(self, path: str) -> str:
        at = self.root / path
        if at.is_file():
            return at.read_text(encoding="utf-8")
        files = sorted(file.name for file in at.iterdir() if file.is_file())
        return f"# `{path}`\n\n" + "".join(f"- [`{name}`]({at.name}/{name})\n" for name in files)


def shown_text(link: re.Match[str]) -> str:
    """Return "[" for a link whose text is only the name of its file. Sphinx then shows the title of the page."""
    shown = link["file"] or ""
    return "[" if shown and shown[1:].endswith(posixpath.basename(link["target"])) else shown


def resolve(page: str, target: str) -> str:
    """Return the path of the linked file in the repository."""
    return posixpath.normpath(posixpath.join(posixpath.dirname(page), target))


def linked_targets(page: str, text: str) -> list[str]:
    """Return the paths in the repository to which a text on this page links, in the order of the links."""
    found = [link["target"] for link in LINK.finditer(text) if link["target"]]
    return [resolve(page, target) for target in found if not ELSEWHERE.match(target)]
