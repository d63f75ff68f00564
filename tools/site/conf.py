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

myst_heading_anchors = 6
autodoc_typehints_format = "short"
python_maximum_signature_line_length = 80
python_use_unqualified_type_names = True

html_theme = "pydata_sphinx_theme"
html_title = f"protofleet {version}"
html_static_path = ["static"]
html_css_files = ["site.css"]
html_context = {"default_mode": "auto"}
html_copy_source = html_show_sourcelink = False
html_theme_options = {
    "navbar_align": "left",
    "header_links_before_dropdown": 6,
    "secondary_sidebar_items": ["page-toc"],
    "footer_start": ["sphinx-version"],
    "footer_end": ["theme-version"],
    "show_prev_next": False,
}


def setup(app: Any) -> None:
    def process(app: Any, what: str, name: str, thing: object, options: object, lines: list[str]) -> None:
        lines[:] = to_restructured_text(lines)

    app.add_lexer("hex", TextLexer)  # The bytes of messages in docs/protocol.md.
    app.connect("autodoc-process-docstring", process)
