"""A parser of command lines that reports a mistake in one line."""

from __future__ import annotations

import argparse
import re
from typing import Any, Final, NoReturn

from protofleet.protocol.settings.reader import SettingsError
from protofleet.protocol.settings.suggest import there_are

# The message of argparse. Newer versions of Python put no quotes around the choices.
INVALID_CHOICE: Final = re.compile(r"argument (.+?): invalid choice: '(.*)' \(choose from (.*)\)")
CHOICE: Final = re.compile(r"[\w-]+")
OPTION: Final = re.compile(r"(?<![\w-])--[a-z][\w-]*")


class Parser(argparse.ArgumentParser):
    """A parser that raises SettingsError with one line for a mistake.

    The parsers of sub-commands have this class too. Options cannot be abbreviated, because an abbreviation
    that is unique today may be ambiguous after a new option is added.
    """

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **{**named, "allow_abbrev": False})

    def parse_known_args(self, args=None, namespace=None):  # type: ignore[no-untyped-def]
        """Report unknown arguments here, so that the message lists the options of the sub-command."""
        found, unknown = super().parse_known_args(args, namespace)
        if unknown:
            name = unknown[0].partition("=")[0]
            options = sorted({*OPTION.findall(self.format_help())})
            what = (
                f"no option; {there_are(name, options)}" if name.startswith("-") else "one argument too many"
            )
            self.error(f"{name[:99]} is {what}")
        return found, unknown

    def error(self, message: str) -> NoReturn:
        if found := INVALID_CHOICE.fullmatch(message):
            what, given, listed = found.groups()
            known = CHOICE.findall(listed)
            message = f"{what} is {given!r}; {there_are(given, known)}"
        raise SettingsError(f"{message} (see {self.prog} --help)")
