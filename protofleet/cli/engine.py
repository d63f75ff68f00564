"""Implement the options of `protofleet sweep` and `protofleet run` for engines, and the commands that tasks run."""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from protofleet.protocol.settings.reader import SettingsError
from protofleet.runtime.command.arguments import AT_ONCE, PACK, TASK_INDEX, Subparsers
from protofleet.runtime.interrupts import held_interrupts, stopped_as_by_a_terminal

if TYPE_CHECKING:
    from protofleet.lab.engines.settings import EngineSettings
    from protofleet.lab.local.experiment import Experiment

HERE = "here"
ENGINES = (HERE, "slurm", "ray")


def add_engine_options(command: argparse.ArgumentParser) -> None:
    group = command.add_argument_group("on other nodes")
    group.add_argument(
        "--on",
        choices=ENGINES,
        help="run the trials as tasks of an engine (default: here, one after another)",
    )
    group.add_argument(
        "--pack", type=PACK, metavar="N", help="trials of a task, one after another (default: 1)"
    )
    group.add_argument(
        "--at-once",
        type=AT_ONCE,
        metavar="N",
        help="largest number of tasks at the same time (default: no limit)",
    )
    group.add_argument(
        "--slurm", action="append", default=[], metavar="KEY=VALUE",
        help="an option of sbatch, for example partition=gpu; the option may be repeated",
    )  # fmt: skip
    group.add_argument(
        "--ray", action="append", default=[], metavar="KEY=VALUE",
        help="the address of a Ray cluster, or what each task claims: address, num_cpus, num_gpus, memory",
    )  # fmt: skip
    group.add_argument(
        "--trust-locks", action="store_true", help="do not refuse a folder whose file locks do not hold"
    )
    later = group.add_mutually_exclusive_group()
    later.add_argument(
        "--detach", action="store_true", help="end after the submission; the same command waits later"
    )
    later.add_argument(
        "--cancel", action="store_true", help="end the tasks that an earlier command has submitted"
    )


def engine_settings(options: argparse.Namespace, table: EngineSettings | None) -> EngineSettings:
    """Return the settings of the table [engine] with the values of the command line."""
    from protofleet.lab.engines.settings import EngineSettings

    found = (table or EngineSettings()).with_options(options.slurm, options.ray)
    given = {"on": options.on, "pack": options.pack, "at_once": options.at_once}
    found = replace(found, **{key: value for key, value in given.items() if value is not None})
    if found.on == HERE:
        words = {
            "--pack": options.pack, "--at-once": options.at_once, "--slurm": options.slurm, "--ray": options.ray,
            "--trust-locks": options.trust_locks, "--detach": options.detach, "--cancel": options.cancel,
        }  # fmt: skip
        if wrong := next((word for word, value in words.items() if value), ""):
            raise SettingsError(
                f"{wrong} is for an engine, and the trials run on this machine; add --on slurm or --on ray"
            )
    elif other := next((one for one in ENGINES if one != found.on and getattr(options, one, [])), ""):
        raise SettingsError(
            f"--{other} has options of another engine than --on {found.on}; leave out --{other}"
        )
    elif options.page:
        raise SettingsError(
            "--page shows a run on this machine, and --on runs it elsewhere; leave out one of both"
        )
    return found


def run_on_engine(
    options: argparse.Namespace, settings: EngineSettings, name: str, trials: Sequence[Experiment]
) -> int | None:
    """Run the trials on the engine, and return the exit code; None if the command has nothing to show yet."""
    from protofleet.lab.engines.named import engine_named
    from protofleet.lab.local.engine_batch import EngineBatch

    engine = engine_named(settings.on)
    if engine.ends_with_command and (options.detach or options.cancel):
        raise SettingsError(
            f"--detach and --cancel need tasks that go on without this command, and tasks of {engine.name} end with "
            "it; leave them out, and end the command with Ctrl-C: the same command goes on from there"
        )
    batch = EngineBatch(
        options.runs.absolute(), name, engine, settings, options.fresh,
        options.trust_locks, options.track,
    )  # fmt: skip
    if options.cancel:
        batch.cancel()
        return None
    code = batch.run_all(trials, options.detach)
    return None if options.detach else code


def add_trials(commands: Subparsers) -> None:
    """Add the command of a task. It has no help text, so `--help` does not list it."""
    command = commands.add_parser(
        "trials", description="Run the trials of a task; engines call this command."
    )
    command.add_argument("list", type=Path, help="a file with the trials of each task")
    command.add_argument("index", type=TASK_INDEX, help="the number of the task, from 0")
    command.add_argument("--runs", type=Path, required=True, help="where results go")
    command.add_argument(
        "--submitted-by", default="", metavar="VERSION", help="the version that must run here"
    )
    command.set_defaults(command=trials)


def trials(options: argparse.Namespace) -> int:
    from protofleet.lab.local.processes import start_launcher

    with start_launcher() or contextlib.nullcontext() as launcher, stopped_as_by_a_terminal():
        with held_interrupts():
            from protofleet.lab.local.engine_folder import TaskFiles
            from protofleet.lab.local.trials_task import TrialsTask
        files = TaskFiles(options.list, options.index)
        return TrialsTask(files, options.runs, options.submitted_by, launcher).run()


def add_node_check(commands: Subparsers) -> None:
    """Add the command of the first task. It has no help text, so `--help` does not list it."""
    command = commands.add_parser("node-check", description="Check this node; engines call this command.")
    command.add_argument("folder", type=Path, help="the folder of the engine's files")
    command.add_argument("word", help="the word that the command has written into the folder")
    command.set_defaults(command=node_check)


def node_check(options: argparse.Namespace) -> int:
    from protofleet.lab.engines.node_check import answer_on_node

    print(answer_on_node(options.folder, options.word))
    return 0
