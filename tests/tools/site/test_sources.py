"""The program finds faults in the pages of a repository before Sphinx is started."""

import pytest

from tests.rooms import ROOT
from tools.site.sources import read_sources

INDEX = "# Pages\n\n## Tutorials\n\n- [a.md](a.md)\n\n## Reference\n\n- [b.md](b.md)\n"


@pytest.fixture
def small(tmp_path):
    """Write a repository with three pages, and return its folder."""
    (tmp_path / "docs").mkdir()
    (tmp_path / "README.md").write_text("# Small\n\nRead [all](docs/README.md).\n")
    (tmp_path / "docs" / "README.md").write_text(INDEX)
    (tmp_path / "docs" / "a.md").write_text("# A\n\n## Some words\n\n[b.md](b.md)\n")
    (tmp_path / "docs" / "b.md").write_text("# B\n\n[there](a.md#some-words)\n")
    return tmp_path


def test_a_repository_with_good_links_has_no_problems(small):
    source = read_sources(small)
    assert source.problems == []
    assert {"index.md", "all-pages.md", "a.md", "b.md", "tutorials.md", "reference.md"} <= source.texts.keys()


def test_the_repository_has_no_problems():
    assert read_sources(ROOT).problems == []


def test_the_generated_pages_are_in_the_reference(small):
    assert "\nb.md\n" in read_sources(small).texts["reference.md"]
    (small / "docs" / "README.md").write_text(INDEX.replace("Reference", "Other"))
    text = read_sources(small).texts["reference.md"]
    assert "(python-api.rst)" in text and "\npython-api.rst\ncommands.md\n" in text


@pytest.mark.parametrize("page", ["docs/c.md", "SECURITY.md"])
def test_a_page_that_is_missing_in_the_index_is_a_problem(small, page):
    (small / page).write_text("# C\n")
    (problem,) = read_sources(small).problems
    assert problem == f"{page} is not in docs/README.md: add it below a heading of the second level"


@pytest.mark.parametrize("page", ["README.md", "docs/README.md", "docs/a.md"])
def test_a_link_to_a_missing_page_is_a_problem(small, page):
    with (small / page).open("a") as file:
        file.write("\n[gone](gone.md)\n")
    (problem,) = read_sources(small).problems
    assert problem.startswith(f"{page}:") and problem.endswith("gone.md, which is not in the repository")


@pytest.mark.parametrize("page", ["tutorials.md", "commands.md"])
def test_a_page_with_the_name_of_a_section_or_of_a_generated_page_is_a_problem(small, page):
    (small / "docs" / page).write_text("# C\n")
    (small / "docs" / "README.md").write_text(f"{INDEX}- [{page}]({page})\n")
    assert read_sources(small).problems == [f"docs/{page} needs another name: a part of the site has it"]
