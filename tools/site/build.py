"""Collect the sources of the site in one folder, run Sphinx on them, and check every link of the built site."""

from __future__ import annotations

import contextlib
import io
import shutil
from pathlib import Path
from typing import Final

from tools.site.broken_links import broken_links
from tools.site.sources import Source, read_sources

CONFIGURATION: Final = Path(__file__).parent


class BrokenSiteError(Exception):
    """The error for a site that was not built. Each line of the message is one reason."""


def build(root: Path, site: Path, work: Path) -> None:
    """Build the site of the repository at `root` in the folder `site`. The sources are collected in `work`.

    Both folders are emptied first, because Sphinx warns only about the pages that it reads again.
    """
    for folder in (site, work):
        shutil.rmtree(folder, ignore_errors=True)
    source = read_sources(root)
    if source.problems:
        raise BrokenSiteError("\n".join(source.problems))
    write(source, root, work / "source")
    run_sphinx(work / "source", site, work / "doctrees")
    if broken := broken_links(site):
        raise BrokenSiteError("\n".join(broken))


def write(source: Source, root: Path, folder: Path) -> None:
    for name, text in source.texts.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")
    for path, name in source.files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(root / path, folder / name)


def run_sphinx(source: Path, site: Path, doctrees: Path) -> None:
    # Sphinx comes only with the extra `docs`, so it is imported only where it is needed.
    from sphinx.cmd.build import build_main

    options = ["--fail-on-warning", "--keep-going", "--quiet", "--no-color", "--builder", "html"]
    said = io.StringIO()
    with contextlib.redirect_stderr(said):
        code = build_main([*options, "-c", str(CONFIGURATION), "-d", str(doctrees), str(source), str(site)])
    if code:
        raise BrokenSiteError(
            said.getvalue().replace(f"{source}/", "").strip() or f"Sphinx ended with code {code}"
        )
