"""Implement `protofleet track`: send the numbers of a run to a tracker, during the run or afterwards."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from protofleet.protocol.user_error import FAILED
from protofleet.runtime.command.arguments import Subparsers
from protofleet.runtime.command.errors import StoppedError

if TYPE_CHECKING:
    from protofleet.lab.trackers.destinations import Destination

TO: Final = "tensorboard[=FOLDER], mlflow[=URI] or a tracker of a package"


def add_track_option(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--track", action="append", default=[], metavar="TRACKER",
        help=f"send each finished round to {TO}; this option may be repeated",
    )  # fmt: skip


def add_track(commands: Subparsers) -> None:
    command = commands.add_parser(
        "track",
        help="send a run's numbers to TensorBoard or MLflow, from a finished or a running run",
    )
    command.add_argument(
        "runs", type=Path, nargs="+", metavar="RUN", help="for example runs/demo, or a sweep's folder"
    )
    command.add_argument(
        "--to", action="append", required=True, metavar="TRACKER", help=f"{TO}; this option may be repeated"
    )
    command.add_argument(
        "--follow",
        action="store_true",
        help="continue until the run has ended; without this option, send only the finished rounds",
    )
    command.set_defaults(command=track)


def tracked_places(texts: Sequence[str]) -> list[Destination]:
    """Return the destinations that the options --track and --to name.

    If a package has a tracker with the name of a built-in tracker, print that the package's tracker is not used.
    """
    from protofleet.lab.trackers.destinations import KINDS, destinations
    from protofleet.methods.plugins.packages import clashes

    found = destinations(texts)
    for words in clashes("tracker", [one.kind for one in found if one.kind in KINDS]) if found else ():
        print(f"protofleet: {words}", file=sys.stderr)
    return found


def track(options: argparse.Namespace) -> int:
    from protofleet.lab.trackers.following import follow
    from protofleet.lab.trackers.run_folder import require_run, runs_of
    from protofleet.protocol.settings.reader import SettingsError

    places = tracked_places(options.to)
    runs = [run for folder in options.runs for run in runs_of(folder)]
    if options.follow and len(runs) * len(places) > 1:
        raise SettingsError(
            "--follow sends one run to one tracker; start one command for each run and tracker"
        )
    for run in runs:
        require_run(run, may_begin=options.follow)
    failed = False
    for run in runs:
        for one in places:
            try:
                follower = follow(one, run, to_the_end=options.follow)
            except KeyboardInterrupt:
                raise StoppedError(f"stopped; run the same command again to continue with {run}") from None
            if not follower.failed:
                print(f"{run}: {follower.result}")
            failed |= follower.failed
    return FAILED if failed else 0
