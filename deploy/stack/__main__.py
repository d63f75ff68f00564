"""python -m protofleet.deploy.stack check | up | down | logs | follow: the program of `make up` and `make down`."""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from pathlib import Path

from protofleet.deploy.images.build import unpinned_warning
from protofleet.deploy.images.docker_engine import require_docker
from protofleet.deploy.images.image_ids import IDS_FILE, ids_of, read_ids
from protofleet.deploy.stack import compose
from protofleet.deploy.stack.earlier_runs import earlier_run, has_other_settings, put_aside, unfinished_run
from protofleet.deploy.stack.layout import DEFAULT_SETTINGS, OPTIONAL_SETTINGS, Stack
from protofleet.deploy.stack.prepare import check_names, prepare
from protofleet.lab.local.experiment import Experiment, read_experiment
from protofleet.protocol.settings.reader import SettingsError
from protofleet.runtime.command.arguments import DEVICES, experiment_file
from protofleet.runtime.command.errors import RunError
from protofleet.runtime.command.parser import Parser

SETTINGS = (*DEFAULT_SETTINGS, *OPTIONAL_SETTINGS)


def main(arguments: list[str] | None = None) -> int:
    try:
        options = parser().parse_args(arguments)
    except SettingsError as error:
        print(f"stack: {error}", file=sys.stderr)
        return 2
    try:
        return int(COMMANDS[options.command](options))
    except (RunError, SettingsError, PermissionError) as error:
        print(f"stack: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        message = "the containers keep running; `make logs` shows their logs, `make down` stops them"
        print(f"stack: {message}", file=sys.stderr)
        return 1


def parser() -> argparse.ArgumentParser:
    top = Parser(prog="python -m protofleet.deploy.stack", description=__doc__)
    top.add_argument("command", choices=tuple(COMMANDS))
    top.add_argument("--folder", type=Path, default=Path("runs/stack"))
    top.add_argument("--experiment", type=experiment_file, default="experiments/demo.toml")
    count = "number of devices, spread over the domains of the data (default: the devices of the experiment)"
    top.add_argument("--devices", type=DEVICES, default=0, help=count)
    top.add_argument("--name", default="protofleet", help="name of the compose project")
    setting = "change a setting of the experiment"
    top.add_argument("--set", action="append", default=[], metavar="TABLE.KEY=VALUE", help=setting)
    top.add_argument(
        "--with",
        dest="settings",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help=f"change a variable of compose.env: {', '.join(SETTINGS)}",
    )
    cluster = "three nodes of RabbitMQ in place of one Mosquitto"
    top.add_argument("--cluster", action="store_true", help=cluster)
    top.add_argument(
        "--together",
        action="store_true",
        help="run all devices in one container, even if there are few devices",
    )
    queue = "the coordinator names no run, and conducts the runs that are submitted to it (docs/run-queue.md)"
    top.add_argument("--queue", action="store_true", help=queue)
    pinned = "up: refuse third-party images without a digest"
    top.add_argument("--pinned", action="store_true", help=pinned)
    built = "up: file with the ids of the images that were built on this machine"
    top.add_argument("--built", type=Path, default=IDS_FILE, metavar="FILE", help=built)
    fresh = "up: rename the results of an earlier run with this name, and begin a new run"
    top.add_argument("--fresh", action="store_true", help=fresh)
    top.add_argument("--forget", action="store_true", help="down: also remove keys, results and metrics")
    return top


def stack_from(options: argparse.Namespace) -> Stack:
    experiment = read_experiment(options.experiment, options.set)
    if options.devices:
        experiment = with_devices(experiment, options.devices)
    settings = dict(pair.partition("=")[::2] for pair in options.settings)
    if unknown := sorted(settings.keys() - {*SETTINGS}):
        raise SettingsError(f"there is no setting {unknown[0]!r}; the settings are {', '.join(SETTINGS)}")
    return Stack(
        options.folder, experiment, options.name, settings, options.cluster, options.together, options.queue
    )  # fmt: skip


def with_devices(experiment: Experiment, number: int) -> Experiment:
    """Return the experiment with this number of devices, spread evenly over the domains.

    If the source has no domains, all devices share it.
    """
    if number < 1:
        raise SettingsError(f"devices is {number}, it must be at least 1")
    one_each = replace(experiment, devices=replace(experiment.devices, clients={}, count=0, per_domain=1))
    domains = list(dict.fromkeys(data.domain for data in one_each.shards.values()))
    if len(domains) < 2:
        return replace(experiment, devices=replace(experiment.devices, clients={}, count=number))
    clients = {domain: len(range(i, number, len(domains))) for i, domain in enumerate(domains[:number])}
    return replace(experiment, devices=replace(experiment.devices, clients=clients))


def check(options: argparse.Namespace) -> int:
    """Raise an error if `up` cannot be used with these options."""
    stack = stack_from(options)
    check_names(stack)
    require_docker("compose")
    _demand_nothing_runs(stack, options.fresh)
    return 0


def _demand_nothing_runs(stack: Stack, fresh: bool) -> None:
    """Raise SettingsError if the new settings would end the present run and `fresh` is false."""
    run = unfinished_run(stack) if has_other_settings(stack, but_budget=True) else None
    if run is None or not compose.is_running(stack.folder):
        return
    if not fresh:
        raise SettingsError(
            f"the run {run.name} still runs in {stack.folder}, and the new settings would end this run: `make down` "
            "or FRESH=1 ends the run and keeps its results; `make logs` shows the run"
        )
    print(f"stack: the run {run.name} is ended; its results are kept")


def up(options: argparse.Namespace) -> int:
    stack = stack_from(options)
    require_docker("compose")
    stack = stack.with_image_ids(ids_of(stack.images, read_ids(options.built)))
    if warning := unpinned_warning(stack.images):
        if options.pinned:
            raise SettingsError(warning)
        print(f"stack: {warning}", file=sys.stderr)
    check_names(stack)
    _demand_nothing_runs(stack, options.fresh)
    earlier = earlier_run(stack, options.fresh)
    if earlier or has_other_settings(stack):
        compose.down(stack.folder, forget=False)  # The running containers use the earlier settings.
    if earlier:
        put_aside(earlier)
    prepare(stack)
    compose.up(stack.folder)
    print(compose.endpoints(stack))
    return 0


def down(options: argparse.Namespace) -> int:
    compose.down(options.folder, options.forget)
    return 0


def logs(options: argparse.Namespace) -> int:
    return compose.logs(options.folder)


def follow(options: argparse.Namespace) -> int:
    """Print one line for each round until the run is over, and then the run's results."""
    return compose.follow(stack_from(options))


COMMANDS = {"check": check, "up": up, "down": down, "logs": logs, "follow": follow}

if __name__ == "__main__":
    sys.exit(main())
