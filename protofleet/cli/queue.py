"""Implement `protofleet submit` and `runs`, for a coordinator that conducts a queue of runs."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any, Final

from protofleet.cli.operate import line_of_command
from protofleet.cli.operator_option import add_service_options, ask_service, name_of
from protofleet.protocol.user_error import FAILED
from protofleet.protocol.wire.printable import printable
from protofleet.runtime.command.arguments import PRIORITY, Subparsers
from protofleet.runtime.command.listing import Listing, add_listing_options, fitted

MOST_LETTERS: Final = 64  # Largest number of letters of a run's name in a message.


def add_queue(commands: Subparsers) -> None:
    submit = commands.add_parser("submit", help="give a run to a coordinator that conducts a queue of runs")
    submit.add_argument("experiment", type=Path, help="TOML file with the settings of the run")
    submit.add_argument("--name", default="", help="name of the run (default: `name` in the file)")
    submit.add_argument(
        "--after", type=Path, metavar="RUN", help="start the run only after this run has finished"
    )
    submit.add_argument(
        "--from", type=Path, metavar="RUN", dest="source",
        help="start with the newest snapshot of this run, which may be active or over",
    )  # fmt: skip
    submit.add_argument(
        "--priority", type=PRIORITY, default=0, help="runs with a higher priority start earlier (default: 0)"
    )
    add_service_options(submit)
    add_listing_options(submit)
    submit.set_defaults(command=_submit)
    runs = commands.add_parser("runs", help="list the runs of a coordinator that conducts a queue of runs")
    runs.add_argument(
        "--log", action="store_true", help="list the newest commands and their operators instead"
    )
    add_service_options(runs)
    add_listing_options(runs)
    runs.set_defaults(command=_runs)


def _submit(options: argparse.Namespace) -> int:
    from protofleet.coordinator.service_settings import experiment_in
    from protofleet.protocol.settings.reader import SettingsError

    text = _text_of(options.experiment)
    try:
        table = experiment_in(text)
    except SettingsError as error:
        raise SettingsError(f"{options.experiment}: {error}") from None
    name = options.name or table.get("name", "")
    if not (isinstance(name, str) and name):
        raise SettingsError(f"{options.experiment} names no run; set `name` in the file, or use --name")
    name_in = name_of if options.operator else lambda run: run.name
    after = name_in(options.after) if options.after else ""
    request = {
        "verb": "submit",
        "run": name,
        "experiment": text,
        "after": after,
        "from": name_in(options.source) if options.source else "",
        "priority": options.priority,
    }
    return _say(Listing.of(options), name, ask_service(options, request))


def _text_of(path: Path) -> str:
    from protofleet.coordinator.service_settings import MOST_EXPERIMENT
    from protofleet.protocol.settings.reader import SettingsError

    try:
        with path.open("rb") as file:
            return file.read(MOST_EXPERIMENT + 1).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise SettingsError(f"{path} cannot be read: {error}; is it a TOML file?") from None
    except OSError as error:
        raise SettingsError(f"{path} cannot be read: {error.strerror}; name a TOML file") from None


def _say(listing: Listing, run: str, response: dict[str, Any]) -> int:
    done = response["verdict"] == "done"
    listing.line(f"{printable(run)[:MOST_LETTERS]}: {response['words']}", wrong=not done)
    listing.end(response)
    return 0 if done else FAILED


def _runs(options: argparse.Namespace) -> int:
    listing = Listing.of(options)
    response = ask_service(options, {"verb": "log" if options.log else "runs", "run": ""})
    if response["verdict"] != "done":
        return _say(listing, response["verdict"], response)
    if options.log:
        for command in response["commands"]:
            listing.line(line_of_command(command))
    else:
        _list_runs(listing, response)
    if left_out := response.get("left_out"):
        listing.line(f"{left_out} more do not fit into a packet of the broker")
    listing.end(response)
    return 0


def _list_runs(listing: Listing, response: dict[str, Any]) -> None:
    width = max((len(run["run"]) for run in response["runs"]), default=0)
    for run in response["runs"]:
        reason = f"  {run['reason']}" if run["reason"] else ""
        listing.line(fitted(f"{run['run']:{width}}  {run['state']:9}{reason}"))
    if not response["runs"]:
        listing.line("the queue is empty; `protofleet submit FILE` adds a run")
