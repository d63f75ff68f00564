"""Give the tests a Slurm or a Ray; skip them with the reason where it cannot run, and fail with ENGINES=required."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tests.engines.ray_cluster import LocalRay, NoRay, running_ray
from tests.engines.slurm_cluster import NoSlurm, SlurmCluster, running_slurm


@pytest.fixture(scope="session")
def started_slurm() -> Iterator[SlurmCluster]:
    try:
        with running_slurm() as found:
            yield found
    except NoSlurm as why:
        if os.environ.get("ENGINES") == "required":
            pytest.fail(f"no Slurm: {why}")
        pytest.skip(f"no Slurm: {why}")


@pytest.fixture
def slurm(started_slurm: SlurmCluster) -> Iterator[SlurmCluster]:
    yield started_slurm
    started_slurm.restore()


@pytest.fixture(scope="session")
def started_ray() -> Iterator[LocalRay]:
    try:
        with running_ray() as found:
            yield found
    except NoRay as why:
        if os.environ.get("ENGINES") == "required":
            pytest.fail(f"no Ray: {why}")
        pytest.skip(f"no Ray: {why}")


@pytest.fixture
def ray(started_ray: LocalRay) -> Iterator[LocalRay]:
    yield started_ray
    started_ray.restore()
