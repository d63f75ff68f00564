"""Submit a job once: a job that an earlier command has submitted from the same folder is taken over."""

from __future__ import annotations

import json
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from protofleet.lab.engines.engine import Engine, EngineJob
from protofleet.protocol.settings.reader import SettingsError
from protofleet.protocol.storage.disk import Disk
from protofleet.runtime.interrupts import held_interrupts

FILE: Final = "job"  # The name of the file in a job's folder that names the job in the queue.


@dataclass(frozen=True)
class SubmittedJob:
    """A job in the queue of an engine."""

    engine: str
    cluster: str
    job: str  # The id of the job.
    submitted: str  # The time in words.


def read_job(folder: Path) -> SubmittedJob | None:
    try:
        return SubmittedJob(**json.loads((folder / FILE).read_text()))
    except (OSError, ValueError, TypeError):
        return None


def write_job(engine: Engine, job: EngineJob, job_id: str) -> SubmittedJob:
    record = SubmittedJob(engine.name, engine.cluster, job_id, time.strftime("%Y-%m-%d %H:%M:%S"))
    Disk().replace(job.folder / FILE, (json.dumps(asdict(record), allow_nan=False) + "\n").encode())
    return record


def submitted_before(engine: Engine, job: EngineJob) -> str:
    """Return the id of a job from this folder that is still in the queue, or "".

    A command that was killed after the submission may not have written the file. Then the queue is asked for the
    comment of the script.
    """
    if record := read_job(job.folder):
        if (record.engine, record.cluster) != (engine.name, engine.cluster):
            raise SettingsError(
                f"job {record.job} of {job.folder} was given to {record.engine} of the cluster {record.cluster!r}, "
                f"and this is {engine.name} of the cluster {engine.cluster!r}; run the command there, or end the "
                f"job there and remove {job.folder / FILE}"
            )
        if any(state.state != "cancelled" for state in engine.states(record.job)):
            return record.job
    if (found := engine.find(job)) and not engine.ends_with_command:
        write_job(engine, job, found)
    return found


def submit(engine: Engine, job: EngineJob) -> str:
    """Submit the job and write its id. An interrupt is raised after both, so that no job is forgotten."""
    with held_interrupts():
        job_id = engine.submit(job)
        if not engine.ends_with_command:  # No later command can find such a job.
            write_job(engine, job, job_id)
    return job_id
