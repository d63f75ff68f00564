"""Implement `protofleet page`, and the option `--page` of `protofleet run` and `protofleet sweep`."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from protofleet.protocol.user_error import FAILED
from protofleet.runtime.command.arguments import Subparsers
from protofleet.runtime.command.listing import Listing, add_listing_options


def add_page(commands: Subparsers) -> None:
    command = commands.add_parser(
        "page", help="print the address of the live page of a run or of a queue, which logs a browser in"
    )
    command.add_argument(
        "run",
        type=Path,
        nargs="?",
        help="folder of the run, for example runs/demo, or the folder of --service",
    )
    command.add_argument(
        "--service", type=Path, metavar="FOLDER",
        help="the `folder` of a coordinator that conducts a queue of runs (default: runs); the page shows the queue",
    )  # fmt: skip
    add_listing_options(command)
    command.set_defaults(command=_page)


def _page(options: argparse.Namespace) -> int:
    listing = Listing.of(options)
    folder, response = _asked(options.run, options.service)
    done = response["verdict"] == "done"
    listing.line(response["words"] if done else f"{folder}: {response['words']}", wrong=not done)
    listing.end(response)
    return 0 if done else FAILED


def _asked(run: Path | None, service: Path | None) -> tuple[Path, dict[str, Any]]:
    """Ask for the address of the page of a run, or of the queue of a coordinator."""
    from protofleet.cli.operate import ask
    from protofleet.cli.queue_socket import ask_queue, has_queue

    if run is not None and service is None and not has_queue(run):
        return run, ask(run, {"verb": "page", "reason": ""})
    folder = service or run or Path("runs")
    return folder, ask_queue(folder, {"verb": "page", "run": run.name if run and service else ""})


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
