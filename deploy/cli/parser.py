"""Make the command line's parser.

Commands import their modules only when they run, so that `--help` answers at once.
"""

from __future__ import annotations

import argparse
import functools
import re
from typing import Any, Final, NoReturn

from protofleet.deploy.cli.deploy import add_deploy, add_doctor
from protofleet.deploy.cli.enrol import add_enrol, add_keys
from protofleet.deploy.cli.init import add_init
from protofleet.deploy.cli.lists import add_lists
from protofleet.deploy.cli.own.check import add_check
from protofleet.deploy.cli.own.export import add_export
from protofleet.deploy.cli.own.model import add_model
from protofleet.deploy.cli.own.predict import add_predict
from protofleet.deploy.cli.own.track import add_track
from protofleet.deploy.cli.runs import add_centralised, add_compare, add_report, add_run
from protofleet.deploy.cli.services import (
    add_coordinator,
    add_device,
    add_fleet,
    add_go_on,
    add_health,
    add_unban,
)
from protofleet.deploy.cli.sweep import add_sweep
from protofleet.deploy.cli.version import installed_version
from protofleet.protocol.settings.reader import SettingsError
from protofleet.protocol.settings.suggest import there_are

# The message of argparse, with quotes around each choice or, in newer Pythons, without.
INVALID_CHOICE: Final = re.compile(r"argument (.+?): invalid choice: '(.*)' \(choose from (.*)\)")
CHOICE: Final = re.compile(r"[\w-]+")
OPTION: Final = re.compile(r"(?<![\w-])--[a-z][\w-]*")


class Parser(argparse.ArgumentParser):
    """A parser that raises SettingsError with one line for a mistake.

    Parsers of sub-commands have this class too. An option must be written in full, because an abbreviation
    that is unique today is ambiguous after a new option.
    """

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **{**named, "allow_abbrev": False})

    def parse_known_args(self, args=None, namespace=None):  # type: ignore[no-untyped-def]
        """Let the sub-command report arguments that it does not know."""
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


@functools.cache  # A forked process shares what its parent has made.
def parser() -> Parser:
    top = Parser(prog="protofleet", description="Federated learning for fleets over MQTT.")
    top.add_argument("--version", action="version", version=f"protofleet {installed_version()}")
    top.add_argument("-v", "--verbose", action="store_true", help="log more")
    commands = top.add_subparsers(required=True, metavar="COMMAND", title="commands")
    add_run(commands)
    add_sweep(commands)
    add_centralised(commands)
    add_coordinator(commands)
    add_device(commands)
    add_fleet(commands)
    add_health(commands)
    add_unban(commands)
    add_keys(commands)
    add_init(commands)
    add_enrol(commands)
    add_deploy(commands)
    add_doctor(commands)
    add_go_on(commands)
    add_report(commands)
    add_compare(commands)
    add_export(commands)
    add_lists(commands)
    add_model(commands)
    add_predict(commands)
    add_check(commands)
    add_track(commands)
    return top
