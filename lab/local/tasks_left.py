"""Keep the tasks of an engine away from a run that goes on on this machine.

A command with --tasks may have been killed, so that its tasks still run. If they ran beside the processes of this
machine, both would write the files of the same devices.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

from protofleet.lab.engines.engine import Engine, EngineAwayError, EngineJob
from protofleet.lab.engines.named import engine_named
from protofleet.lab.engines.submission import SubmittedJob, read_job, submitted_before
from protofleet.lab.local.head_job import head_folder
from protofleet.lab.local.nodes import BROKER_FILE
from protofleet.lab.local.share import ENGINE, GROUPS, HAND_OVER_SECONDS, end_tasks, read_groups
from protofleet.lab.local.sole_use import sole_use
from protofleet.protocol.settings.reader import SettingsError

EngineOf = Callable[[str], Engine]


def keep_tasks_away(
    run: Path,
    say: Callable[[str], None] = print,
    engine_of: EngineOf = engine_named,
    wait: Callable[[float], None] = time.sleep,
) -> None:
    """Raise SettingsError if an engine still has a job of the run.

    Tasks of which no engine knows may still run, for example on a node that the engine has lost, or if this machine
    has no commands of the engine. Such a task sees in the run's folder that it is to end. A task that starts later
    finds no broker file, so it starts no devices.
    """
    if not (run / ENGINE).is_dir():
        return
    with sole_use(run):  # The tasks of a command that still runs are left alone.
        not_asked = [words for folder in job_folders(run) if (words := problem_with(run, folder, engine_of))]
        (run / ENGINE / BROKER_FILE).unlink(missing_ok=True)
        if end_tasks(run):
            for words in not_asked:
                say(words)
            say(f"tasks that still run the devices of {run} end within {HAND_OVER_SECONDS:.0f} s")
            wait(HAND_OVER_SECONDS)


def job_folders(run: Path) -> Iterator[Path]:
    """Yield the folders of the jobs of a run; the head comes first, because it would submit the other jobs again."""
    yield head_folder(run)
    yield run / ENGINE
    yield from sorted((run / ENGINE).glob("task-*"))


def problem_with(run: Path, folder: Path, engine_of: EngineOf) -> str:
    """Return why the engine cannot be asked about a job, or ""; raise SettingsError if it has the job."""
    if (record := read_job(folder)) is None:
        return ""
    try:
        job_id = submitted_before(engine_of(record.engine), EngineJob("", folder.absolute(), 1, ()))
    except KeyError:
        return (
            f"job {record.job} cannot be asked about: this version does not know the engine {record.engine}"
        )
    except (EngineAwayError, SettingsError) as error:
        return f"job {record.job} of {record.engine} cannot be asked about: {error}"
    if job_id:
        raise SettingsError(refusal(run, folder, record, job_id))
    return ""


def refusal(run: Path, folder: Path, record: SubmittedJob, job_id: str) -> str:
    groups = run / ENGINE / GROUPS
    tasks = f" --tasks {len(read_groups(groups))}" if groups.exists() else " --tasks N"
    same = f"--on {record.engine}{tasks}"
    if folder == head_folder(run):
        return (
            f"job {job_id} of {record.engine} runs {run} already; add {same} --head job to wait for it, or add also "
            "--cancel to end it"
        )
    return (
        f"job {job_id} of {record.engine} still has devices of {run}; go on with {same}, or end the job first with "
        f"scancel {job_id}"
    )
