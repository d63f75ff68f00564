"""The built site has all pages, can be searched, loads nothing from other hosts, and is accessible."""

import fcntl
import html
import json
import os
import re
import shutil

import pytest

import protofleet
import protofleet.testing
from protofleet.cli.parser import parser
from tests.rooms import ROOT
from tests.support.browser import NEEDS_AXE, NEEDS_CHROMIUM, WIDTHS, dumped, framed, judged
from tests.tools.site.test_sources import small  # noqa: F401, a fixture
from tools.site.build import BrokenSiteError, build
from tools.site.commands import walk

pytest.importorskip("sphinx", reason="there is no Sphinx: make docs installs it, on Python 3.11 and newer")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(900),  # The first test waits until the whole site is built.
    pytest.mark.filterwarnings("ignore:.*MystReferenceResolver.app"),
]
JUDGED = ("index", "bounds", "python-api")  # The front page, a page of long tables, and the API.


@pytest.fixture(scope="session")
def site(tmp_path_factory):
    """Build the site of this repository once for all test processes, without a warning, and return its folder."""
    own = tmp_path_factory.getbasetemp()
    folder = (own.parent if "PYTEST_XDIST_WORKER" in os.environ else own) / "site"
    with folder.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.with_suffix(".done").exists():
            build(ROOT, folder, folder.with_suffix(".work"))
            folder.with_suffix(".done").touch()
    return folder


def words_of(page):
    """Return the words that a page shows, with its code."""
    return " ".join(html.unescape(re.sub(r"<[^>]+>", "", page.read_text())).split())


@pytest.mark.parametrize("page", sorted((ROOT / "docs").glob("*.md")), ids=lambda page: page.stem)
def test_every_page_of_docs_is_in_the_site_with_all_its_headings(site, page):
    built = site / ("all-pages" if page.name == "README.md" else page.stem)
    prose = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    for heading in re.findall(r"^#+ (.+)$", prose, re.MULTILINE):
        shown = re.sub(r"[`*]|\[([^]]*)\]\([^)]*\)", r"\1", heading)
        assert " ".join(shown.split()) in words_of(built.with_suffix(".html"))


def test_every_public_name_is_in_the_site_with_its_signature(site):
    text = (site / "python-api.html").read_text()
    for module in (protofleet, protofleet.testing):
        for name in module.__all__:
            assert f'id="{module.__name__}.{name}"' in text
    assert "Run a whole federation on this machine until the run is finished." in words_of(
        site / "python-api.html"
    )
    assert "&lt;factory&gt;" not in text and "~protofleet" not in text


def test_every_command_is_in_the_site(site):
    text = words_of(site / "commands.html")
    assert all(command.prog in text for command, _ in walk(parser()))


def test_the_navigation_leads_to_every_section(site):
    front = (site / "index.html").read_text()
    for name in ("reference.html", "all-pages.html"):
        assert f'href="{name}"' in front


def test_the_site_loads_nothing_from_another_host(site):
    for page in site.glob("*.html"):
        loaded = re.findall(
            r'<(?:script|img|iframe)[^>]* src="([^"]+)"|<link[^>]* href="([^"]+)"', page.read_text()
        )
        assert [one for one in loaded if "://" in "".join(one) or "".join(one).startswith("//")] == []


def index_of(site):
    text = (site / "searchindex.js").read_text()
    return json.loads(text.removeprefix("Search.setIndex(").rstrip(";\n").removesuffix(")"))


def test_the_search_index_finds_a_word_in_its_pages(site):
    index = index_of(site)
    found = index["terms"]["mosquitto"]
    pages = {index["docnames"][i] for i in (found if isinstance(found, list) else [found])}
    holding = {p.stem for p in site.glob("*.html") if "mosquitto" in words_of(p).lower()}
    assert len(pages) > 5 and pages <= holding


@NEEDS_CHROMIUM
def test_the_search_page_finds_a_word_when_it_is_opened_as_a_file(site, tmp_path):
    document = dumped(f"{(site / 'search.html').as_uri()}?q=mosquitto", tmp_path)
    results = re.search(r'<ul[^>]* class="search".*?</ul>', document, re.DOTALL)[0]
    assert len(re.findall(r'href="[\w.-]+\.html"', results)) > 5


def test_a_link_to_a_missing_section_fails_the_build(small, tmp_path):  # noqa: F811
    page = small / "docs" / "b.md"
    page.write_text(page.read_text() + "\n[nowhere](a.md#other-words)\n\n[here neither](#third-words)\n")
    with pytest.raises(BrokenSiteError) as broken:
        build(small, tmp_path / "site", tmp_path / "work")
    lines = str(broken.value).splitlines()
    assert len(lines) == 2 and all(line.startswith("b.md:") for line in lines)
    assert "'other-words'" in lines[0] and "'third-words'" in lines[1]


@NEEDS_CHROMIUM
@NEEDS_AXE
@pytest.mark.parametrize("name", JUDGED)
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_axe_finds_no_violations_and_the_page_does_not_scroll_sideways(site, tmp_path, name, dark):
    shutil.copytree(site, tmp_path / "site")
    found = judged(framed(tmp_path / "site", [name]), dark, seconds=200)  # The API is a long page.
    assert sorted(one["width"] for one in found) == sorted(WIDTHS)
    for one in found:
        assert one["violations"] == [] and one["passes"] > 20
        assert one["content"] <= one["width"], f"{name} scrolls sideways at {one['width']} px"
        assert one["dark"] == dark and (one["paper"] == "rgb(255, 255, 255)") != dark
