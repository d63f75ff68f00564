"""What a command lists: lines for people, one object for programs (--json), or only what is wrong (--quiet)."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass


def add_listing_options(command: argparse.ArgumentParser) -> None:
    form = command.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="one object, and nothing else on standard output")
    form.add_argument("--quiet", action="store_true", help="say only what is wrong, on standard error")


@dataclass(frozen=True, slots=True)
class Listing:
    json: bool = False
    quiet: bool = False

    @staticmethod
    def of(options: argparse.Namespace) -> Listing:
        return Listing(getattr(options, "json", False), getattr(options, "quiet", False))

    def line(self, text: str, wrong: bool = False) -> None:
        """It goes out at once, as those of a fleet come one by one."""
        if self.quiet and wrong:
            print(f"protofleet: {text.strip()}", file=sys.stderr, flush=True)
        elif not self.quiet and not self.json:
            print(text, flush=True)

    def end(self, found: Mapping[str, object]) -> None:
        if self.json:
            print(json.dumps(found, indent=1, allow_nan=False))
