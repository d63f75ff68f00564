"""The navigation of the site has the structure of docs/README.md."""

from tools.site.index import Group, read_sections

INDEX = """# All pages

Begin with the [README](../README.md) or with [first.md](first.md).

## Tutorials

| page | what you do |
|---|---|
| [first.md](first.md) | Begin, then read [second.md](second.md). |

## How-to guides

Experiments:

| page | what it helps you do |
|---|---|
| [second.md](second.md) | Go on. |

### Fleets

- [third.md](third.md#a-section): and [fourth.md](fourth.md).

## Beside the pages

[first.md](first.md), `[fifth.md](fifth.md)` and [the licence](../LICENSE).
"""
PAGES = frozenset(f"docs/{name}.md" for name in ("first", "second", "third", "fourth", "fifth"))


def sections():
    return read_sections(INDEX.replace("or with [first.md](first.md)", ""), "docs/README.md", PAGES)


def test_a_heading_makes_a_section_with_the_pages_of_its_links():
    assert [(section.title, section.pages) for section in sections()] == [
        ("Tutorials", ("docs/first.md",)),
        ("How-to guides", ("docs/second.md", "docs/third.md", "docs/fourth.md")),
    ]


def test_a_line_with_a_colon_or_a_lower_heading_names_a_group():
    assert sections()[1].groups == (
        Group("Experiments", ("docs/second.md",)),
        Group("Fleets", ("docs/third.md", "docs/fourth.md")),
    )


def test_a_page_is_in_the_first_section_that_links_to_it():
    found = read_sections(INDEX, "docs/README.md", PAGES)
    assert [section.title for section in found] == ["All pages", "How-to guides"]
    assert found[0].pages == ("docs/first.md",)


def test_a_section_keeps_its_text():
    assert sections()[0].text in INDEX and "Begin, then read" in sections()[0].text
