"""Implement `protofleet page`, and the option `--page` of `protofleet run` and `protofleet sweep`."""

from __future__ import annotations

import argparse
from pathlib import Path

from protofleet.runtime.command.arguments import Subparsers
from protofleet.runtime.command.errors import FAILED
from protofleet.runtime.command.listing import Listing, add_listing_options


def add_page(commands: Subparsers) -> None:
    command = commands.add_parser(
        "page", help="print the address of a run's live page, which logs a browser in"
    )
    command.add_argument("run", type=Path, help="folder of the run, for example runs/demo")
    add_listing_options(command)
    command.set_defaults(command=_page)


def _page(options: argparse.Namespace) -> int:
    from protofleet.cli.operate import ask

    listing = Listing.of(options)
    response = ask(options.run, "page", "", {})
    done = response["verdict"] == "done"
    listing.line(response["words"] if done else f"{options.run}: {response['words']}", wrong=not done)
    listing.end(response)
    return 0 if done else FAILED


def add_page_option(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--page",
        action="store_true",
        help="serve a live page of the run on a free port of this machine, and print its address",
    )


def with_page(options: argparse.Namespace) -> list[str]:
    """Return the settings of `--set`, and before them a free port for the page if `--page` is given.

    All runs of the command get the same port, so an open page follows one run after the other.
    """
    if not options.page:
        return list(options.set)
    from protofleet.federation.brokers.ports import free_port

    return [f"page_port={free_port()}", *options.set]
