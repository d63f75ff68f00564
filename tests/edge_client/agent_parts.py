"""Build the parts of an agent around a link that keeps its messages and a worker that the test drives."""

from __future__ import annotations

from pathlib import Path

from protofleet.edge_client.context import DeviceContext
from protofleet.edge_client.conversation.answer_delivery import AnswerDelivery
from protofleet.edge_client.conversation.hello import HelloSender
from protofleet.edge_client.conversation.hello_exchange import HelloExchange
from protofleet.edge_client.current_run import CurrentRun
from protofleet.edge_client.job_runner import JobRunner
from protofleet.edge_client.state.device import DeviceState
from protofleet.edge_client.state.heard import open_heard_file
from protofleet.edge_client.task_handler import TaskHandler
from protofleet.edge_client.work_queue import question_of
from protofleet.lab.simulation.network import SimulatedBroker, VirtualClock
from protofleet.protocol.link.base import Received
from protofleet.protocol.link.device import DeviceLink
from protofleet.protocol.security.keys import Identity, Keys
from protofleet.protocol.wire.messages import Task, Welcome
from protofleet.protocol.wire.names import COORDINATOR
from protofleet.protocol.wire.topics import Topics
from tests.support.small_federation import plan, shard

RUN, EPOCH, BOOT = "spring", 7, 3
PLAN = plan("fedavg")


class RecordingLink(DeviceLink):
    """A link that keeps its messages and does not send them."""

    def publish(self, topic, message, *more, **others):
        self.__dict__.setdefault("said", []).append(message)

    def send_update(self, update, name):
        self.publish("", update)

    def taken(self):
        """Return the type names of the messages that were sent since the last call."""
        said, self.said = self.__dict__.get("said", []), []
        return [type(message).__name__ for message in said]


class ManualWorker:
    """A worker that keeps each piece of work until the test calls `finish`."""

    def __init__(self):
        self.submitted = []

    def submit(self, work, then):
        self.submitted.append((work, then))

    def finish(self, result=None):
        """Do the oldest piece of work and pass on its result, or pass on `result` without doing the work."""
        work, then = self.submitted.pop(0)
        then(work() if result is None else result)


class FixedJob:
    """A job that returns no arrays and no metrics for each task."""

    def run(self, phase, number, received):
        return {}, {}

    def state(self):
        return {}

    def restore(self, state):
        pass


class Observed(list):
    def happened(self, what, **figures):
        self.append(what)


class AgentParts:
    def __init__(self, folder: Path, name: str = "device-0"):
        keys = {who: Keys.new() for who in (COORDINATOR, name)}
        ring = {who: each.public for who, each in keys.items()}
        transport = SimulatedBroker(VirtualClock()).connect(name, lambda item: None, set())
        self.state = DeviceState(folder, durable=False)
        me = Identity(name, BOOT, keys[name])
        self.link = RecordingLink(me, ring, Topics("test"), transport, self.state.store)
        self.worker, self.observed = ManualWorker(), Observed()
        self.context = DeviceContext(
            self.link, self.state, self.worker, open_heard_file(self.state, self.link), [self.observed]
        )
        self.link.run, self.link.epoch = RUN, EPOCH
        self.run, data = CurrentRun(RUN), shard(0)
        self.hellos = HelloExchange(self.context, self.run, HelloSender(self.link, data, self.state, ""))
        runner = JobRunner(lambda plan: FixedJob(), self.state, data, lambda: 1024, lambda: 0.0)
        self.tasks = TaskHandler(self.context, self.run, runner, self.hellos, AnswerDelivery(self.link))

    def welcome(self, made=PLAN, **about):
        return Welcome(made.encode(), **about)

    def follow(self):
        """Give the plan to the agent, let it make its job, and drop the messages that it sent for this."""
        self.tasks.welcomed(self.welcome(), EPOCH)
        self.worker.finish()
        self.link.taken()

    def question(self, round=1, phase="train"):
        task = Task(round, phase, None, 0.0)
        return question_of(Received(COORDINATOR, task, self.run.name, EPOCH), task)
