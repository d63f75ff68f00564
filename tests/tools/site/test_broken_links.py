"""A link of a built page to a missing target is found."""

import pytest

from tools.site.broken_links import broken_links

LINKED = '<h1 id="top">B</h1><a name="old"></a>'


@pytest.fixture
def site(tmp_path):
    (tmp_path / "b.html").write_text(LINKED)
    (tmp_path / "a b.txt").write_text("text")
    (tmp_path / "_static").mkdir()
    (tmp_path / "_static" / "template.html").write_text('<a href="{{ nowhere }}">x</a>')
    return tmp_path


@pytest.mark.parametrize(
    "link",
    ["b.html", "b.html#top", "b.html#old", "#here", "a%20b.txt", "https://example.org/x#y", "mailto:a@b.c"],
)
def test_a_good_link_is_not_reported(site, link):
    (site / "a.html").write_text(f'<p id="here"><a href="{link}">x</a></p>')
    assert broken_links(site) == []


@pytest.mark.parametrize("link", ["c.html", "b.html#bottom", "#there", "sub/b.html", "c.png"])
@pytest.mark.parametrize("tag", ['<a href="{}">', '<img src="{}">', '<script src="{}"></script>'])
def test_a_broken_link_is_reported_once_with_its_page(site, tag, link):
    (site / "a.html").write_text(tag.format(link) * 2)
    assert broken_links(site) == [f"a.html links to {link}, where nothing is"]
