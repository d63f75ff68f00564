"""The settings of Sphinx for `make docs`."""

from __future__ import annotations

from typing import Any

from pygments.lexers.special import TextLexer

from protofleet.runtime.installation.version import installed_version
from tools.site.docstrings import to_restructured_text

project = "protofleet"
release = version = installed_version()
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.githubpages"]
source_suffix = {".md": "markdown", ".rst": "restructuredtext"}
root_doc = "index"
exclude_patterns = ["files/*"]
smartquotes = False  # Two hyphens stay two hyphens, as on GitHub.

myst_heading_anchors = 6
autodoc_typehints_format = "short"
toc_object_entries = False  # Names are not listed in the navigation, because each name already has a heading.
python_use_unqualified_type_names = True

html_theme = "pydata_sphinx_theme"
html_title = f"protofleet {version}"
html_static_path = ["static"]
html_js_files = ["site.js"]
html_context = {"default_mode": "auto"}
html_copy_source = html_show_sourcelink = False
html_theme_options = {
    "navbar_align": "left",
    "header_links_before_dropdown": 6,
    "show_toc_level": 2,
    "secondary_sidebar_items": ["page-toc"],
    "footer_start": ["sphinx-version"],
    "footer_end": ["theme-version"],
    "show_prev_next": False,
}


def setup(app: Any) -> None:
    app.add_lexer("hex", TextLexer)  # This lexer is for the bytes of messages in docs/protocol.md.
    app.connect("autodoc-process-docstring", docstring)
    app.connect("autodoc-process-signature", signature)


def docstring(app: Any, what: str, name: str, thing: object, options: Any, lines: list[str]) -> None:
    # An alias such as Payload has the docstring of the type that it stands for, so this docstring is not shown.
    lines[:] = to_restructured_text(lines) if what != "data" else []


def signature(
    app: Any, what: str, name: str, thing: object, options: Any, arguments: str | None, returned: str | None
) -> tuple[str | None, str | None]:
    """Write "..." for the default of a dataclass's field if a function makes the default.

    Sphinx cannot read `<factory>`. Without this change, it would not convert the types in the signature.
    """
    return (arguments and arguments.replace("<factory>", "..."), returned)
