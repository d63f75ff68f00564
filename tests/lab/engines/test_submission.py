"""A job is stored for a later command, unless the job ends with the command that has submitted it."""

import pytest

from protofleet.lab.engines.engine import EngineJob
from protofleet.lab.engines.submission import read_job, submit, submitted_before
from protofleet.protocol.settings.reader import SettingsError
from tests.lab.engines.told_engine import ToldEngine


def test_a_job_that_ends_with_its_command_is_not_stored_but_the_command_finds_it(tmp_path):
    engine, job = ToldEngine(name="ray", ends_with_command=True), EngineJob("sweep", tmp_path, 1, ())
    found = submit(engine, job)
    assert submitted_before(engine, job) == found
    assert read_job(tmp_path) is None


def test_a_second_engine_is_refused_while_a_job_of_the_first_engine_runs(tmp_path):
    job = EngineJob("sweep", tmp_path, 1, ())
    submit(ToldEngine(), job)
    with pytest.raises(SettingsError, match="job 1 of .* was given to slurm .* and this is ray"):
        submitted_before(ToldEngine(name="ray", ends_with_command=True), job)
