"""Implement `protofleet simulate`: the time, bytes, energy and cost of a run on boards that are not here."""

from __future__ import annotations

import argparse
from pathlib import Path

from protofleet.runtime.command.arguments import WORKERS, Subparsers, experiment_file


def add_simulate(commands: Subparsers) -> None:
    command = commands.add_parser(
        "simulate", help="run an experiment in virtual time, and say what a fleet would take and cost"
    )
    command.add_argument(
        "experiment", type=experiment_file, nargs="?", help="for example experiments/digits/fedavg.toml"
    )
    command.add_argument(
        "--profiles",
        type=Path,
        required=True,
        metavar="FILE",
        help="boards, lines and availability of the fleet",
    )
    command.add_argument(
        "--validate", type=Path, metavar="RUN",
        help="repeat the settings of a finished run, such as runs/demo, and say how far off the virtual time is",
    )  # fmt: skip
    command.add_argument(
        "--set", action="append", default=[], metavar="TABLE.KEY=VALUE", help="change a setting"
    )
    command.add_argument("--runs", type=Path, default=Path("runs"), help="where results go (default: runs)")
    command.add_argument(
        "--workers", type=WORKERS, metavar="N",
        help="processes that train (default: the number of cores); 1 means that the command trains itself",
    )  # fmt: skip
    command.set_defaults(command=simulate)


def simulate(options: argparse.Namespace) -> int:
    from protofleet.lab.local.experiment import read_experiment
    from protofleet.lab.report.run_page import final_table
    from protofleet.lab.virtual.profiles import read_profiles
    from protofleet.lab.virtual.simulate import named
    from protofleet.lab.virtual.simulate import simulate as simulate_run
    from protofleet.protocol.settings.reader import SettingsError

    if (options.experiment is None) is (options.validate is None):
        raise SettingsError("give either an experiment or --validate RUN")
    if options.validate is not None:
        return validate(options)
    read = read_profiles(options.profiles)
    experiment = named(read_experiment(options.experiment, options.set))
    report = simulate_run(experiment, options.runs, read, workers=options.workers)
    print(final_table(options.runs / experiment.name))
    print(f"report: {report}")
    return 0


def validate(options: argparse.Namespace) -> int:
    from protofleet.lab.virtual.validate import validate as validate_run
    from protofleet.protocol.settings.reader import SettingsError

    if options.set:
        raise SettingsError("--validate repeats the settings of a run, so --set cannot be used with it")
    print(validate_run(options.validate, options.profiles, options.runs, workers=options.workers))
    return 0
