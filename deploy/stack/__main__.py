"""python -m protofleet.deploy.stack up | down | logs | follow: for `make up`, `down`, `logs` and `demo-compose`."""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from pathlib import Path

from protofleet.deploy.cli.arguments import DEVICES
from protofleet.deploy.cli.parser import Parser
from protofleet.deploy.errors import RunError
from protofleet.deploy.images.build import unpinned
from protofleet.deploy.images.image_ids import IDS_FILE, ids_of, read_ids
from protofleet.deploy.local.experiment import Experiment, read_experiment
from protofleet.deploy.stack import compose
from protofleet.deploy.stack.layout import DEFAULTS, OPTIONAL, Stack
from protofleet.deploy.stack.prepare import prepare
from protofleet.protocol.settings.reader import SettingsError


def main(words: list[str] | None = None) -> int:
    try:
        options = parser().parse_args(words)
    except SettingsError as error:
        print(f"stack: {error}", file=sys.stderr)
        return 2
    try:
        return int(JOBS[options.job](options))
    except (RunError, SettingsError, PermissionError) as error:
        print(f"stack: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print(
            "stack: it goes on in the background; `make logs` shows it, `make down` ends it", file=sys.stderr
        )
        return 1


def parser() -> argparse.ArgumentParser:
    top = Parser(prog="python -m protofleet.deploy.stack", description=__doc__)
    top.add_argument("job", choices=tuple(JOBS))
    top.add_argument("--folder", type=Path, default=Path("runs/stack"))
    top.add_argument("--experiment", type=Path, default=Path("experiments/demo.toml"))
    top.add_argument(
        "--devices", type=DEVICES, default=0, help="so many, over the domains of the data in turn"
    )
    top.add_argument("--name", default="protofleet", help="of the compose project")
    top.add_argument(
        "--set", action="append", default=[], metavar="TABLE.KEY=VALUE", help="of the experiment"
    )
    top.add_argument(
        "--with",
        dest="given",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help=", ".join([*DEFAULTS, *OPTIONAL]),
    )
    top.add_argument(
        "--cluster", action="store_true", help="three nodes of RabbitMQ in place of one Mosquitto"
    )
    top.add_argument("--together", action="store_true", help="all devices in one container, however few")
    top.add_argument(
        "--pinned", action="store_true", help="up: refuse images of others that a tag alone names"
    )
    top.add_argument(
        "--built", type=Path, default=IDS_FILE, metavar="FILE", help="up: the ids of what was built here"
    )
    top.add_argument("--forget", action="store_true", help="down: remove keys, results and metrics as well")
    return top


def stack_of(options: argparse.Namespace) -> Stack:
    experiment = read_experiment(options.experiment, options.set)
    if options.devices:
        experiment = with_devices(experiment, options.devices)
    settings = dict(pair.partition("=")[::2] for pair in options.given)
    if strange := sorted(settings.keys() - {*DEFAULTS, *OPTIONAL}):
        raise SettingsError(
            f"there is no setting {strange[0]!r}; there are {', '.join([*DEFAULTS, *OPTIONAL])}"
        )
    return Stack(options.folder, experiment, options.name, settings, options.cluster, options.together)


def with_devices(experiment: Experiment, number: int) -> Experiment:
    """So many devices, dealt out over the domains; a source without domains is shared by all."""
    if number < 1:
        raise SettingsError(f"devices is {number}, it must be at least 1")
    bare = replace(experiment, devices=replace(experiment.devices, clients={}, count=0, per_domain=1))
    domains = list(dict.fromkeys(data.domain for data in bare.shards.values()))
    if len(domains) < 2:
        return replace(experiment, devices=replace(experiment.devices, clients={}, count=number))
    clients = {domain: len(range(i, number, len(domains))) for i, domain in enumerate(domains[:number])}
    return replace(experiment, devices=replace(experiment.devices, clients=clients))


def up(options: argparse.Namespace) -> int:
    stack = stack_of(options)
    compose.check_docker()
    stack = stack.starting(ids_of(stack.images, read_ids(options.built)))
    if words := unpinned(stack.images):
        if options.pinned:
            raise SettingsError(words)
        print(f"stack: {words}", file=sys.stderr)
    prepare(stack)
    compose.up(stack.folder)
    print(compose.places(stack))
    return 0


def down(options: argparse.Namespace) -> int:
    compose.down(options.folder, options.forget)
    return 0


def logs(options: argparse.Namespace) -> int:
    return compose.logs(options.folder)


def follow(options: argparse.Namespace) -> int:
    """Until the run is over: a line a round, then its table and report."""
    return compose.follow(stack_of(options))


JOBS = {"up": up, "down": down, "logs": logs, "follow": follow}

if __name__ == "__main__":
    sys.exit(main())
