"""A first task tests a node. Each trouble is one line with the way out, and nothing else is submitted."""

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
    """Take the lock of a new file of the same name, as on a node whose locks are its own."""
    text = (job.folder / LOCK).read_text()
    (job.folder / LOCK).unlink()
    (job.folder / LOCK).write_text(text)
    answer(job)


def test_a_node_that_shares_folder_locks_and_version_passes(tmp_path):
    found = check(ToldEngine(), tmp_path).run()
    assert found.lock_holds and found.node


def test_the_test_asks_for_the_same_place_and_for_little_time(tmp_path):
    job = check(ToldEngine(), tmp_path).job("word")
    assert job.tasks == 1 and job.options == {"partition": "gpu"} and job.minutes == 5


def test_a_lock_that_does_not_hold_is_refused_with_the_mount(tmp_path):
    with pytest.raises(SettingsError, match="a lock on .* does not hold on node .*it is on /.*--trust-locks"):
        check(ToldEngine(check=unlocked), tmp_path).run()


def test_with_trust_locks_a_lock_may_fail(tmp_path):
    assert not check(ToldEngine(check=unlocked), tmp_path, trust_locks=True).run().lock_holds


def test_another_version_on_a_node_is_refused(tmp_path):
    engine = ToldEngine(check=other_answer(version="9.9", node="n4"))
    with pytest.raises(
        SettingsError, match="node n4 has protofleet 9.9, and this machine has .*; install the same"
    ):
        check(engine, tmp_path).run()


def test_a_node_that_does_not_see_the_folder_is_refused_with_the_way_out(tmp_path):
    with pytest.raises(
        SettingsError, match="a node does not see .*; choose a folder that .* share with --runs"
    ):
        check(ToldEngine(check=lambda job: None), tmp_path).run()


def test_a_task_that_cannot_start_is_refused_with_the_last_line_of_its_log(tmp_path):
    engine = ToldEngine(check=lambda job: job.log_of(0).write_text("first\n/opt/python: not found\n\n"))
    with pytest.raises(
        SettingsError, match="ended without an answer: /opt/python: not found; see .*check.log"
    ):
        check(engine, tmp_path).run()


def test_an_answer_of_an_earlier_test_does_not_count(tmp_path):
    check(ToldEngine(), tmp_path).run()
    with pytest.raises(SettingsError, match="a node does not see"):
        check(ToldEngine(check=lambda job: None), tmp_path).run()


def test_a_late_answer_to_another_command_does_not_count(tmp_path):
    with pytest.raises(SettingsError, match="a node does not see"):
        check(ToldEngine(check=other_answer(word="of an earlier command")), tmp_path).run()


def test_an_interrupt_cancels_the_test(tmp_path):
    def interrupted(text):
        raise KeyboardInterrupt

    engine = ToldEngine(check=lambda job: None, told=[[TaskState(0, "waits", reason="Priority")]])
    one = check(engine, tmp_path, wait_seconds=0.0)
    one.say = lambda text: interrupted(text) if "waits in the queue (Priority)" in text else None
    with pytest.raises(KeyboardInterrupt):
        one.run()
    assert "check" in engine.cancelled


def test_a_test_that_can_never_start_is_refused_in_the_words_of_the_engine_and_cancelled(tmp_path):
    """By default, Slurm takes a job whose account may not use the partition, and never starts it."""
    never = [TaskState(0, "refused", reason="AccountNotAllowed")]
    engine = ToldEngine(check=lambda job: None, told=[never])
    with pytest.raises(SettingsError, match="Slurm refuses the job: AccountNotAllowed; correct it"):
        check(engine, tmp_path).run()
    assert "check" in engine.cancelled


def test_a_node_with_another_folder_of_this_name_gives_no_answer(tmp_path):
    with pytest.raises(SettingsError, match="this node does not see .*check.lock"):
        answer_on_node(tmp_path, "word")
    (tmp_path / LOCK).write_text("other")
    with pytest.raises(SettingsError, match="this node sees another"):
        answer_on_node(tmp_path, "word")
    assert not (tmp_path / ANSWER).exists()
