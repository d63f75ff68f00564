"""Runs that share one connection of the coordinator end with the same bits as each of them alone."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from protofleet.coordinator.devices.selection import DeviceSelection
from protofleet.coordinator.here_timer import HERE_SECONDS
from protofleet.methods.contract.catalog import names
from protofleet.protocol.link.base import unverified_header
from protofleet.protocol.transport.base import Arrived, packet_bytes
from protofleet.protocol.wire import forms
from protofleet.protocol.wire.messages import Hello
from protofleet.protocol.wire.names import COORDINATOR
from tests.support.few_methods import SHAPES, few_steps, of_each_shape
from tests.support.several_runs import SECONDS, assert_learned_the_same, several_runs
from tests.support.small_federation import POLICY, plan

RULES = replace(POLICY, quorum=2, cohort=2)
DEVICES = {"red": ("device-0", "device-1"), "blue": ("device-2", "device-3")}
METHODS = {"red": "fedavg", "blue": "fedproto"}
OF_ALL = replace(POLICY, rounds=2)  # The policy of runs that take all devices.


def several(folder, names=("red", "blue"), stays=False):
    """Return a simulation of these runs, of which each has two devices."""
    plans = {name: plan(METHODS[name], RULES.rounds) for name in names}
    selections = {name: DeviceSelection(DEVICES[name]) for name in names}
    return several_runs(folder, plans, RULES, devices=4, selections=selections, stays=stays)


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


@pytest.mark.parametrize("method", of_each_shape(names()))
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


def test_a_coordinator_that_is_killed_in_each_round_goes_on_with_both_runs(tmp_path, alone):
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


def test_the_bytes_of_all_runs_are_the_bytes_of_the_connection(tmp_path):
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


def test_runs_that_are_added_later_use_the_connection_of_a_service_without_runs(tmp_path, alone):
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


def test_a_device_whose_welcome_was_lost_gets_another_one(tmp_path):
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
