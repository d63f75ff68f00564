"""Print the output of a command that lists things.

The output is lines for people, one JSON object for programs (--json), or only the problems (--quiet).
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

# Largest number of names that are shown in one line. If more names have the same words, the line has only the first
# name, the last name and the number of names.
MOST_NAMED: Final = 3


def fitted(line: str) -> str:
    """Wrap a line between words if the output is a terminal; do not wrap it for a file or a pipe."""
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
        """Print a line without buffering, because a command for many devices takes time between its lines."""
        if self.quiet and wrong:
            print(f"protofleet: {printable_lines(text.strip())}", file=sys.stderr, flush=True)
        elif not self.quiet and not self.json:
            print(printable_lines(text), flush=True)

    def folded(self, named: Sequence[tuple[str, str]]) -> None:
        """Print (name, words) pairs as lines that fit the terminal.

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
