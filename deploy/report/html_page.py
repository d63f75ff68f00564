"""A self-contained HTML page, and tables on it."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from pathlib import Path


def page(title: str, content: str, width: str = "") -> str:
    style = (Path(__file__).parent / "report.css").read_text()
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>'
        f'<meta name="viewport" content="width=device-width"><style>{style}</style></head>'
        f'<body><main class="{width}">{content}</main></body></html>\n'
    )


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    top = "".join(f"<th>{escape(h)}</th>" for h in head)
    body = "".join("<tr>" + "".join(f"<td>{escape(c)}</td>" for c in row) + "</tr>" for row in rows)
    return f"<table><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table>"
