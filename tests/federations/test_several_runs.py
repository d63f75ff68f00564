"""Runs that share one connection of the coordinator end with the same bits as each of them alone."""

from __future__ import annotations

import json
import logging
from collections import Counter
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from protofleet.coordinator.devices.labels import DeviceLabels
from protofleet.coordinator.devices.selection import DeviceSelection
from protofleet.coordinator.here_timer import HERE_SECONDS
from protofleet.coordinator.observe.log_lines import LogLines
from protofleet.coordinator.observe.observers import keep_journal
from protofleet.coordinator.round.events import Deselected
from protofleet.edge_client.conversation.coordinator_watchdog import SILENT_SECONDS
from protofleet.edge_client.conversation.hello_timer import SPREAD_SECONDS
from protofleet.methods.contract.catalog import names
from protofleet.protocol.link.base import unverified_header
from protofleet.protocol.transport.base import Arrived, packet_bytes
from protofleet.protocol.wire import forms
from protofleet.protocol.wire.messages import Hello
from protofleet.protocol.wire.names import COORDINATOR
from protofleet.runtime.logs import FORMAT, JsonFormatter, PrintableFormatter
from tests.support.few_methods import SHAPES, few_steps, of_each_shape, with_own_arrays
from tests.support.several_runs import SECONDS, assert_learned_the_same, several_runs
from tests.support.small_federation import POLICY, plan

RULES = replace(POLICY, quorum=2, cohort=2)
DEVICES = {"red": ("device-0", "device-1"), "blue": ("device-2", "device-3")}
METHODS = {"red": "fedavg", "blue": "fedproto"}
OF_ALL = replace(POLICY, rounds=2)  # The policy of runs that take all devices.


def several(folder, names=("red", "blue"), stays=False, **more):
    """Return a simulation of these runs, of which each has two devices."""
    plans = {name: plan(METHODS[name], RULES.rounds) for name in names}
    selections = {name: DeviceSelection(DEVICES[name]) for name in names}
    return several_runs(folder, plans, RULES, devices=4, selections=selections, stays=stays, **more)


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """Return all that each run learns alone."""
    return {
        name: several(tmp_path_factory.mktemp(name), (name,)).to_the_end().learned(name) for name in DEVICES
    }


def assert_same_as_alone(run, alone):
    assert not run.service.stopped
    for name in DEVICES:
        assert run.service.runs[name].view.over
        assert_learned_the_same(run.learned(name), alone[name])


def with_own_seed(method):
    return replace(few_steps(method).plan(OF_ALL.rounds), seed=1 + names().index(method))


@lru_cache
def learned_alone(method):
    """Return all that a run of this method learns with a coordinator and devices of one run."""
    with TemporaryDirectory() as folder:
        made = {"red": with_own_seed(method)}
        return several_runs(Path(folder), made, OF_ALL, runs=1, stays=False).to_the_end().learned("red")


@pytest.mark.parametrize("method", of_each_shape(with_own_arrays(names())))
def test_two_runs_on_the_same_devices_have_the_bits_of_each_run_alone(method, tmp_path):
    """The other run has a method of another shape."""
    other = SHAPES[(SHAPES.index(method) + 1) % len(SHAPES)] if method in SHAPES else SHAPES[0]
    methods = {"red": method, "blue": other}
    plans = {name: with_own_seed(one) for name, one in methods.items()}
    run = several_runs(tmp_path, plans, OF_ALL).to_the_end()
    for name, one in methods.items():
        assert_learned_the_same(run.learned(name), learned_alone(one))


def test_two_runs_over_one_connection_have_the_bits_of_each_run_alone(tmp_path, alone):
    run = several(tmp_path).run(limit=SECONDS)
    for name, devices in DEVICES.items():
        assert run.service.runs[name].machine.roster == set(devices)
    assert_same_as_alone(run, alone)


def test_a_coordinator_that_is_killed_in_each_round_continues_both_runs(tmp_path, alone):
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


def test_the_bytes_of_all_runs_add_up_to_the_bytes_of_the_connection(tmp_path):
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


def test_runs_can_be_added_to_a_service_without_runs(tmp_path, alone):
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
    assert not run.service.finished, "the service waits for other runs"


@pytest.mark.parametrize("paused", [(), ("gone",)])
def test_a_hello_of_a_run_that_is_not_open_gets_finished_unless_the_run_is_paused(tmp_path, paused):
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


def test_a_device_gets_another_welcome_if_the_first_was_lost(tmp_path):
    run = several_runs(tmp_path, {name: with_own_seed("fedavg") for name in ("red", "blue")}, OF_ALL)
    publish, lost = run.broker.publish, []

    def published(topic, frame, retain):
        header = unverified_header(frame)
        if header and (header.kind, header.recipient) == ("welcome", "device-0") and header.run not in lost:
            lost.append(header.run)
        else:
            publish(topic, frame, retain)

    run.broker.publish = published
    run.to_the_end()
    assert sorted(lost) == ["blue", "red"]


@pytest.mark.parametrize("is_queue", [True, False])
def test_each_log_line_of_a_run_names_the_run_if_the_coordinator_has_a_queue(tmp_path, is_queue):
    lines = []

    class Kept(logging.Handler):
        def emit(self, record):
            text = PrintableFormatter(FORMAT).format(record).partition(" INFO ")[2]
            lines.append((json.loads(JsonFormatter().format(record)), text))

    run, log = several(tmp_path), logging.getLogger("protofleet.coordinator")
    run.service.context.isolates_runs = is_queue
    for one in run.service.runs.values():
        keep_journal(one, [LogLines("global", lambda: RULES.rounds)])
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


def test_a_new_run_is_offered_to_connected_devices_with_a_free_slot(tmp_path):
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


def test_state_messages_name_the_oldest_run_that_selects_devices_of_one_run(tmp_path, alone):
    run, chosen = several(tmp_path, one_run=DEVICES["blue"]), []

    def choose(name):
        chosen.append(name)
        run.service.lead(name)
        return True

    run.service.choose_legacy = choose
    assert run.service.link.run == "red"
    assert_same_as_alone(run.run(limit=SECONDS), alone)
    assert chosen == ["blue"] and not run.service.link.legacy.meter.rejected


class Events:
    """An observer that keeps the events of a run's machine."""

    def __init__(self):
        self.events = []

    def happened(self, run, event, commands, now):
        self.events.append(event)

    def answered(self, run, update, now):
        """Do nothing, as these tests do not look at answers."""

    def stepped(self, run, step, now):
        """Do nothing, as these tests do not look at steps."""


def test_a_device_leaves_and_rejoins_a_run_as_its_label_changes(
    tmp_path,
):
    hall, rules = DeviceLabels("hall"), replace(RULES, quorum=1, cohort=0, rounds=20)
    select = {"red": DeviceSelection(groups=("hall",))}
    run = several_runs(tmp_path, {"red": plan("fedavg", 20)}, rules, selections=select)
    red, cohorts = run.service.runs["red"], {}

    def assign(*devices):
        run.service.context.labels.clear()
        run.service.context.labels.update(dict.fromkeys(devices, hall))
        run.service.selection_changed()

    def until(round):
        def is_there():
            cohorts.setdefault(red.machine.round, set()).update(red.machine.cohort)
            return red.machine.round >= round and bool(red.machine.waited_for)

        run.run(until=is_there, limit=SECONDS)

    assign("device-0", "device-1")
    until(2)
    assert red.enrolled_devices() == {"device-0", "device-1"}
    asked = Events()
    red.observers.append(asked)
    assign("device-0")
    assert "device-1" in red.machine.roster, "the device is in the open round"
    assert asked.events == [Deselected("device-1")], "a repetition of the round does not ask it"
    until(3)
    assert cohorts[2] == {"device-0", "device-1"} and cohorts[3] == red.machine.roster == {"device-0"}
    assign("device-0", "device-1", "device-2")
    began = run.clock.now
    run.run(until=lambda: len(red.machine.cohort) == 3, limit=SECONDS)
    assert run.clock.now < began + SPREAD_SECONDS + 3.0, (
        "the next rounds do not wait for a device's own hello"
    )
    rejected = red.link.meter.rejected + run.service.link.unassigned.meter.rejected
    assert not rejected and not run.service.context.bans.ignored


def test_a_device_that_a_run_does_not_select_is_refused_without_a_rejection(tmp_path):
    select = {"red": DeviceSelection(DEVICES["red"])}
    made = {"red": plan("fedavg", RULES.rounds)}
    run = several_runs(tmp_path, made, RULES, runs=1, selections=select, stays=False).run(limit=SECONDS)
    red = run.service.runs["red"]
    assert red.view.over and red.view.members.keys() == set(DEVICES["red"]) == red.enrolled_devices()
    assert (
        "the run does not select device-2: its name is left out (select.names"
        in run.agents["device-2"].view.problem
    )
    assert not red.link.meter.rejected and not run.service.context.bans.ignored


def test_a_coordinator_without_a_run_still_sends_messages_to_devices(tmp_path):
    run = several(tmp_path, stays=True)
    for each in list(run.service.runs.values()):
        run.service.remove(each.name)
    run.run(until=lambda: run.clock.now > 2 * SILENT_SECONDS, limit=SECONDS)
    assert not any(agent.view.coordinator_silent for agent in run.agents.values())
