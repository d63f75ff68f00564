"""Buffered rounds in whole federations: real devices of which one is slow, in virtual time."""

import hashlib
import json
from dataclasses import replace

import pytest
import torch

from protofleet.coordinator.buffered import demand_buffered_fit
from protofleet.coordinator.observe.observers import keep_journal
from protofleet.coordinator.observe.rounds_file import RoundsFile
from protofleet.coordinator.round.events import Close, Stage
from protofleet.coordinator.server.stepper import Stepper
from protofleet.methods.contract.catalog import load, names
from protofleet.methods.contract.plan import Network, Plan
from protofleet.protocol.settings.reader import SettingsError
from tests.support.few_methods import few, few_steps
from tests.support.run_policy import RunPolicy
from tests.support.small_federation import assert_same, in_blocks, replace_coordinator, shard, simulation

SLOW = "device-3"
POLICY = RunPolicy(
    rounds=9, quorum=1, gather=4, patience_seconds=60.0, settle_seconds=0.5, straggler_factor=0.0,
    mode="buffered", buffer=2,
)  # fmt: skip


def federation(folder, method="fedavg", policy=POLICY, seconds=4.5, **more):
    """Return a run of four devices; the work of the last one takes `seconds`, that of the others takes 1 s."""
    hyper = {"epochs": 1, **more.pop("hyper", {})}
    run = simulation(folder, method, policy=policy, shards={SLOW: shard(3)}, hyper=hyper, **more)
    file = RoundsFile(folder / "rounds.jsonl")
    keep_journal(run.service.run, [file])
    run.workers[SLOW].seconds = seconds
    return run, file


def training(file):
    return [line for line in file.records if line["kind"] == "training"]


def rounds_of(device, file):
    return {
        line["round"]: line["staleness"].get(device, 0)
        for line in training(file)
        if device in line["participants"]
    }


class Weights:
    """An observer of the weights that the server half gets."""

    def __init__(self, monkeypatch):
        self.seen = []
        real = Stepper.reply

        def reply(stepper, answer):
            found = real(stepper, answer)
            self.seen.append((answer.staleness, found.weight))
            return found

        monkeypatch.setattr(Stepper, "reply", reply)


@pytest.mark.parametrize("blocks", [False, True])
def test_a_slow_device_delays_no_round_and_its_late_updates_are_used(tmp_path, monkeypatch, blocks):
    run, file = federation(tmp_path)
    if blocks:
        in_blocks(run, monkeypatch)
    run.run()
    assert run.service.finished
    lines, slow = training(file), rounds_of(SLOW, file)
    assert len(lines) == POLICY.rounds and slow and all(age > 0 for age in slow.values())
    assert all(len(line["participants"]) == POLICY.buffer for line in lines)
    assert not any(line["late"] for line in lines[:-1])
    answered = {name: line["phases"][0]["answered"] for line in lines for name in line["staleness"]}
    assert all(name in devices for name, devices in answered.items())
    assert not any(SLOW in line["phases"][0]["asked"] for line in lines[1:3])


def test_each_update_is_used_once_and_each_device_has_one_update_in_a_round(tmp_path):
    run, file = federation(tmp_path)
    run.run()
    counted = [
        (device, line["round"] - line["staleness"].get(device, 0))
        for line in training(file)
        for device in line["participants"]
    ]
    assert len(counted) == len(set(counted))


def test_a_run_without_late_updates_has_the_bits_of_a_synchronous_run(tmp_path):
    everybody = replace(POLICY, buffer=4, rounds=3)
    synchronous = replace(everybody, mode="synchronous", buffer=0)
    one, _ = federation(tmp_path / "a", policy=everybody)
    other, _ = federation(tmp_path / "b", policy=synchronous)
    assert_same(one.run(), other.run())


def test_a_round_uses_its_accepted_late_updates_after_a_restart_of_the_coordinator(tmp_path):
    """Both coordinators count the same updates, also those that were late, so the new model has the same bits."""
    states = []
    for dies in (False, True):
        run, file = federation(tmp_path / str(dies))
        machine = run.service.run.machine
        run.run(until=lambda: bool(machine.verdicts.late) and machine.stage is Stage.COMPUTING)
        number, accepted = machine.round, run.service.run.spool.answers(machine.round, "train")
        assert any(answer.staleness for answer in accepted.values())
        if dies:
            replace_coordinator(run, file)
        run.run(until=lambda: run.service.run.machine.round > number)
        assert run.service.run.spool.newest_round > number - 1
        states.append(run.service.run.server_runner.server.state())
    one, other = states
    assert all(torch.equal(value, other[name]) for name, value in one.items())


@pytest.mark.parametrize("after", few([1, 2, 3, 4, 5], 2))
def test_updates_for_tasks_of_a_dead_coordinator_are_used(tmp_path, after):
    run, file = federation(tmp_path)
    run.run(until=lambda: run.service.run.machine.round > after)
    replace_coordinator(run, file)
    run.run()
    assert run.service.finished and rounds_of(SLOW, file)
    assert not any(line["late"] for line in training(file)[:-1])


def test_a_device_whose_broadcast_is_no_longer_served_gets_the_open_task(tmp_path, monkeypatch):
    """The blocks of the device's task are lost. The device requests them again after the round has ended."""
    run, file = federation(tmp_path, seconds=1.0)
    in_blocks(run, monkeypatch)
    agent, lost = run.agents[SLOW], []
    arrived = agent.link.arrived

    def lossy(topic, frame, now):
        if "bcast" in topic and now < 4.0:
            lost.append(topic)
            return []
        return arrived(topic, frame, now)

    agent.link.arrived = lossy
    run.run()
    assert lost and run.service.finished and rounds_of(SLOW, file)


def test_a_late_update_has_a_smaller_weight(tmp_path, monkeypatch):
    weights = Weights(monkeypatch)
    federation(tmp_path)[0].run()
    late = {(age, weight) for age, weight in weights.seen if age}
    assert late and all(weight == pytest.approx((1 + age) ** -0.5) for age, weight in late)
    assert {weight for age, weight in weights.seen if not age} == {1.0}


def test_an_update_that_names_a_false_round_is_used_once_with_its_true_age(tmp_path, monkeypatch):
    """The device sends each update late, and also for an earlier and for a later round."""
    run, file = federation(tmp_path, seconds=1.0, policy=replace(POLICY, buffer=3))
    link = run.agents[SLOW].link
    send = link.send_update

    def late(update, name):
        rounds = (update.round, update.round + 1, max(1, update.round - 1))
        claims = [replace(update, round=number) for number in rounds] if update.phase == "train" else [update]
        wait = 2.5 if update.phase == "train" else 0.0
        run.clock.call_at(run.clock.now + wait, lambda: [send(claim, name) for claim in claims])

    monkeypatch.setattr(link, "send_update", late)
    run.run()
    counted = rounds_of(SLOW, file)
    tasks = [number - age for number, age in counted.items()]
    assert run.service.finished and len(counted) > 1
    assert len(tasks) == len(set(tasks)) and all(counted.values())
    assert all(line["participants"].count(SLOW) <= 1 for line in training(file))


@pytest.mark.parametrize("method", names())
def test_each_method_supports_buffered_rounds_or_refuses_them_with_the_reason(method, tmp_path):
    plan = few_steps(method).plan(3)
    if load(method).buffered:
        demand_buffered_fit(POLICY, plan)
        return
    with pytest.raises(SettingsError, match=rf"{method} does not declare Method\(buffered=True\)"):
        demand_buffered_fit(POLICY, plan)


@pytest.mark.parametrize(
    "method",
    [
        name if name in ("fedproto", "fedadam") else pytest.param(name, marks=pytest.mark.slow)
        for name in names()
        if load(name).buffered
    ],
)
def test_each_method_that_supports_buffered_rounds_ends_with_late_updates(method, tmp_path):
    run, file = federation(tmp_path, method, policy=replace(POLICY, rounds=6), seconds=2.5)
    run.run()
    assert run.service.finished and not run.service.run.diverged and rounds_of(SLOW, file)


def test_buffered_rounds_refuse_a_lossy_codec_and_name_the_fix():
    plan = Plan("fedavg", 3, 2, network=Network("mlp")).with_codec("small")
    with pytest.raises(SettingsError, match='codec = "lossless"'):
        demand_buffered_fit(POLICY, plan)
    demand_buffered_fit(POLICY, Plan("fedavg", 3, 2, network=Network("mlp")).with_codec("lossless"))


def test_late_lossless_updates_are_decoded_with_the_broadcast_of_their_task(tmp_path, monkeypatch):
    """The server half gets the same update that the device has computed, also if it is late."""
    sent, used = set(), set()
    real = Stepper.reply

    def build(device, plan, data):
        half = plan.client_half(data.train, device, validation=data.validation)
        work = half.run

        def run(ask):
            answer = work(ask)
            sent.add((device, digest(answer)))
            return answer

        half.run = run
        return half

    def reply(stepper, answer):
        found = real(stepper, answer)
        if any(name.startswith("weights") for name in found.payload):  # An evaluation returns no weights.
            used.add((answer.device, digest(found.payload), answer.staleness > 0))
        return found

    monkeypatch.setattr(Stepper, "reply", reply)
    run, file = federation(tmp_path, build=build)
    run.plan = run.plan.with_codec("lossless")
    run.boot_coordinator()
    keep_journal(run.service.run, [file])
    run.run()
    assert run.service.finished and {late for _, _, late in used} == {False, True}
    assert {(device, found) for device, found, _ in used} <= sent


def digest(arrays):
    return hashlib.sha256(b"".join(arrays[name].numpy().tobytes() for name in sorted(arrays))).hexdigest()


def test_the_line_of_a_synchronous_round_has_no_staleness(tmp_path):
    run, file = federation(tmp_path, policy=replace(POLICY, mode="synchronous", buffer=0, rounds=2))
    seen = []
    run.service.run.observers.append(Closes(seen))
    run.run()
    assert [line["staleness"] for line in file.records] == [{}] * 3 and json.dumps(seen)


class Closes:
    def __init__(self, seen):
        self.seen = seen

    def happened(self, run, event, commands, now):
        self.seen += [one.round for one in commands if isinstance(one, Close)]

    def answered(self, run, update, now):
        """Do nothing."""

    def stepped(self, run, step, now):
        """Do nothing."""
