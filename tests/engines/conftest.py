"""Give the tests a Slurm or a Ray; skip them with the reason where it cannot run, and fail with ENGINES=required.

Each test ends all processes that it has started. The session fails if it leaves a process, a job or a folder.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from tests.engines.ray_cluster import LocalRay, NoRay, running_ray
from tests.engines.slurm_cluster import NoSlurm, SlurmCluster, running_slurm
from tests.support.started_processes import (
    END_SECONDS,
    StartedProcesses,
    described,
    ended_at_last,
    processes_in,
)


@pytest.fixture(scope="session", autouse=True)
def nothing_is_left(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Keep all temporary folders in one, and fail at the end of the session if a process or this folder is left."""
    of_tests = tmp_path_factory.getbasetemp()
    temporary = Path(tempfile.mkdtemp(prefix="engines-"))
    temporary.chmod(0o755)  # munged runs as another user.
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TMPDIR", str(temporary))
        patch.setattr(tempfile, "tempdir", str(temporary))
        yield
    deadline = time.monotonic() + END_SECONDS
    while (left := [*processes_in(of_tests), *processes_in(temporary)]) and time.monotonic() < deadline:
        time.sleep(0.1)
    with suppress(FileNotFoundError):  # A process that still ends may remove a file at the same time.
        shutil.rmtree(temporary)
    assert not left, f"the tests have left processes: {described(left)}"
    assert not temporary.exists(), f"the tests have left {temporary}"


@pytest.fixture(autouse=True)
def started(monkeypatch: pytest.MonkeyPatch) -> Iterator[StartedProcesses]:
    """End all processes that a test has started, also if the test has failed."""
    with ended_at_last(monkeypatch) as found:
        yield found


@contextmanager
def if_it_can_run(engine: str, missing: type[Exception]) -> Iterator[None]:
    """Skip the tests with the reason if the engine cannot run here, or fail them with ENGINES=required."""
    try:
        yield
    except missing as why:
        words = f"no {engine}: {why}"
        if os.environ.get("ENGINES") == "required":
            pytest.fail(words)
        pytest.skip(words)


@pytest.fixture(scope="session")
def started_slurm() -> Iterator[SlurmCluster]:
    with if_it_can_run("Slurm", NoSlurm), running_slurm() as found:
        yield found
        jobs, processes = found.tasks(), [int(word) for word in found.left()]
        assert not jobs and not processes, f"the tests have left jobs {jobs}; {described(processes)}"


@pytest.fixture
def slurm(started_slurm: SlurmCluster, started: StartedProcesses) -> Iterator[SlurmCluster]:
    yield started_slurm
    started.end()  # A command that still runs would submit a cancelled job again.
    started_slurm.restore()


@pytest.fixture(scope="session")
def started_ray() -> Iterator[LocalRay]:
    with if_it_can_run("Ray", NoRay), running_ray() as found:
        yield found


@pytest.fixture
def ray(started_ray: LocalRay, started: StartedProcesses) -> Iterator[LocalRay]:
    yield started_ray
    started.end()
    started_ray.restore()
