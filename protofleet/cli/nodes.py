"""Implement `protofleet run FILE --on ENGINE --tasks N`: the devices of one federation work on nodes of an engine."""

from __future__ import annotations

import argparse
import contextlib
import socket
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

from protofleet.cli.page import with_page
from protofleet.protocol.settings.reader import SettingsError
from protofleet.runtime.command.arguments import TASKS, Subparsers
from protofleet.runtime.interrupts import held_interrupts, stopped_as_by_a_terminal
from protofleet.runtime.launcher import Launcher

if TYPE_CHECKING:
    from protofleet.lab.local.experiment import Experiment
    from protofleet.lab.local.nodes import EngineSite

HERE, JOB = "here", "job"
AGAIN_SECONDS: Final = 5.0


def add_nodes_options(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--on", choices=("slurm",), default="", help="run the devices on the nodes of an engine, with --tasks"
    )
    command.add_argument(
        "--slurm",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="option of sbatch, such as partition=gpu",
    )
    group = command.add_argument_group("one federation on other nodes")
    group.add_argument(
        "--tasks",
        type=TASKS,
        default=0,
        metavar="N",
        help="number of tasks that share the devices (with --on)",
    )
    group.add_argument(
        "--host", default="", metavar="NAME",
        help="name or address of the broker's machine that the nodes reach (default: the machine's name)",
    )  # fmt: skip
    group.add_argument(
        "--head", choices=(HERE, JOB), default=HERE,
        help="where broker and coordinator run: here (default), or in a job of the engine",
    )  # fmt: skip


def require_engine(options: argparse.Namespace) -> None:
    """Raise SettingsError if options about tasks are given for a run without tasks."""
    if options.tasks and not options.on:
        raise SettingsError(
            f"--tasks is {options.tasks}, but no engine is named; add --on slurm, or leave out --tasks"
        )
    if options.tasks and (len(options.experiments) > 1 or options.seeds):
        raise SettingsError(
            "--tasks divides the devices of one run, but several runs are named; name one file without --seeds, or "
            "leave out --tasks"
        )
    if options.host and not options.tasks:
        raise SettingsError(
            f"--host is {options.host}, the address of the broker for tasks, but there are no tasks; add --on slurm "
            "--tasks N, or leave out --host"
        )
    if options.head == JOB and not options.tasks:
        raise SettingsError(
            "--head is job, but the run has no tasks; add --on slurm --tasks N, or leave out --head"
        )
    if options.head == JOB and options.track:
        raise SettingsError(
            "--track does not work with --head job, because this machine does not run the coordinator; leave out "
            "--track, and run protofleet track RUN --follow beside it"
        )


def run_on_nodes(launcher: Launcher | None, options: argparse.Namespace) -> int:
    with held_interrupts():
        from protofleet.lab.local.class_check import agreed_names
        from protofleet.lab.local.data_check import require_data, require_public_images
        from protofleet.lab.local.experiment import names_patience, read_experiment
        from protofleet.lab.local.run import ready
        from protofleet.lab.local.sole_use import require_writable

    path = options.experiments[0]
    experiment = read_experiment(path, with_page(options))
    agreed_names(experiment)
    require_data([experiment])
    require_public_images(experiment)
    options.keep_patience = names_patience(path, options.set)
    site, runs = site_of(options), options.runs.absolute()
    site.demand_fit(experiment)
    require_writable(runs)
    if options.head == JOB:
        return run_head_job(site, experiment, options)
    check_connection(site, experiment, runs)
    with ready(experiment, runs, options.fresh, options.resume):
        run_head(site, experiment, runs, launcher, options)
    return 0


def site_of(options: argparse.Namespace) -> EngineSite:
    from protofleet.lab.engines.slurm import Slurm
    from protofleet.lab.local.nodes import EngineSite

    return EngineSite(
        Slurm(), options.tasks, options.host or socket.gethostname(),
        options=dict(text.partition("=")[::2] for text in options.slurm), keeps_patience=options.keep_patience,
    )  # fmt: skip


def check_connection(site: EngineSite, experiment: Experiment, runs: Path) -> None:
    """Check with a first task that nodes reach this machine, unless tasks of an earlier start still run."""
    from protofleet.lab.engines.engine import EngineJob
    from protofleet.lab.engines.first_connection import FirstTask
    from protofleet.lab.local.sole_use import require_free

    require_free(runs / experiment.name)
    site.engine.preflight(site.job(runs / experiment.name, site.tasks))
    if site.has_job(runs / experiment.name):
        return
    folder = runs / f".{experiment.name}.first-task"
    job = EngineJob(
        f"protofleet-{experiment.name}-first", folder, 1, (), setup=site.setup, options=site.options
    )
    FirstTask(site.engine, job, site.host, print).check()


def run_head(
    site: EngineSite,
    experiment: Experiment,
    runs: Path,
    launcher: Launcher | None,
    options: argparse.Namespace,
) -> None:
    from protofleet.lab.local.run import run_experiment

    print(f"report: {run_experiment(experiment, runs, launcher, options.track, site=site)}", flush=True)


def run_head_job(site: EngineSite, experiment: Experiment, options: argparse.Namespace) -> int:
    """Submit the head as a job, and wait for its end."""
    from protofleet.lab.local.head_job import HeadJob, head_job
    from protofleet.lab.local.run import ready, same_settings, write_experiment
    from protofleet.runtime.children import command
    from protofleet.runtime.command.errors import FAILED, MISUSED, RunError

    runs = options.runs.absolute()
    run = runs / experiment.name
    words = ["head", str(run), "--on", options.on, "--tasks", str(options.tasks)]
    words += [word for text in options.slurm for word in ("--slurm", text)]
    words += ["--host", options.host] if options.host else []
    words += ["--keep-patience"] if options.keep_patience else []
    template = site.job(run, options.tasks)
    site.engine.preflight(template)
    job = HeadJob(site.engine, head_job(run, command("protofleet", *words), template), run, print_line)
    if job_id := job.running:
        if options.fresh or not same_settings(run / "experiment.toml", experiment):
            raise SettingsError(
                f"job {job_id} runs {run} already, but a new run was asked for; end the job with scancel {job_id}, "
                "or give this run another name with --set name=..."
            )
        end = job.wait()
    else:
        with ready(experiment, runs, options.fresh, options.resume):
            write_experiment(experiment, run)
            end = job.wait()
    if end.code == FAILED:
        raise RunError(end.message)
    if end.code == MISUSED:
        raise SettingsError(end.message)
    return end.code


def print_line(text: str) -> None:
    print(text, flush=True)


def add_head(commands: Subparsers) -> None:
    """Add the command of the job of --head job. It has no help text, so `--help` does not list it."""
    command = commands.add_parser("head", description="Run the head of a run; engines call this command.")
    command.add_argument("run", type=Path, help="the folder of the run")
    add_nodes_options(command)
    command.add_argument(
        "--keep-patience", action="store_true", help="the file names policy.patience_seconds"
    )
    command.set_defaults(command=head, track=[])


def head(options: argparse.Namespace) -> int:
    from protofleet.lab.local.processes import start_launcher

    with start_launcher() or contextlib.nullcontext() as launcher, stopped_as_by_a_terminal():
        with held_interrupts():
            from protofleet.federation.exit_codes import exit_code, message
            from protofleet.lab.local.head_job import HEAD, HeadEnd, remove_end
            from protofleet.lab.local.share import ENGINE
            from protofleet.runtime.command.errors import FAILED, StoppedError
        folder = options.run.absolute() / ENGINE / HEAD
        remove_end(folder)
        try:
            head_with(launcher, options)
        except (StoppedError, KeyboardInterrupt) as error:
            HeadEnd(FAILED, str(error) or "stopped", stopped=True).write(folder)
            raise
        except Exception as error:
            HeadEnd(exit_code(error) or FAILED, message(error)).write(folder)
            raise
        HeadEnd(0, "").write(folder)
    return 0


def head_with(launcher: Launcher | None, options: argparse.Namespace) -> None:
    """Run the head of a run. A finished run is left alone, because the engine may start a job again after its end."""
    from protofleet.lab.local.experiment import read_experiment
    from protofleet.lab.local.head_job import SUMMARY
    from protofleet.lab.local.sole_use import InUseError
    from protofleet.lab.report.run_page import write_report

    run = options.run.absolute()
    said = False
    while not (run / SUMMARY).exists():
        experiment, site = read_experiment(run / "experiment.toml", []), site_of(options)
        try:
            check_connection(site, experiment, run.parent)
            run_head(site, experiment, run.parent, launcher, options)
            return
        except InUseError as error:  # The head on a node that the engine counts as lost may still run.
            if not said:
                print(f"waiting for the end of the earlier head: {error}", flush=True)
            said = True
            time.sleep(AGAIN_SECONDS)
    print(f"report: {write_report(run)}", flush=True)
