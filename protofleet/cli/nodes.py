"""Implement `protofleet run FILE --on ENGINE --tasks N`: the devices of one federation work on nodes of an engine."""

from __future__ import annotations

import argparse
import contextlib
import socket
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

from protofleet.cli.engine import HERE, engine_settings
from protofleet.cli.page import with_page
from protofleet.protocol.settings.reader import SettingsError
from protofleet.runtime.command.arguments import TASKS, Subparsers
from protofleet.runtime.interrupts import held_interrupts, stopped_as_by_a_terminal
from protofleet.runtime.launcher import Launcher

if TYPE_CHECKING:
    from collections.abc import Sequence

    from protofleet.lab.engines.settings import EngineSettings
    from protofleet.lab.local.experiment import Experiment
    from protofleet.lab.local.head_job import HeadEnd, HeadJob, HeadOptions
    from protofleet.lab.local.nodes import EngineSite
    from protofleet.lab.trackers.destinations import Destination

JOB = "job"
AGAIN_SECONDS: Final = 5.0


def add_nodes_options(command: argparse.ArgumentParser) -> None:
    group = command.add_argument_group("one federation on other nodes")
    group.add_argument(
        "--tasks",
        type=TASKS,
        default=0,
        metavar="N",
        help="number of tasks that share the devices (with --on)",
    )
    group.add_argument(
        "--host", metavar="NAME",
        help="name or address of the broker's machine that the nodes reach (default: the machine's name)",
    )  # fmt: skip
    group.add_argument(
        "--head", choices=(HERE, JOB), default=HERE,
        help="where broker and coordinator run: here (default), or in a job of the engine",
    )  # fmt: skip


def require_tasks(options: argparse.Namespace) -> None:
    """Raise SettingsError if options about tasks do not fit together."""
    several, head_here = len(options.experiments) > 1 or options.seeds, options.head == HERE
    problems = (
        (
            not head_here and options.track,
            "--track does not work with --head job, because this machine does not run the coordinator; leave out "
            "--track, and use protofleet track RUN --follow beside it",
        ),
        (
            options.tasks and head_here and (options.detach or options.cancel),
            "--detach and --cancel need a run without this command; add --head job, or leave them out",
        ),
        (
            options.tasks and (options.pack or options.at_once),
            "--pack and --at-once are for several runs, but --tasks divides one run; leave them out",
        ),
        (
            options.tasks and several,
            "--tasks divides the devices of one run, but several runs are named; name one file without --seeds, or "
            "leave out --tasks",
        ),
        (
            not head_here and not options.tasks,
            "--head is job, but the run has no tasks; add --on slurm --tasks N, or leave out --head",
        ),
        (
            options.host == "",
            "--host is empty; name this machine as the nodes reach it, or leave out --host",
        ),
        (
            options.host and not options.tasks,
            f"--host is {options.host}, but the run has no tasks that connect to a broker; add --tasks N with --on "
            "slurm or ray, or leave out --host",
        ),
    )
    for is_wrong, words in problems:
        if is_wrong:
            raise SettingsError(words)


def run_on_nodes(launcher: Launcher | None, options: argparse.Namespace) -> int:
    with held_interrupts():
        from protofleet.lab.local.class_check import agreed_names
        from protofleet.lab.local.data_check import require_data, require_public_images
        from protofleet.lab.local.experiment import names_patience, read_experiment
        from protofleet.lab.local.head_job import HeadOptions
        from protofleet.lab.local.run import ready
        from protofleet.lab.local.sole_use import require_writable

    path = options.experiments[0]
    experiment = read_experiment(path, with_page(options))
    engine = engine_of(options, experiment)
    agreed_names(experiment)
    require_data([experiment])
    require_public_images(experiment)
    wish = HeadOptions(options.tasks, options.host or "", names_patience(path, options.set), engine)
    site, runs = site_of(wish), options.runs.absolute()
    if options.head == JOB and site.engine.ends_with_command:
        raise SettingsError(
            f"--head is job, but the tasks of {engine.on} end with this command; leave out --head, and start the "
            "command on a node that allows work"
        )
    site.demand_fit(experiment)
    require_writable(runs)
    if options.head == JOB:
        return run_head_job(site, experiment, wish, options)
    check_connection(site, experiment, runs, options.fresh)
    with ready(experiment, runs, options.fresh, options.resume):
        run_head(site, experiment, runs, launcher, options.track)
    return 0


def engine_of(options: argparse.Namespace, experiment: Experiment) -> EngineSettings:
    page = options.page and options.head == JOB  # The page of a head on this machine works.
    found = engine_settings(argparse.Namespace(**{**vars(options), "page": page}), experiment.engine)
    if found.on == HERE:
        raise SettingsError(
            f"--tasks is {options.tasks}, but no engine is named; add --on slurm or --on ray, or leave out "
            "--tasks"
        )
    return found


def site_of(wish: HeadOptions) -> EngineSite:
    from protofleet.lab.engines.named import engine_named
    from protofleet.lab.local.nodes import EngineSite

    engine = wish.engine
    return EngineSite(
        engine_named(engine.on), wish.tasks, wish.host or socket.gethostname(), setup=engine.setup,
        options=engine.options, keeps_patience=wish.keeps_patience,
    )  # fmt: skip


def check_connection(site: EngineSite, experiment: Experiment, runs: Path, fresh: bool = False) -> None:
    """Check with a first task that nodes reach this machine, unless tasks of an earlier start still run.

    Raise SettingsError if such tasks run, but a new run would begin: they would take the new run for their own.
    """
    from protofleet.lab.engines.engine import EngineJob
    from protofleet.lab.engines.first_connection import FirstTask
    from protofleet.lab.local.run import same_settings
    from protofleet.lab.local.sole_use import require_free

    require_free(runs / experiment.name)
    site.engine.preflight(site.job(runs / experiment.name, site.tasks))
    run = runs / experiment.name
    if job_id := site.job_left(run):
        if fresh or not same_settings(run / "experiment.toml", experiment):
            raise SettingsError(
                f"job {job_id} has the devices of the earlier run in {run}, but a new run would begin; end the job "
                f"with scancel {job_id} first, or give this run another name with --set name=..."
            )
        return
    if experiment.broker.kind == "external":
        return  # The nodes need not reach this machine.
    folder = runs / f".{experiment.name}.first-task"
    job = EngineJob(
        f"protofleet-{experiment.name}-first", folder, 1, (), setup=site.setup, options=site.options
    )
    FirstTask(site.engine, job, site.host, print_line).check()


def run_head(
    site: EngineSite,
    experiment: Experiment,
    runs: Path,
    launcher: Launcher | None,
    track: Sequence[Destination],
) -> None:
    from protofleet.lab.local.run import run_experiment

    print_line(f"report: {run_experiment(experiment, runs, launcher, track, site=site)}")


def run_head_job(
    site: EngineSite, experiment: Experiment, wish: HeadOptions, options: argparse.Namespace
) -> int:
    """Submit the head as a job, and wait for its end."""
    from protofleet.lab.local.head_job import HeadJob, head_job
    from protofleet.lab.local.run import ready, same_settings, write_experiment

    runs = options.runs.absolute()
    run = runs / experiment.name
    template = site.job(run, options.tasks)
    site.engine.preflight(template)
    job = HeadJob(site.engine, head_job(run, template, options.trust_locks), run, print_line)
    if options.cancel:
        job.stop()
        print(f"no task of {run} is left; the same command without --cancel goes on")
        return 0
    if job_id := job.running:
        if options.fresh or not same_settings(run / "experiment.toml", experiment):
            raise SettingsError(
                f"job {job_id} runs {run} already, but a new run was asked for; end the job with scancel {job_id}, "
                "or give this run another name with --set name=..."
            )
        return code_of(job, options.detach)
    same = not options.fresh and same_settings(run / "experiment.toml", experiment)
    if same and (end := job.finished_unseen()):
        return code_of_end(end)
    with ready(experiment, runs, options.fresh, options.resume):
        write_experiment(experiment, run)
        wish.write(job.job.folder)
        return code_of(job, options.detach)


def code_of(job: HeadJob, detach: bool) -> int:
    """Return the exit code of a head when it has ended; with `detach`, return 0 after the submission."""
    if detach:
        job.submitted()
        print("the same command without --detach waits for the end of the run")
        return 0
    return code_of_end(job.wait())


def code_of_end(end: HeadEnd) -> int:
    """Return the exit code of a head that has ended, or raise its error."""
    from protofleet.protocol.user_error import FAILED, MISUSED
    from protofleet.runtime.command.errors import RunError

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
    command.set_defaults(command=head)


def head(options: argparse.Namespace) -> int:
    from protofleet.lab.local.processes import start_launcher

    with start_launcher() or contextlib.nullcontext() as launcher, stopped_as_by_a_terminal():
        with held_interrupts():
            from protofleet.lab.local.head_job import HeadEnd, head_folder, remove_end
            from protofleet.protocol.user_error import FAILED
            from protofleet.runtime.command.errors import StoppedError
            from protofleet.runtime.command.exit_codes import exit_code, message
        run = options.run.absolute()
        folder = head_folder(run)
        remove_end(folder)
        try:
            head_with(launcher, run)
        except (StoppedError, KeyboardInterrupt) as error:
            HeadEnd(FAILED, str(error) or "stopped", stopped=True).write(folder)
            raise
        except Exception as error:
            HeadEnd(exit_code(error) or FAILED, message(error)).write(folder)
            raise
        HeadEnd(0, "").write(folder)
    return 0


def head_with(launcher: Launcher | None, run: Path) -> None:
    """Run the head of a run. A finished run is left alone, because the engine may start a job again after its end."""
    from protofleet.lab.local.experiment import read_experiment
    from protofleet.lab.local.head_job import SUMMARY, head_folder, read_options
    from protofleet.lab.local.sole_use import InUseError
    from protofleet.lab.report.run_page import write_report

    said = False
    while not (run / SUMMARY).exists():
        experiment = read_experiment(run / "experiment.toml", [])
        site = site_of(read_options(head_folder(run)))
        try:
            check_connection(site, experiment, run.parent)
            run_head(site, experiment, run.parent, launcher, ())
            return
        except InUseError as error:  # The head on a node that the engine counts as lost may still run.
            if not said:
                print_line(f"waiting for the end of the earlier head: {error}")
            said = True
            time.sleep(AGAIN_SECONDS)
    print_line(f"report: {write_report(run)}")
