"""Check every link of a built site: the file exists, and the section exists in the file.

This includes links that the theme writes, such as the navigation and the index of names.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

ATTRIBUTES: Final = ("href", "src")
# The name of a folder with the theme's templates. These templates are not pages of the site.
TEMPLATES: Final = "_static"


@dataclass
class Page(HTMLParser):
    """The links of a page, and the names of its sections, to which links can point."""

    links: list[str] = field(default_factory=list)
    sections: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        super().__init__()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if name in ATTRIBUTES and value:
                self.links.append(value)
            elif name in ("id", "name") and value:
                self.sections.add(value)


def broken_links(site: Path) -> list[str]:
    """Return one line for each broken link. Links to other hosts are not checked."""
    written = [path.resolve() for path in sorted(site.rglob("*.html")) if TEMPLATES not in path.parts]
    pages = {path: read_page(path) for path in written}
    return [
        f"{path.relative_to(site.resolve())} links to {link}, where nothing is"
        for path, page in pages.items()
        for link in dict.fromkeys(page.links)
        if not leads_somewhere(path, link, pages)
    ]


def read_page(path: Path) -> Page:
    page = Page()
    page.feed(path.read_text(encoding="utf-8"))
    return page


def leads_somewhere(path: Path, link: str, pages: dict[Path, Page]) -> bool:
    parts = urlsplit(link)
    if parts.scheme or parts.netloc:
        return True
    target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
    if not parts.fragment or target not in pages:
        return target.is_file()
    return unquote(parts.fragment) in pages[target].sections
