"""Links of pages in the repository become links of the site, or problems."""

import pytest

from tools.site.links import Links, resolve

NAMES = {"README.md": "index.md", "docs/README.md": "all-pages.md", "docs/a.md": "a.md"}


@pytest.fixture
def links(tmp_path):
    for name in (
        "README.md",
        "LICENSE",
        "docs/README.md",
        "docs/a.md",
        "tests/vectors/README.md",
        "tests/x.py",
    ):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("# Vectors\n\nRead [a](../../docs/a.md).\n")
    return Links(tmp_path, NAMES)


@pytest.mark.parametrize(
    ("link", "there"),
    [
        ("[a](a.md)", "[a](a.md)"),
        ("[a](a.md#some-words)", "[a](a.md#some-words)"),
        ("[here](#some-words)", "[here](#some-words)"),
        ("[the front](../README.md)", "[the front](index.md)"),
        ("[all](README.md)", "[all](all-pages.md)"),
        ("[licence](../LICENSE)", "[licence](files/LICENSE)"),
        ("![picture](../LICENSE)", "![picture](files/LICENSE)"),
        ("[folder](../tests)", "[folder](tests.md)"),
        ("[vectors](../tests/vectors/README.md)", "[vectors](tests-vectors-readme.md)"),
        ("[elsewhere](https://example.org/a.md)", "[elsewhere](https://example.org/a.md)"),
        ("`[a](../README.md)` and ``[a](`../README.md)``", "`[a](../README.md)` and ``[a](`../README.md)``"),
        ("```text\n[a](../nowhere.md)\n```", "```text\n[a](../nowhere.md)\n```"),
    ],
)
def test_a_link_has_the_same_target_in_the_site(links, link, there):
    assert (
        links.rewrite("docs/a.md", f"Before {link} after.\n") == f"Before {there} after.\n" or link[0] == "`"
    )
    assert links.rewrite("docs/a.md", f"{link}\n") == f"{there}\n"
    assert links.problems == []


def test_a_link_with_the_name_of_its_file_shows_the_title_instead(links):
    text = "[a.md](a.md), [docs/a.md](a.md#x), [another.md](a.md)"
    assert links.rewrite("docs/README.md", text) == "[](a.md), [](a.md#x), [another.md](a.md)"


@pytest.mark.parametrize("target", ["b.md", "../nothing.py", "../../outside.md"])
def test_a_link_to_a_missing_file_is_a_problem_with_its_line(links, target):
    links.rewrite("docs/a.md", f"# A\n\n[that]({target})\n")
    path = resolve("docs/a.md", target)
    assert links.problems == [f"docs/a.md:3 links to {path}, which is not in the repository"]


def test_linked_pages_outside_docs_are_added_with_their_links(links):
    links.rewrite("docs/a.md", "[vectors](../tests/vectors/README.md) and [tests](../tests)")
    pages = links.further_pages()
    assert pages["tests-vectors-readme.md"].endswith("# Vectors\n\nRead [a](a.md).\n")
    assert pages["tests.md"].endswith("# `tests`\n\n- [`x.py`](files/tests/x.py)\n")
    assert links.files == {"tests/x.py": "files/tests/x.py"}
