"""The whole coordinator with real agents in a simulated federation admits the right devices and survives faults."""

import re
from dataclasses import replace

import pytest

from protofleet.coordinator.round.events import Close, Drop
from protofleet.coordinator.spool.answer_log import DeviceAnswers
from protofleet.coordinator.spool.spool import FencedError
from protofleet.lab.simulation.network import NetworkConditions
from protofleet.protocol.transport.base import Arrived
from protofleet.protocol.wire.messages import Hello, Receipt
from protofleet.protocol.wire.reasons import Reason, Rejected
from tests.support.small_federation import POLICY, assert_same, part, shard, simulation

PATIENT = replace(POLICY, rounds=2, quorum=2, patience_seconds=30.0, grace_seconds=3.0, settle_seconds=1.0)


def test_a_device_with_another_number_of_classes_is_refused_and_the_others_continue(tmp_path):
    run = simulation(tmp_path, "fedavg", policy=PATIENT, shards={"device-2": replace(shard(2), classes=7)})
    run.run()
    assert run.service.finished
    assert "7 classes, this run has 3" in run.agents["device-2"].view.problem
    assert set(run.service.run.participants.members) == {"device-0", "device-1"}


def test_a_device_that_joins_late_takes_part_from_the_next_round(tmp_path):
    run = simulation(tmp_path, "fedavg", policy=replace(PATIENT, rounds=4))
    run.kill("device-2")
    run.clock.call_at(4.0, lambda: run.boot_device("device-2"))
    run.run()
    assert run.service.finished and run.agents["device-2"].state.saved.answers


def test_a_device_that_never_returns_does_not_delay_the_run_for_long(tmp_path):
    run = simulation(tmp_path, "fedavg", policy=replace(PATIENT, patience_seconds=10_000.0))
    run.clock.call_at(1.6, lambda: run.kill("device-1"))
    run.run()
    assert run.service.finished and run.clock.now < 30


class Commands:
    """An observer that keeps all commands."""

    def __init__(self):
        self.seen = []

    def happened(self, service, event, commands, now):
        self.seen += commands

    def answered(self, service, update, now):
        pass

    def stepped(self, service, step, now):
        pass


def test_a_round_ends_without_a_frozen_device_at_the_deadline_and_its_answer_is_late(tmp_path):
    watcher = Commands()
    policy = replace(PATIENT, patience_seconds=10.0)
    run = simulation(tmp_path, "fedavg", policy=policy, observers=[watcher])
    run.clock.run(lambda: len(run.service.run.machine.roster) == 3)
    # Its late answer comes while round 2 is open. From then on the device is not silent, and rounds wait for it.
    run.workers["device-1"].seconds = 10.5
    run.run()
    assert run.service.finished and run.clock.now >= 20
    closed = {c.round: c.devices for c in watcher.seen if isinstance(c, Close) and c.phase == "train"}
    assert closed == {1: ("device-0", "device-2"), 2: ("device-0", "device-2")}
    late = [(c.device, c.round) for c in watcher.seen if isinstance(c, Drop) and c.verdict == "late"]
    assert late == [("device-1", 1), ("device-1", 2)]


def test_an_answer_that_is_too_large_is_refused_before_it_is_fetched(tmp_path, caplog):
    import torch

    def build(device, plan, data):
        half = plan.client_half(data.train, device)
        if device == "device-0":
            honest = half.run
            half.run = lambda ask: {**honest(ask), "weights.more": torch.zeros(1 << 20)}
        return half

    run = simulation(tmp_path, "fedavg", policy=PATIENT, build=build).run()
    assert run.service.finished
    refused = re.findall(
        r"round (\d) train: the update is refused: (\d+) bytes, at most \d+ were asked", caplog.text
    )
    assert [number for number, size in refused if int(size) > 4 << 20] == ["1", "2"]
    assert run.service.run.link.meter.frames["up"] < 1 << 20


def test_a_device_that_cannot_follow_the_plan_reports_the_reason_and_leaves(tmp_path):
    run = simulation(tmp_path, "fedavg", policy=PATIENT)
    run.service.run.plan.__class__.encode, honest = (
        (lambda self: b'{"method": "fedmagic"}'),
        run.service.run.plan.__class__.encode,
    )
    try:
        run.clock.run(lambda: all(a.finished for a in run.agents.values()), 100)
    finally:
        run.service.run.plan.__class__.encode = honest
    assert "cannot follow the run's plan" in run.agents["device-0"].view.problem


@pytest.mark.parametrize("moment", ["put_bytes", "begin"])
def test_a_run_survives_a_full_disk_and_ends_with_the_same_bits(tmp_path, monkeypatch, moment):
    quiet = simulation(tmp_path / "quiet", "fedavg").run()
    full = simulation(tmp_path / "full", "fedavg", NetworkConditions())
    honest, calls = getattr(DeviceAnswers, moment), []

    def no_room(self, *arguments):
        if "updates" in str(self.folder) and len(calls) < 5:
            calls.append(1)
            raise Rejected(Reason.NO_ROOM, "the disk is full: No space left on device")
        return honest(self, *arguments)

    monkeypatch.setattr(DeviceAnswers, moment, no_room)
    if moment == "begin":
        monkeypatch.setattr("protofleet.protocol.link.run_part.INLINE", 64)
        for agent in full.agents.values():
            agent.link.inline = 64
            agent.link.adapt = lambda *limits: None
    full.run()
    assert full.service.finished and len(calls) == 5
    assert_same(quiet, full)


def test_samples_without_validation_data_are_accepted(tmp_path):
    shards = {f"device-{i}": replace(shard(i), validation=part(0, 1, 0.0)) for i in range(3)}
    run = simulation(tmp_path, "fedavg", policy=PATIENT, shards=shards)
    assert run.run().service.finished


def test_a_frozen_coordinator_that_was_replaced_answers_no_hello(tmp_path):
    """The waiting messages arrive at once when it continues, before the broker reports that it was replaced."""
    run = simulation(tmp_path, "fedavg")
    run.run(until=lambda: len(run.service.run.participants.members) == 3)
    old = run.service
    run.kill("coordinator")
    run.boot_coordinator()
    hellos = []
    link = run.agents["device-0"].link
    link.transport.publish = lambda topic, frame, *how: hellos.append(Arrived(topic, frame))
    link.send(Hello("device-0", 3, 5))
    with pytest.raises(FencedError, match="another coordinator, of epoch 2, has taken over"):
        old.take(hellos[0], run.clock.now)


def test_an_answer_is_on_the_disk_before_its_receipt_is_sent(tmp_path):
    run = simulation(tmp_path, "fedavg")
    send, early = run.service.run.link.send, []

    def sending(device, message):
        match message:
            case Receipt(round, phase, "accepted") if device not in run.service.run.spool.answers(
                round, phase
            ):
                early.append((device, message))
        send(device, message)

    run.service.run.link.send = sending
    run.run()
    assert run.service.finished and not early
