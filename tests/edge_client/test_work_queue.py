"""The queue runs one piece of work at a time, and keeps the newest task to do it next."""

import pytest

from protofleet.edge_client.work_queue import Question, WorkQueue, question_of
from protofleet.protocol.link.base import Received
from protofleet.protocol.wire.messages import Task


def question(name, round=1, phase="train"):
    return Question(name, round, phase, b"", 1)


def received(**changed):
    fields = {"sender": "coordinator", "run": "spring", "epoch": 1, "object": b"\x01"} | changed
    task = fields.pop("task", Task(1, "train", None, 0.0))
    return Received(message=task, **fields), task


@pytest.mark.parametrize(
    "changed",
    [
        {"run": "autumn"}, {"object": b"\x02"}, {"task": Task(2, "train", None, 0.0)},
        {"task": Task(1, "evaluate", None, 0.0)},
    ],
)  # fmt: skip
def test_tasks_differ_by_run_round_phase_and_broadcast(changed):
    assert question_of(*received()).name != question_of(*received(**changed)).name


def test_the_same_task_of_a_later_epoch_has_the_same_name():
    assert question_of(*received()).name == question_of(*received(epoch=2)).name


def test_a_queue_knows_its_current_and_its_next_task():
    queue = WorkQueue()
    queue.begin(question("a", 1))
    queue.next = question("b", 2)
    assert queue.busy and queue.busy_with_another(question("b", 2))
    assert not queue.busy_with_another(question("a", 1))
    assert [queue.knows((round, "train")) for round in (1, 2, 3)] == [True, True, False]


def test_a_finished_task_is_forgotten_and_the_next_task_is_taken_once():
    queue = WorkQueue()
    queue.begin(question("a", 1))
    queue.next = question("b", 2)
    queue.done()
    assert not queue.busy and not queue.knows((1, "train"))
    assert queue.take_next() == question("b", 2) and queue.take_next() is None


def test_a_queue_that_begins_a_plan_is_busy_with_another_task():
    queue = WorkQueue()
    queue.begin_plan()
    assert queue.busy_with_another(question("a"))


def test_a_change_of_run_drops_the_next_task_and_the_queue_stays_busy():
    queue = WorkQueue()
    queue.begin(question("a", 1))
    queue.next = question("b", 2)
    queue.change_run()
    assert queue.busy and queue.next is None and not queue.knows((1, "train"))
