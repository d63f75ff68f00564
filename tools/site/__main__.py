"""make docs: build the documentation site in build/docs. A warning or a broken link fails the build."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path

from tools.site.build import BrokenSiteError, build

ROOT = Path(__file__).parents[2]


def main() -> int:
    if find_spec("sphinx") is None:
        print("docs: Sphinx is not installed; use Python 3.11 or newer, and run `make docs`", file=sys.stderr)
        return 2
    site = ROOT / "build" / "docs"
    try:
        build(ROOT, site, ROOT / "build" / "site")
    except BrokenSiteError as broken:
        print(f"docs: {broken}", file=sys.stderr)
        return 1
    print(f"open {site.relative_to(ROOT) / 'index.html'}, or copy {site.relative_to(ROOT)} to a static host")
    return 0


if __name__ == "__main__":
    sys.exit(main())
