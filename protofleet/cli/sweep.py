"""Implement `protofleet sweep`: run each point of a grid with each seed, and choose one by validation accuracy."""

from __future__ import annotations

import argparse
import contextlib
from pathlib import Path

from protofleet.cli.engine import HERE, add_engine_options, engine_settings, run_on_engine
from protofleet.cli.page import add_page_option, with_page
from protofleet.cli.track import add_track_option, tracked_places
from protofleet.runtime.command.arguments import SEEDS, Subparsers, experiment_file
from protofleet.runtime.interrupts import held_interrupts, stopped_as_by_a_terminal
from protofleet.runtime.launcher import Launcher


def add_sweep(commands: Subparsers) -> None:
    command = commands.add_parser(
        "sweep",
        help="run an experiment for a grid of settings and seeds; validation accuracy chooses the best",
    )
    command.add_argument(
        "file", type=experiment_file,
        help="an experiment, for example experiments/digits/fedavg.toml, or a file with a [grid] for an experiment",
    )  # fmt: skip
    command.add_argument(
        "--grid", action="append", default=[], metavar="TABLE.KEY=VALUE,VALUE",
        help="values of a setting; all combinations are tried; the option may be repeated",
    )  # fmt: skip
    command.add_argument(
        "--seeds", type=SEEDS, nargs="+", default=[], help="seeds of each combination (default: 1)"
    )
    command.add_argument(
        "--choose", choices=("validation", "best-validation"),
        help="validation: accuracy after the last round (default); best-validation: accuracy of a run's best round",
    )  # fmt: skip
    command.add_argument(
        "--set", action="append", default=[], metavar="TABLE.KEY=VALUE", help="change a setting of all trials"
    )
    command.add_argument("--runs", type=Path, default=Path("runs"), help="where results go (default: runs)")
    command.add_argument("--fresh", action="store_true", help="run finished trials again")
    add_page_option(command)
    add_track_option(command)
    add_engine_options(command)
    command.set_defaults(command=sweep)


def sweep(options: argparse.Namespace) -> int:
    from protofleet.lab.local.processes import start_launcher

    options.track = tracked_places(options.track)
    # The launcher is forked, so it must start before the slow imports and before there is a second thread.
    with start_launcher() or contextlib.nullcontext() as launcher, stopped_as_by_a_terminal():
        return sweep_with(launcher, options)


def sweep_with(launcher: Launcher | None, options: argparse.Namespace) -> int:
    with held_interrupts():
        from protofleet.lab.local.batch import Batch
        from protofleet.lab.local.grid import beside_others, read_axis
        from protofleet.lab.local.sweep_file import Wish, engine_of, planned
        from protofleet.lab.local.trials import FOLDER, put_aside, read_trials, write_trials

    wish = Wish([read_axis(text) for text in options.grid], options.seeds, with_page(options), options.choose)
    grid, choose = planned(options.file, wish)
    engine = engine_settings(options, engine_of(options.file, grid))
    grid = beside_others(grid, options.runs)
    print(
        f"trials: {len(grid.trials)} (points {len(grid.points)}, seeds of each {len(grid.points[0].trials)})"
    )
    if engine.on == HERE:
        code = Batch(options.runs, options.fresh, launcher, options.track).run_all(grid.trials)
    else:
        put_aside(options.runs / FOLDER / grid.name, grid)
        on_engine = run_on_engine(options, engine, grid.name, grid.trials)
        if on_engine is None:
            return 0
        code = on_engine
    trials = read_trials(grid, options.runs, choose)
    print("\n".join(["", trials.table().text(), "", *trials.lines()]))
    print(f"page: {write_trials(trials, options.runs)}")
    return code
