"""Runs that share one connection of the coordinator end with the same bits as each of them alone."""

from __future__ import annotations

import json
import logging
from collections import Counter
from dataclasses import dataclass, replace

import pytest
import torch

from protofleet.coordinator.context import ProcessContext
from protofleet.coordinator.devices.bans import Bans
from protofleet.coordinator.devices.selection import DeviceSelection
from protofleet.coordinator.here_timer import HERE_SECONDS
from protofleet.coordinator.observe.log_lines import LogLines
from protofleet.coordinator.observe.observers import keep_journal
from protofleet.coordinator.round.machine import RoundMachine
from protofleet.coordinator.run import Run
from protofleet.coordinator.service import CoordinatorService
from protofleet.coordinator.spool.spool import Spool
from protofleet.lab.simulation.federation import Simulation
from protofleet.lab.simulation.network import VirtualWorker
from protofleet.methods.contract.plan import Plan
from protofleet.protocol.link.base import unverified_header
from protofleet.protocol.link.coordinator import CoordinatorLink
from protofleet.protocol.link.coordinator_run import CoordinatorRunLink
from protofleet.protocol.link.device import DeviceLink
from protofleet.protocol.security.keys import Identity
from protofleet.protocol.transport.base import Arrived, packet_bytes
from protofleet.protocol.wire import forms
from protofleet.protocol.wire.messages import Hello, State
from protofleet.protocol.wire.names import COORDINATOR
from protofleet.runtime.logs import FORMAT, JsonFormatter, PrintableFormatter
from tests.support.small_federation import POLICY, plan, shard

RULES = replace(POLICY, quorum=2, cohort=2)
DEVICES = {"red": ("device-0", "device-1"), "blue": ("device-2", "device-3")}
SECONDS = 60.0  # Virtual seconds in which each of these simulations ends.
METHODS = {"red": "fedavg", "blue": "fedproto"}


class OneRunOfSeveral(DeviceLink):
    """The link of a device that takes part in one run, and knows that a `state` belongs to no run."""

    def arrived(self, topic, frame, now):
        run = self.run
        found = super().arrived(topic, frame, now)
        if topic == self.topics.coord_state:
            self.run = run
        return [replace(one, run=run) if isinstance(one.message, State) else one for one in found]

    def send(self, message):
        if isinstance(message, Hello) and not self.run:
            message = replace(message, capacity=1)
        super().send(message)


@dataclass
class SeveralRuns(Simulation):
    """A simulation whose coordinator has several runs, by name; `plan` is not used."""

    plans: dict[str, Plan] | None = None
    stays: bool = False

    def boot_coordinator(self):
        self._stop_worker(COORDINATOR)
        self.boots += 1
        disk = self.make_disk(COORDINATOR)
        spools = {name: Spool(self.folder / name, disk=disk) for name in self.plans}
        for name, made in self.plans.items():
            epoch = spools[name].start_run(name, made.encode().decode(), self.boots)
        take = self._handler(COORDINATOR, lambda: self.service)
        worker = self.workers[COORDINATOR] = VirtualWorker(self.clock, take)
        topics = set(self.topics.coordinator_subscriptions())
        transport = self.broker.connect(COORDINATOR, take, topics)
        transport.before_step = disk.before_step
        me = Identity(COORDINATOR, epoch, self.keys[COORDINATOR])
        link = CoordinatorLink(me, self.keyring, self.topics, transport)
        context = ProcessContext(link, worker, Bans(self.folder / COORDINATOR, disk), self.wall)
        runs = []
        for name, made in self.plans.items():
            part = CoordinatorRunLink(link, name, spools[name].store)
            machine, selection = (
                RoundMachine(self.policy, made.rounds, made.seed),
                DeviceSelection(DEVICES[name]),
            )
            runs.append(Run(made, machine, spools[name], context, part, selection=selection))
        self.service = CoordinatorService(context, runs, self.stays)
        transport.will = link.will(self.topics.coord_state)


def several(folder, names=("red", "blue"), **more):
    plans = {name: plan(METHODS[name], RULES.rounds) for name in names}
    shards = {device: shard(int(device[-1])) for name in names for device in DEVICES[name]}
    return SeveralRuns(plans[names[0]], shards, RULES, folder, plans=plans, **more)


def make_able(patch):
    """Let each device take part in one of several runs."""
    patch.setattr("protofleet.lab.simulation.federation.DeviceLink", OneRunOfSeveral)
    patch.setattr("protofleet.protocol.wire.forms.DEVICE_FORMS", (*forms.DEVICE_FORMS, forms.RUNS))


@pytest.fixture
def able(monkeypatch, alone):
    make_able(monkeypatch)


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """Return the state of the server half of each run that ran alone."""
    with pytest.MonkeyPatch.context() as patch:
        make_able(patch)
        runs = {name: several(tmp_path_factory.mktemp(name), (name,)).run(limit=SECONDS) for name in DEVICES}
    return {name: state(run, name) for name, run in runs.items()}


def state(run, name):
    return run.service.runs[name].server_runner.server.state()


def assert_same_as_alone(run, alone):
    assert not run.service.stopped
    for name in DEVICES:
        assert run.service.runs[name].view.over
        own, other = state(run, name), alone[name]
        assert own.keys() == other.keys()
        for key, value in own.items():
            assert torch.equal(value, other[key]), (name, key)


def test_two_runs_over_one_connection_have_the_bits_of_each_run_alone(tmp_path, able, alone):
    run = several(tmp_path).run(limit=SECONDS)
    for name, devices in DEVICES.items():
        assert run.service.runs[name].machine.roster == set(devices)
    assert_same_as_alone(run, alone)


def test_a_coordinator_that_is_killed_in_each_round_goes_on_with_both_runs(tmp_path, able, alone):
    run = several(tmp_path)
    for number, name in zip(range(1, RULES.rounds + 1), ("red", "blue", "red"), strict=True):
        run.run(
            until=lambda n=number, at=name: (
                (m := run.service.runs[at].machine).round >= n and bool(m.answered)
            ),
            limit=SECONDS,
        )
        run.kill(COORDINATOR)
        run.boot_coordinator()
    assert_same_as_alone(run.run(limit=SECONDS), alone)


def test_the_bytes_of_all_runs_are_the_bytes_of_the_connection(tmp_path, able):
    run, crossed = several(tmp_path), Counter()
    transport = run.service.link.transport
    publish, take = transport.publish, transport.take

    def published(topic, frame, retain=False, qos=1):
        crossed["down"] += packet_bytes(topic, len(frame))
        publish(topic, frame, retain, qos)

    def taken(item):
        if isinstance(item, Arrived) and item.topic != run.topics.coord_state:
            crossed["up"] += packet_bytes(item.topic, len(item.frame))
        take(item)

    transport.publish, transport.take = published, taken
    run.run(limit=SECONDS)
    meters = {name: part.meter for name, part in run.service.link.runs.items()}
    for way in ("up", "down"):
        of_runs = {name: sum(n for (w, _), n in m.wire.items() if w == way) for name, m in meters.items()}
        assert sum(of_runs.values()) == crossed[way] and min(of_runs.values()) > 1_000
    assert not run.service.link.unassigned.meter.wire


@pytest.mark.parametrize("is_queue", [True, False])
def test_each_line_of_a_run_names_the_run_at_a_coordinator_with_a_queue(tmp_path, able, is_queue):
    lines = []

    class Kept(logging.Handler):
        def emit(self, record):
            text = PrintableFormatter(FORMAT).format(record).partition(" INFO ")[2]
            lines.append((json.loads(JsonFormatter().format(record)), text))

    run, log = several(tmp_path), logging.getLogger("protofleet.coordinator")
    run.service.context.isolates_runs = is_queue
    for one in run.service.runs.values():
        keep_journal(one, [LogLines("global", RULES.rounds)])
    log.addHandler(handler := Kept(logging.INFO))
    log.setLevel(logging.INFO)
    try:
        run.run()
    finally:
        log.removeHandler(handler)
        log.setLevel(logging.NOTSET)
    said = Counter(line.get("run") for line, _ in lines if line.get("event") == "round")
    if is_queue:
        assert said == Counter(dict.fromkeys(DEVICES, RULES.rounds + 1))
        assert [
            text for line, text in lines if "run" in line and not text.startswith(f"{line['run']}: ")
        ] == []
        assert [text for line, text in lines if "run" not in line and "round" in text] == []
    else:
        assert said == {None: len(DEVICES) * (RULES.rounds + 1)}


def test_runs_that_are_added_later_use_the_connection_of_a_service_without_runs(tmp_path, able, alone):
    run = several(tmp_path, stays=True)
    red, blue = run.service.runs.values()
    for each in (red, blue):
        run.service.remove(each.name)
    run.run(until=lambda: run.clock.now > HERE_SECONDS + 1.0)
    run.service.add(red)
    run.run(until=lambda: red.machine.round == 2, limit=SECONDS)
    assert not blue.machine.roster
    run.service.add(blue)
    run.run(until=lambda: red.view.over and blue.view.over, limit=SECONDS)
    assert_same_as_alone(run, alone)
    run.run(until=lambda: False, limit=30.0)
    assert not run.service.finished, "it waits for other runs"


@pytest.mark.parametrize("paused", [(), ("gone",)])
def test_a_hello_of_a_run_that_is_not_open_gets_finished_unless_the_run_is_paused(tmp_path, able, paused):
    run, sent = several(tmp_path), []
    run.service.paused = paused
    run.run(until=lambda: bool(run.service.runs["red"].machine.cohort), limit=SECONDS)
    link = run.agents["device-0"].link
    link.run = "gone"
    link.send(Hello("device-0", 5, 5, can=(forms.RUNS,)))
    publish = run.broker.publish
    run.broker.publish = lambda topic, frame, retain: (
        sent.append(unverified_header(frame)),
        publish(topic, frame, retain),
    )
    run.run(limit=0.5)
    assert [h.recipient for h in sent if h and (h.kind, h.run) == ("finished", "gone")] == (
        [] if paused else ["device-0"]
    )


def test_a_new_run_is_offered_to_connected_devices_with_a_free_place(tmp_path, able):
    """The announcement of the run is lost, so a device joins only if the run is offered to it."""
    run = several(tmp_path, stays=True)
    red, blue = run.service.runs.values()
    for each in (red, blue):
        run.service.remove(each.name)
    run.run(until=lambda: False, limit=HERE_SECONDS)
    publish = run.broker.publish
    run.broker.publish = lambda topic, frame, retain: (
        topic == run.topics.coord_state or publish(topic, frame, retain)
    )
    run.service.add(red)
    run.run(until=lambda: red.machine.roster == set(DEVICES["red"]), limit=3.0)
    assert red.machine.roster == set(DEVICES["red"]) and not blue.machine.roster
