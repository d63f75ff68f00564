"""A command shows the end of a head in a job once, even if the job has ended while no command waited for it."""

import pytest

from protofleet.lab.engines.engine import EngineJob
from protofleet.lab.local.head_job import SUMMARY, HeadEnd, HeadJob, head_job
from tests.lab.engines.told_engine import ToldEngine


@pytest.fixture
def run(tmp_path):
    (tmp_path / "run").mkdir()
    return tmp_path / "run"


def head_of(run, say=lambda words: None):
    def finish(job, task):
        job.log_of(0).write_text("round 1 has ended\n")
        (run / SUMMARY).touch()
        HeadEnd(0, "").write(job.folder)

    template = EngineJob("protofleet-run", run / "engine", 2, ("fleet",))
    return HeadJob(ToldEngine(finish), head_job(run, template, False), run, say)


def test_the_end_of_a_run_after_detach_is_shown_once(run):
    head_of(run).submitted()  # As with --detach.
    said = []
    later = head_of(run, said.append)
    assert later.finished_unseen() is None, "the run has not finished"
    job = later.job
    later.engine.perform(job, 0)
    assert later.finished_unseen() == HeadEnd(0, "")
    assert said == ["round 1 has ended"]
    assert later.finished_unseen() is None, "the next command begins a new run"


def test_the_end_of_a_run_is_not_shown_again_after_a_command_has_waited_for_it(run):
    waiting = head_of(run)
    assert waiting.wait() == HeadEnd(0, "") and (run / SUMMARY).exists()
    assert waiting.finished_unseen() is None


def test_the_end_of_a_diverged_run_keeps_its_exit_code(run):
    head_of(run).submitted()
    later = head_of(run)
    (run / SUMMARY).touch()
    HeadEnd(4, "diverged").write(later.job.folder)
    assert later.finished_unseen() == HeadEnd(4, "diverged")
