"""Implement `protofleet settings`: list the tables of settings files, or print the keys of one table."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from protofleet.runtime.command.arguments import Subparsers
from protofleet.runtime.command.listing import Listing, add_listing_options, fitted

if TYPE_CHECKING:
    from protofleet.cli.settings_tables import SettingsTable
    from protofleet.protocol.settings.described import DescribedSetting


def add_settings(commands: Subparsers) -> None:
    command = commands.add_parser(
        "settings",
        help="list the tables of settings files, or the keys of one table with bounds and defaults",
    )
    command.add_argument(
        "table", nargs="?", default="", help="for example policy, device.limits or method.fedavg"
    )
    add_listing_options(command)
    command.set_defaults(command=settings)


def settings(options: argparse.Namespace) -> int:
    listing = Listing.of(options)
    return print_tables(listing, options.table) if options.table else list_tables(listing)


def list_tables(listing: Listing) -> int:
    from protofleet.cli.settings_tables import LOCAL, METHOD, file_tables
    from protofleet.methods.contract.catalog import names
    from protofleet.protocol.settings.sentences import summary

    found = [*file_tables(), LOCAL]
    width = max(len(table.name) for table in found)
    for table in found:
        listing.line(fitted(f"{table.name:{width}}  {summary(table.cls)}"))
    methods = [f"{METHOD}.{name}" for name in names()]
    listing.line(fitted(f"{METHOD + '.NAME':{width}}  The settings of one method: {', '.join(names())}."))
    listing.line("protofleet settings TABLE prints the keys of a table, such as policy or experiment.policy.")
    tables = [{"table": table.name, "summary": summary(table.cls)} for table in found]
    listing.end({"tables": tables, "methods": methods})
    return 0


def print_tables(listing: Listing, name: str) -> int:
    from protofleet.cli.settings_tables import by_class, find

    found = find(name)
    for number, (cls, tables) in enumerate(by_class(found)):
        if number:
            listing.line("")
        print_table(listing, cls, tables)
    listing.end({"tables": [as_object(table) for table in found]})
    return 0


def print_table(listing: Listing, cls: type, tables: list[SettingsTable]) -> None:
    from protofleet.cli.settings_tables import heading
    from protofleet.protocol.settings.described import keys
    from protofleet.protocol.settings.sentences import summary

    listing.line(heading(tables))
    if words := summary(cls):
        listing.line(fitted(words))
    for setting in keys(cls):
        listing.line(line_of(setting))
        if setting.sentence:
            listing.line(fitted(f"      {setting.sentence}"))


def line_of(setting: DescribedSetting) -> str:
    """Return `key = default`, the type and the bounds."""
    words = ", ".join(filter(None, (setting.type, setting.bounds)))
    default = f"({setting.default_text})" if setting.default is None else setting.default_text
    return fitted(f"  {setting.key:22} = {default:14} {words}")


def as_object(table: SettingsTable) -> dict[str, Any]:
    from protofleet.protocol.settings.described import for_programs, keys
    from protofleet.protocol.settings.sentences import summary

    return {
        "table": table.name, "summary": summary(table.cls),
        "keys": [for_programs(setting) for setting in keys(table.cls)],
    }  # fmt: skip
