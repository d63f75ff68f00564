"""A first task checks a node. Each problem gives one line with a fix, and no other task is submitted."""

import json

import pytest

from protofleet.lab.engines.engine import TaskState
from protofleet.lab.engines.node_check import ANSWER, LOCK, NodeCheck, answer_on_node
from protofleet.protocol.settings.reader import SettingsError
from tests.lab.engines.told_engine import ToldEngine, answer


def check(engine, folder, said=None, **more):
    say = (said if said is not None else []).append
    return NodeCheck(engine, folder, (), {"partition": "gpu"}, say, settle_seconds=0.0, **more)


def other_answer(**changes):
    """Return a first task that answers like a good one, with some values changed."""

    def perform(job):
        answer(job)
        found = json.loads((job.folder / ANSWER).read_text())
        (job.folder / ANSWER).write_text(json.dumps(found | changes))

    return perform


def unlocked(job):
    """Lock a new file of the same name, as on a node that does not share its locks."""
    text = (job.folder / LOCK).read_text()
    (job.folder / LOCK).unlink()
    (job.folder / LOCK).write_text(text)
    answer(job)


def test_a_node_with_the_same_folder_locks_and_version_passes_the_check(tmp_path):
    found = check(ToldEngine(), tmp_path).run()
    assert found.lock_holds and found.node


def test_the_check_is_one_task_with_the_given_options_and_five_minutes(tmp_path):
    job = check(ToldEngine(), tmp_path).job("word")
    assert job.tasks == 1 and job.options == {"partition": "gpu"} and job.minutes == 5


def test_a_lock_that_does_not_hold_is_refused_and_the_error_names_the_mount(tmp_path):
    with pytest.raises(SettingsError, match="a lock on .* does not hold on node .*it is on /.*--trust-locks"):
        check(ToldEngine(check=unlocked), tmp_path).run()


def test_the_option_trust_locks_accepts_a_lock_that_does_not_hold(tmp_path):
    assert not check(ToldEngine(check=unlocked), tmp_path, trust_locks=True).run().lock_holds


def test_a_node_with_another_version_is_refused(tmp_path):
    engine = ToldEngine(check=other_answer(version="9.9", node="n4"))
    with pytest.raises(
        SettingsError, match="node n4 has protofleet 9.9, and this machine has .*; install the same"
    ):
        check(engine, tmp_path).run()


def test_a_node_that_does_not_see_the_folder_is_refused_with_a_fix(tmp_path):
    with pytest.raises(
        SettingsError, match="a node does not see .*; choose a folder that .* share with --runs"
    ):
        check(ToldEngine(check=lambda job: None), tmp_path).run()


def test_the_error_for_a_check_that_cannot_start_has_the_last_line_of_its_log(tmp_path):
    engine = ToldEngine(check=lambda job: job.log_of(0).write_text("first\n/opt/python: not found\n\n"))
    with pytest.raises(
        SettingsError, match="ended without an answer: /opt/python: not found; see .*check.log"
    ):
        check(engine, tmp_path).run()


def test_the_answer_of_an_earlier_check_is_ignored(tmp_path):
    check(ToldEngine(), tmp_path).run()
    with pytest.raises(SettingsError, match="a node does not see"):
        check(ToldEngine(check=lambda job: None), tmp_path).run()


def test_an_answer_to_another_command_is_ignored(tmp_path):
    with pytest.raises(SettingsError, match="a node does not see"):
        check(ToldEngine(check=other_answer(word="of an earlier command")), tmp_path).run()


def test_an_interrupt_cancels_the_check(tmp_path):
    def interrupted(text):
        raise KeyboardInterrupt

    engine = ToldEngine(check=lambda job: None, told=[[TaskState(0, "waits", reason="Priority")]])
    one = check(engine, tmp_path, wait_seconds=0.0)
    one.say = lambda text: interrupted(text) if "waits in the queue (Priority)" in text else None
    with pytest.raises(KeyboardInterrupt):
        one.run()
    assert "check" in engine.cancelled


def test_a_check_that_slurm_never_starts_is_cancelled_and_the_error_has_its_reason(tmp_path):
    """By default, Slurm accepts a job whose account may not use the partition, and never starts it."""
    never = [TaskState(0, "refused", reason="AccountNotAllowed")]
    engine = ToldEngine(check=lambda job: None, told=[never])
    with pytest.raises(SettingsError, match="Slurm refuses the job: AccountNotAllowed; correct it"):
        check(engine, tmp_path).run()
    assert "check" in engine.cancelled


def test_a_node_that_sees_another_folder_writes_no_answer(tmp_path):
    with pytest.raises(SettingsError, match="this node does not see .*check.lock"):
        answer_on_node(tmp_path, "word")
    (tmp_path / LOCK).write_text("other")
    with pytest.raises(SettingsError, match="this node sees another"):
        answer_on_node(tmp_path, "word")
    assert not (tmp_path / ANSWER).exists()
