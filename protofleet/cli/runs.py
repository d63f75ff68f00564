"""Implement `protofleet run`, `report`, `compare` and `centralised`: experiments on this machine."""

from __future__ import annotations

import argparse
import contextlib
from pathlib import Path

from protofleet.cli.engine import HERE, add_engine_options, engine_settings, run_on_engine
from protofleet.cli.nodes import add_nodes_options, require_tasks, run_on_nodes
from protofleet.cli.page import add_page_option, with_page
from protofleet.cli.track import add_track_option, tracked_places
from protofleet.runtime.command.arguments import (
    SEEDS,
    SHARE,
    Subparsers,
    experiment_file,
    size_in_bytes,
)
from protofleet.runtime.command.listing import Listing, add_listing_options
from protofleet.runtime.interrupts import held_interrupts, stopped_as_by_a_terminal
from protofleet.runtime.launcher import Launcher


def add_run(commands: Subparsers) -> None:
    command = commands.add_parser(
        "run", help="run a federation on this machine from a TOML file; several files run one after another"
    )
    command.add_argument(
        "experiments", type=experiment_file, nargs="+", help="for example experiments/demo.toml"
    )
    command.add_argument(
        "--set", action="append", default=[], metavar="TABLE.KEY=VALUE", help="change a setting"
    )
    command.add_argument("--runs", type=Path, default=Path("runs"), help="where results go (default: runs)")
    earlier = command.add_mutually_exclusive_group()
    earlier.add_argument(
        "--fresh", action="store_true", help="start again: rename the folder of an earlier run with this name"
    )
    earlier.add_argument(
        "--resume", action="store_true", help="continue an unfinished run; fail if there is no such run"
    )
    command.add_argument(
        "--seeds",
        type=SEEDS,
        nargs="+",
        default=[],
        help="run each file once for each seed, as <name>-s<seed>",
    )
    add_page_option(command)
    add_track_option(command)
    add_engine_options(command)
    add_nodes_options(command)
    command.set_defaults(command=run)


def run(options: argparse.Namespace) -> int:
    from protofleet.lab.local.processes import start_launcher

    options.track = tracked_places(options.track)
    require_tasks(options)
    # The launcher is forked, so it must start before the slow imports and before there is a second thread.
    with start_launcher() or contextlib.nullcontext() as launcher, stopped_as_by_a_terminal():
        return run_with(launcher, options)


def run_with(launcher: Launcher | None, options: argparse.Namespace) -> int:
    with held_interrupts():
        from protofleet.lab.local.batch import Batch, common_engine, name_of_runs, plan_runs
        from protofleet.lab.local.class_check import agreed_names
        from protofleet.lab.local.data_beside import data_beside
        from protofleet.lab.local.data_check import require_data, require_public_images
        from protofleet.lab.local.experiment import experiment_table, read_experiment
        from protofleet.lab.local.run import ready, run_experiment
        from protofleet.lab.local.tasks_left import keep_tasks_away
        from protofleet.protocol.settings.reader import SettingsError

    for path in options.experiments:
        if beside := data_beside(experiment_table(path), path, options.set):
            print(beside)
    if options.tasks:
        return run_on_nodes(launcher, options)
    if options.seeds or len(options.experiments) > 1:
        if options.resume:
            raise SettingsError("--resume is for one run; to continue several runs, leave out --resume")
        planned = plan_runs(options.experiments, options.seeds, with_page(options))
        engine = engine_settings(options, common_engine(planned))
        if engine.on != HERE:
            name = name_of_runs(planned, options.experiments)
            return run_on_engine(options, engine, name, planned) or 0
        code = Batch(options.runs, options.fresh, launcher, options.track).run_all(planned)
        print("protofleet compare shows these runs in one table")
        return code
    experiment = read_experiment(options.experiments[0], with_page(options))
    if engine_settings(options, experiment.engine).on != HERE:
        raise SettingsError(
            "--on gives several runs to an engine, and this is one run; name several files or --seeds, or give --on "
            "here to run it on this machine; --tasks N divides its devices among nodes"
        )
    agreed_names(experiment)  # This check must come before the folder of an earlier run is renamed.
    require_data([experiment])
    require_public_images(experiment)
    keep_tasks_away(options.runs / experiment.name)
    with ready(experiment, options.runs, options.fresh, options.resume):
        print(f"report: {run_experiment(experiment, options.runs, launcher, options.track)}")
    return 0


def add_centralised(commands: Subparsers) -> None:
    command = commands.add_parser(
        "centralised",
        help="train on all devices' data in one process, without federation: the upper bound of an experiment",
    )
    command.add_argument(
        "experiment", type=experiment_file, help="for example experiments/digits/fedavg.toml"
    )
    command.add_argument(
        "--set", action="append", default=[], metavar="TABLE.KEY=VALUE", help="change a setting"
    )
    command.add_argument("--runs", type=Path, default=Path("runs"), help="where results go (default: runs)")
    command.add_argument(
        "--seeds",
        type=SEEDS,
        nargs="+",
        default=[],
        help="run the experiment once for each seed, as <name>-s<seed>",
    )
    command.add_argument("--fresh", action="store_true", help="run again if a run has finished")
    command.set_defaults(command=centralised)


def centralised(options: argparse.Namespace) -> int:
    from protofleet.lab.local.centralised import finished_before, named, run_centralised
    from protofleet.lab.local.experiment import read_experiment
    from protofleet.runtime.command.errors import StoppedError

    experiment = read_experiment(options.experiment, options.set)
    for one in [named(experiment, seed) for seed in options.seeds or [None]]:
        if not options.fresh and finished_before(one, options.runs):
            print(f"{one.name} has finished already; --fresh runs it again")
            continue
        try:
            print(f"report: {run_centralised(one, options.runs)}")
        except KeyboardInterrupt:
            raise StoppedError(
                f"stopped in {one.name}; run the same command again to restart this run"
            ) from None
    return 0


def add_report(commands: Subparsers) -> None:
    command = commands.add_parser(
        "report", help="write runs/<name>/report.html again and print the final table"
    )
    command.add_argument("folder", type=Path, help="for example runs/demo")
    command.set_defaults(command=report)


def report(options: argparse.Namespace) -> int:
    from protofleet.lab.report.run_page import final_table, write_report

    path = write_report(options.folder)
    print(final_table(options.folder))
    print(f"report: {path}")
    return 0


def add_finished_runs(command: argparse.ArgumentParser) -> None:
    command.add_argument("folders", type=Path, nargs="+", help="for example runs/fedavg-s1 runs/fedlsa-s1")
    command.add_argument(
        "--view",
        default="reports",
        help="the accuracy to compare: reports (the accuracy that each method's paper reports; default), global ...",
    )


def add_compare(commands: Subparsers) -> None:
    command = commands.add_parser(
        "compare", help="compare finished runs in tables; seeds of one experiment share a row"
    )
    add_finished_runs(command)
    command.add_argument(
        "--baseline",
        default="",
        metavar="NAME",
        help="the run to compare with (default: the run with fedavg)",
    )
    command.add_argument(
        "--share",
        type=SHARE,
        default=0.9,
        help="share of the baseline's accuracy that a run must reach (default: 0.9)",
    )
    command.add_argument(
        "--front",
        action="store_true",
        help="show accuracy over bytes, and the runs that no other run beats in both",
    )
    command.add_argument("--markdown", type=Path, metavar="FILE", help="write the tables for GitHub")
    command.add_argument("--html", type=Path, metavar="FILE", help="write a page with tables and curves")
    command.add_argument("--latex", type=Path, metavar="FILE", help="write the tables for a paper")
    command.add_argument("--csv", type=Path, metavar="FILE", help="write one line per run, for spreadsheets")
    add_listing_options(command)
    command.set_defaults(command=compare)


def compare(options: argparse.Namespace) -> int:
    from protofleet.lab.report.compared_energy import energy_tables
    from protofleet.lab.report.comparison import accuracy_target, read_groups, write
    from protofleet.lab.report.comparison_csv import as_csv
    from protofleet.lab.report.comparison_page import comparison_page
    from protofleet.lab.report.comparison_tables import as_object, origin_table, tables
    from protofleet.lab.report.front import front_of, front_picture, front_table
    from protofleet.lab.report.latex import as_latex
    from protofleet.lab.report.leakage_table import leakage_tables
    from protofleet.lab.report.virtual_runs import virtual_tables

    groups = read_groups(options.folders, options.view)
    target = accuracy_target(groups, options.baseline, options.share)
    points = front_of(groups) if options.front else []
    shown = [*tables(groups, target, options.share), *energy_tables(groups, target, options.share)]
    shown += [*virtual_tables(groups), *leakage_tables(groups)]
    shown += [front_table(points)] if points else []
    listing = Listing.of(options)
    listing.line("\n\n".join(table.text() for table in shown))
    listing.end(as_object(groups, shown))
    if options.markdown:
        write(options.markdown, "\n".join(table.markdown() for table in [*shown, origin_table(groups)]))
    if options.html:
        write(options.html, comparison_page(groups, shown, pictures=front_picture(points)))
    if options.latex:
        write(options.latex, as_latex(shown))
    if options.csv:
        write(options.csv, as_csv(groups, target))
    return 0


def add_advise(commands: Subparsers) -> None:
    command = commands.add_parser(
        "advise", help="name the best of some finished runs for a number of bytes, or for an accuracy"
    )
    add_finished_runs(command)
    command.add_argument(
        "--budget",
        type=size_in_bytes,
        metavar="SIZE",
        help="most bytes of tensors of a whole run, such as 1MB",
    )
    command.add_argument("--accuracy", type=SHARE, metavar="SHARE", help="least accuracy, such as 0.75")
    command.set_defaults(command=advise)


def advise(options: argparse.Namespace) -> int:
    from protofleet.lab.report.comparison import read_groups
    from protofleet.lab.report.front import advice, front_of
    from protofleet.protocol.settings.reader import SettingsError

    if options.budget is None and options.accuracy is None:
        raise SettingsError(
            "neither --budget nor --accuracy is given; give one of them, such as --budget 1MB"
        )
    print(advice(front_of(read_groups(options.folders, options.view)), options.budget, options.accuracy))
    return 0
