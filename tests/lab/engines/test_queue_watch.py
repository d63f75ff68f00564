"""A watch reports each task that an engine has taken from its node, even if the task already runs elsewhere."""

import pytest

from protofleet.lab.engines.engine import TaskState
from protofleet.lab.engines.queue_watch import QueueWatch
from tests.lab.engines.told_engine import ToldEngine


@pytest.mark.parametrize(
    ("later", "bad", "words"),
    [
        (TaskState(0, "waits"), {"n1": "down"}, ["node n1 is lost (down), its 2 trials wait for another"]),
        (
            TaskState(0, "waits"),
            {},
            ["node n1 has given its place to other work, its 2 trials wait for another"],
        ),
        (TaskState(0, "runs", "n2"), {"n1": "dead"}, ["node n1 is lost (dead), its 2 trials run on another"]),
        (TaskState(0, "runs", "n1"), {}, []),
    ],
)
def test_the_watch_reports_each_task_that_has_lost_its_node(later, bad, words):
    said = []
    engine = ToldEngine(told=[[TaskState(0, "runs", "n1")], [later], [later]], bad=bad)
    watch = QueueWatch(engine, "1", said.append, trials_of=lambda task: 2)
    for _ in range(3):
        watch.look()
    assert said == words
