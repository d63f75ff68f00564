"""The document of a page: one HTML text with its style and its scripts, and the headers that protect it.

The content security policy names the style and the script by their hashes. So a browser runs no other script, even if
a text of a device could be put into the page.
"""

from __future__ import annotations

import base64
import hashlib
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

STYLE: Final = re.compile(r'<link rel="stylesheet" href="([\w.]+)">')
SCRIPT: Final = re.compile(r'<script src="([\w.]+)"></script>')
# The headers of every response.
PROTECTION: Final = (
    ("X-Content-Type-Options", "nosniff"),
    ("Cache-Control", "no-store"),
    ("Referrer-Policy", "no-referrer"),
    ("Cross-Origin-Resource-Policy", "same-origin"),
)


@dataclass(frozen=True, slots=True)
class Document:
    html: bytes
    policy: str  # The value of the header Content-Security-Policy.

    @staticmethod
    def read(path: Path) -> Document:
        """Read an HTML file, and put the text of each style and script that it names in place of the name."""
        text = path.read_text(encoding="utf-8")
        for pattern, tag in ((STYLE, "style"), (SCRIPT, "script")):
            text = pattern.sub(lambda found: _inlined(path.with_name(found[1]), tag), text)  # noqa: B023
        script, style = (_hashes(text, tag) for tag in ("script", "style"))
        policy = (
            f"default-src 'none'; script-src {script}; style-src {style}; connect-src 'self'; "
            "frame-ancestors 'none'; base-uri 'none'; form-action 'none'"
        )
        return Document(text.encode(), policy)


def _inlined(path: Path, tag: str) -> str:
    return f"<{tag}>\n{path.read_text(encoding='utf-8')}</{tag}>"


def _hashes(text: str, tag: str) -> str:
    inner = re.findall(rf"<{tag}>(.*?)</{tag}>", text, re.DOTALL)
    return " ".join(
        f"'sha256-{base64.b64encode(hashlib.sha256(one.encode()).digest()).decode()}'" for one in inner
    )
