"""A device handles a plan, a task, and the results of its worker."""

import errno

import pytest

from protofleet.edge_client.trainer.errors import TrainerDiedError
from protofleet.methods.plugins.errors import PlugInError
from protofleet.protocol.settings.reader import SettingsError
from protofleet.protocol.storage.store import DamagedError
from protofleet.protocol.wire.messages import About, Receipt
from protofleet.protocol.wire.reasons import DisconnectReason
from tests.edge_client.agent_parts import EPOCH, RUN, AgentParts, FixedJob
from tests.support.small_federation import plan

DIED = TrainerDiedError(DisconnectReason.OUT_OF_MEMORY, "the kernel has ended it")
FULL = OSError(errno.ENOSPC, "No space left on device")


@pytest.fixture
def parts(tmp_path):
    return AgentParts(tmp_path)


@pytest.fixture
def following(parts):
    parts.follow()
    return parts


def test_a_new_plan_starts_a_job_and_then_the_device_sends_a_hello(parts):
    parts.tasks.welcomed(parts.welcome(), EPOCH)
    assert parts.tasks.queue.busy and parts.run.job is None and parts.link.taken() == []
    parts.worker.finish()
    assert parts.run.job is not None and not parts.tasks.queue.busy
    assert parts.link.taken() == ["Hello"]


def test_a_known_plan_starts_no_job_and_the_device_sends_a_hello(following):
    job = following.run.job
    following.tasks.welcomed(following.welcome(), EPOCH)
    assert following.link.taken() == ["Hello"] and not following.worker.submitted
    assert following.run.job is job


def test_another_plan_with_the_same_run_name_replaces_the_job(following):
    following.tasks.take(following.question())
    following.worker.finish()
    following.tasks.welcomed(following.welcome(plan("fedprox")), EPOCH)
    assert following.run.job is None and following.tasks.delivery.pending is None
    following.worker.finish()
    assert following.run.plan == plan("fedprox")


@pytest.mark.parametrize(
    ("welcome", "problem"),
    [
        (
            {"about": About(uses=("telepathy",))},
            "this device does not support telepathy; update its software",
        ),
        ({"about": About(names=("ant", "bee", "cow"))}, "the classes of this device have other names"),
        ({"made": plan("fedavg", rounds=0)}, "rounds"),
    ],
)
def test_a_plan_that_the_device_cannot_follow_ends_the_device_with_the_reason(parts, welcome, problem):
    parts.tasks.welcomed(parts.welcome(**welcome), EPOCH)
    assert parts.context.finished and problem in parts.context.problem
    assert parts.context.problem.startswith("this device cannot follow the run's plan: ")
    assert parts.link.taken() == ["Bye"]


def test_a_plan_that_does_not_fit_the_network_is_refused_after_the_job_fails(parts):
    parts.tasks.welcomed(parts.welcome(), EPOCH)
    parts.worker.finish(ValueError("the network takes 1 channel"))
    assert parts.context.problem.endswith("plan: the network takes 1 channel")


@pytest.mark.parametrize("error", [SettingsError("another fedexp.py"), PlugInError("mine.py:3")])
def test_a_plan_that_cannot_be_read_again_in_the_middle_of_a_run_is_refused_at_once(following, error):
    """The training process has died, and the one that replaces it finds a changed file."""
    following.tasks.take(following.question())
    following.link.taken()
    following.worker.finish(error)
    (bye,) = following.link.said
    assert bye.reason == f"cannot_follow: {error}"
    assert following.context.problem == f"this device cannot follow the run's plan: {error}"


def test_a_task_without_a_job_starts_no_work_and_sends_no_message(parts):
    parts.tasks.take(parts.question())
    assert not parts.worker.submitted and parts.link.taken() == []


def test_an_update_is_sent_after_it_is_durable_and_again_for_the_same_task(following):
    question = following.question()
    following.tasks.take(question)
    assert following.link.taken() == [] and following.observed == ["planned", "started"]
    following.worker.finish()
    assert following.link.taken() == ["Update"] and following.state.answer_to(question.name)
    following.tasks.take(question)
    assert following.link.taken() == ["Update"] and not following.worker.submitted
    assert following.observed == ["planned", "started", "answered"]


@pytest.mark.parametrize("saved", (True, False), ids=("after", "before"))
def test_a_repeated_task_of_an_earlier_round_starts_no_work(following, saved):
    """The task is repeated while the worker is at the later round, whose update replaces the earlier one."""
    tasks, worker = following.tasks, following.worker
    tasks.take(following.question(1))
    worker.finish()
    tasks.take(following.question(2))
    work, then = worker.submitted.pop()
    answer = work() if saved else None
    tasks.take(following.question(1))
    then(answer or work())
    assert not worker.submitted and not tasks.queue.busy
    assert [a.round for a in following.state.saved.answers] == [2]


def test_only_the_newest_task_waits_while_the_worker_is_busy(following):
    first, second, third = (following.question(round) for round in (1, 2, 3))
    for question in (first, second, first, third):
        following.tasks.take(question)
    assert len(following.worker.submitted) == 1
    following.worker.finish()
    assert following.tasks.queue.busy_with == third.name and len(following.worker.submitted) == 1


@pytest.mark.parametrize("stops", ["drain", "hold"])
def test_a_draining_or_paused_device_still_sends_an_update_that_it_has(following, stops):
    known = following.question(1)
    following.tasks.take(known)
    following.worker.finish()
    following.link.taken()
    following.tasks.drain() if stops == "drain" else following.hellos.pause("too hot")
    following.link.taken()
    following.tasks.take(following.question(2))
    assert following.link.taken() == [] and not following.worker.submitted
    following.tasks.take(known)
    assert following.link.taken() == ["Update"]


def test_a_device_is_drained_after_the_receipt_of_its_last_update(following):
    following.tasks.take(following.question())
    following.tasks.drain()
    assert not following.tasks.drained
    following.worker.finish()
    assert not following.tasks.drained
    following.tasks.delivery.received(Receipt(1, "train", "accepted"), following.context.now)
    assert following.tasks.drained


def test_a_dead_trainer_causes_a_bye_at_once_and_a_hello_after_a_pause(following):
    following.context.now = 100.0
    following.tasks.take(following.question())
    following.worker.finish(DIED)
    assert following.link.taken() == ["Bye"] and following.observed == ["planned", "started", "died"]
    assert following.run.job is None and not following.tasks.queue.busy
    assert following.hellos.next_at == following.hellos.backoff.until > 100.0


def test_a_device_with_a_full_disk_keeps_its_run_and_drops_the_job(following):
    following.tasks.take(following.question())
    following.worker.finish(FULL)
    assert following.tasks.disk_space.problem and following.run.job is None and following.run.name == RUN
    assert not following.context.finished


@pytest.mark.parametrize("error", [DamagedError("device.json"), ZeroDivisionError("ours"), OSError(5, "I/O")])
def test_an_internal_error_of_the_device_ends_its_process(following, error):
    following.tasks.take(following.question())
    with pytest.raises(type(error)):
        following.worker.finish(error)


@pytest.mark.parametrize("result", [None, DIED, FULL, ValueError("no such layer")])
def test_the_result_for_another_run_is_dropped_and_a_hello_is_sent(following, result):
    following.tasks.take(following.question())
    following.tasks.change_run("autumn")
    following.link.taken()
    following.worker.finish(result)
    assert following.link.taken() == ["Hello"] and not following.tasks.queue.busy
    assert following.tasks.delivery.pending is None and not following.context.finished


def test_an_internal_error_is_raised_even_in_work_for_another_run(following):
    following.tasks.take(following.question())
    following.tasks.change_run("autumn")
    with pytest.raises(DamagedError):
        following.worker.finish(DamagedError("device.json"))


def test_the_job_of_an_earlier_run_is_dropped_and_a_hello_is_sent(parts):
    parts.tasks.welcomed(parts.welcome(), EPOCH)
    parts.tasks.change_run("autumn")
    parts.worker.finish(FixedJob())
    assert parts.run.job is None and parts.link.taken() == ["Hello"]


@pytest.mark.parametrize(
    ("epoch", "receipt", "said"), [(EPOCH + 1, True, ["Update"]), (EPOCH, True, []), (EPOCH + 1, False, [])]
)
def test_only_a_new_epoch_gets_an_update_with_a_receipt_again(following, epoch, receipt, said):
    following.tasks.take(following.question())
    following.worker.finish()
    if receipt:
        following.tasks.delivery.received(Receipt(1, "train", "accepted"), following.context.now)
    following.run.welcomed(epoch)
    following.link.epoch = epoch
    following.link.taken()
    following.tasks.deliver_last_again()
    assert following.link.taken() == said
