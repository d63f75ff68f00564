"""`protofleet track`: a run's numbers to TensorBoard or MLflow, while it runs elsewhere or afterwards."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Final

from protofleet.deploy.cli.arguments import Subparsers
from protofleet.deploy.errors import FAILED, StoppedError

TO: Final = "tensorboard[=FOLDER] or mlflow[=URI]"


def add_track(commands: Subparsers) -> None:
    command = commands.add_parser(
        "track",
        help="a run's numbers to TensorBoard or MLflow: of a run that is over, goes on, or is a service's",
    )
    command.add_argument("runs", type=Path, nargs="+", metavar="RUN", help="for example runs/demo")
    command.add_argument(
        "--to", action="append", required=True, metavar="TRACKER", help=f"{TO}; may be said more than once"
    )
    command.add_argument(
        "--follow", action="store_true", help="go on until the run is over, and not only with what is there"
    )
    command.set_defaults(command=track)


def track(options: argparse.Namespace) -> int:
    from protofleet.deploy.trackers.destinations import destination
    from protofleet.deploy.trackers.following import follow
    from protofleet.deploy.trackers.run_folder import require_run
    from protofleet.protocol.settings.reader import SettingsError

    destinations = list(dict.fromkeys(map(destination, options.to)))
    if options.follow and len(options.runs) * len(destinations) > 1:
        raise SettingsError("--follow follows one run into one tracker; start a command for each")
    for run in options.runs:
        require_run(run, may_begin=options.follow)
    failed = False
    for run in options.runs:
        for one in destinations:
            try:
                follower = follow(one, run, to_the_end=options.follow)
            except KeyboardInterrupt:
                raise StoppedError(f"stopped; the same command goes on with {run}") from None
            if not follower.failed:
                print(f"{run}: {follower.result}")
            failed |= follower.failed
    return FAILED if failed else 0
