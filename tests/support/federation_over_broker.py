"""A coordinator and devices as threads of one process, connected to a real broker."""

import queue
import threading
import time
from contextlib import contextmanager

from protofleet.coordinator.context import ProcessContext
from protofleet.coordinator.devices.bans import Bans
from protofleet.coordinator.round.events import Accept
from protofleet.coordinator.round.machine import RoundMachine
from protofleet.coordinator.run import Run
from protofleet.coordinator.service import CoordinatorService
from protofleet.coordinator.spool.spool import Spool
from protofleet.edge_client.agent import Agent
from protofleet.edge_client.agent_parts import AgentOptions, DeviceData, agent_parts
from protofleet.edge_client.state.device import DeviceState
from protofleet.edge_client.trainer.job import local_jobs
from protofleet.protocol.link.coordinator import CoordinatorLink
from protofleet.protocol.link.coordinator_run import CoordinatorRunLink
from protofleet.protocol.link.device import DeviceLink
from protofleet.protocol.security.keys import Identity, Keys
from protofleet.protocol.transport.mqtt import Mqtt
from protofleet.protocol.wire.names import COORDINATOR
from protofleet.protocol.wire.topics import Topics
from protofleet.runtime.event_loop import ThreadWorker, serve
from tests.support.few_methods import FEW_STEPS
from tests.support.small_federation import POLICY, plan, shard

DEVICES = [f"device-{i}" for i in range(3)]


class Federation:
    """A coordinator and devices as threads of this process; each has a separate connection to the broker."""

    coordinators_inbox = devices_inbox = queue.SimpleQueue
    session_seconds = 60
    clock = staticmethod(time.monotonic)
    policy = POLICY
    seconds = 60  # Seconds that each party has until its thread must end.
    names = DEVICES

    def __init__(self, folder, address, federation, method):
        self.folder, self.address, self.topics = folder, address, Topics(federation)
        self.plan = self.make_plan(method)
        self.keys = {n: Keys.new() for n in (COORDINATOR, *self.names)}
        self.keyring = {n: k.public for n, k in self.keys.items()}
        self.agents, self.inboxes, self.threads = {}, {}, []

    def make_plan(self, method):
        return plan(method, **FEW_STEPS)

    def shard_of(self, i):
        return shard(i)

    def keyring_of(self, name):
        """Return the keys that a party knows."""
        return self.keyring

    def coordinator(self):
        inbox = self.coordinators_inbox()
        spool = Spool(self.folder / "coordinator", durable=False)
        epoch = spool.start_run("test", self.plan.encode().decode(), 1)

        me = Identity(COORDINATOR, epoch, self.keys[COORDINATOR])
        topics = self.topics.coordinator_subscriptions()
        transport = Mqtt(f"{self.topics.federation}-c", self.at(COORDINATOR), inbox, subscriptions=topics)
        link = CoordinatorLink(me, self.keyring_of(COORDINATOR), self.topics, transport)
        context = ProcessContext(link, ThreadWorker(inbox), Bans(spool.folder, spool.disk))
        machine = RoundMachine(self.policy, self.plan.rounds, self.plan.seed)
        run = Run(self.plan, machine, spool, context, CoordinatorRunLink(link, "test", spool.store))
        self.service = CoordinatorService(context, [run])
        transport.connect(link.will(self.topics.coord_state))
        return self.service, inbox

    def device(self, name, i):
        inbox = self.devices_inbox()
        state = DeviceState(self.folder / name, durable=False)
        me = Identity(name, state.boot(0), self.keys[name])
        transport = Mqtt(
            f"{self.topics.federation}-{name}", self.at(name), inbox, clean_start=False,
            subscriptions=self.topics.device_subscriptions(name), session_seconds=self.session_seconds,
        )  # fmt: skip
        link = DeviceLink(me, self.keyring_of(name), self.topics, transport, state.store)
        transport.connect(link.will(self.topics.device_state(name)))
        data = self.shard_of(i)
        start_job = local_jobs(lambda p: p.client_half(data.train, name, validation=data.validation), data)
        options = AgentOptions(clock=lambda: 0.0)
        agent = Agent(*agent_parts(DeviceData(data, start_job), link, state, ThreadWorker(inbox), options))
        self.agents[name], self.inboxes[name] = agent, inbox
        return agent, inbox

    def at(self, name):
        """Return the address at which this party connects to the broker."""
        return self.address

    def start(self, party, inbox):
        thread = threading.Thread(target=serve, args=(party, inbox, self.clock), daemon=True)
        thread.start()
        self.threads.append(thread)

    def run(self):
        self.start(*self.coordinator())
        self.wait_until_the_coordinator_listens()
        for i, name in enumerate(self.names):
            self.start(*self.device(name, i))
        for thread in self.threads:
            thread.join(self.seconds)
            assert not thread.is_alive(), "the federation did not end"
        return self

    def wait_until_the_coordinator_listens(self, seconds=30.0):
        """Wait until the coordinator receives its own messages.

        The coordinator does not receive what devices publish before that, so the meters of the two ends would
        differ.
        """
        deadline = time.monotonic() + seconds
        while not self.service.link.hears_own_messages:
            assert time.monotonic() < deadline, "the coordinator does not receive its own birth"
            time.sleep(0.01)

    def close(self):
        for party in (self.service, *self.agents.values()):
            party.link.transport.close()


class AtAnswer:
    """An observer that does something once, as soon as an answer to this round is accepted."""

    def __init__(self, round, do):
        self.round, self.do, self.done = round, do, threading.Event()

    def happened(self, run, event, commands, now):
        if not self.done.is_set() and any(isinstance(c, Accept) and c.round == self.round for c in commands):
            self.do()
            self.done.set()

    def answered(self, run, update, now):
        """Ignore the answer; `happened` acts when the answer is accepted."""

    stepped = answered


@contextmanager
def running(folder, address, federation, method):
    made = Federation(folder, address, federation, method)
    try:
        yield made.run()
    finally:
        made.close()
