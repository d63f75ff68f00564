"""Print what a command lists.

It prints lines for people, one object for programs (--json), or only the problems (--quiet).
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from protofleet.protocol.wire.printable import printable_lines

MOST_NAMED: Final = 3  # Names that are alike; if there are more, only the first and the last one are named.


def fitted(line: str) -> str:
    """Wrap a line at a terminal, which would break it inside a word.

    In a file or a pipe it is not wrapped.
    """
    if not sys.stdout.isatty():
        return line
    width = max(40, shutil.get_terminal_size().columns)
    return textwrap.fill(line, width, subsequent_indent="    ", break_on_hyphens=False)


def add_listing_options(command: argparse.ArgumentParser) -> None:
    form = command.add_mutually_exclusive_group()
    form.add_argument(
        "--json", action="store_true", help="print one JSON object, and nothing else, on standard output"
    )
    form.add_argument("--quiet", action="store_true", help="print only problems, on standard error")


@dataclass(frozen=True, slots=True)
class Listing:
    json: bool = False
    quiet: bool = False

    @staticmethod
    def of(options: argparse.Namespace) -> Listing:
        return Listing(getattr(options, "json", False), getattr(options, "quiet", False))

    def line(self, text: str, wrong: bool = False) -> None:
        """Print a line at once, because the lines of a fleet come one by one."""
        if self.quiet and wrong:
            print(f"protofleet: {printable_lines(text.strip())}", file=sys.stderr, flush=True)
        elif not self.quiet and not self.json:
            print(printable_lines(text), flush=True)

    def folded(self, named: Sequence[tuple[str, str]]) -> None:
        """Print (name, words) as lines as wide as the terminal.

        Names with the same words share one line.
        """
        alike: dict[str, list[str]] = {}
        for name, words in named:
            alike.setdefault(words, []).append(name)
        for words, names in alike.items():
            one = f"{names[0]} to {names[-1]} ({len(names)})" if len(names) > MOST_NAMED else ", ".join(names)
            self.line(fitted(f"{one:16} {words}"))

    def end(self, found: Mapping[str, object]) -> None:
        if self.json:
            print(json.dumps(found, indent=1, allow_nan=False))
