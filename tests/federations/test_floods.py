"""Liars that send too much, or never finish: work, memory and disk are bounded.

They delay no other device.
"""

import sqlite3
import tracemalloc
from dataclasses import replace
from pathlib import Path

import pytest

from protofleet.coordinator.devices.limits import CoordinatorLimits
from protofleet.coordinator.round.events import Stage
from protofleet.lab.simulation.network import NetworkConditions
from protofleet.protocol.link.rate_limit import FRAME_BURST, FRAME_RATE, REPEAT_BURST, REPEAT_RATE
from protofleet.protocol.security.keys import Keys
from protofleet.protocol.storage.disk import Disk
from protofleet.protocol.storage.store import ObjectStore
from protofleet.protocol.transport.base import Arrived
from protofleet.protocol.wire.messages import Manifest, Task
from protofleet.protocol.wire.reasons import Reason
from tests.protocol.ends import TOPICS, Ends
from tests.support.lying_device import KEY, add_liar
from tests.support.run_policy import RunPolicy
from tests.support.small_federation import assert_same, in_blocks, simulation

POLICY = RunPolicy(rounds=2, quorum=3, cohort=0, patience_seconds=20.0, grace_seconds=3.0, settle_seconds=1.0)
MANY = 1000


@pytest.fixture(scope="module")
def honest(tmp_path_factory):
    return simulation(tmp_path_factory.mktemp("honest"), "fedavg", policy=POLICY).run()


def with_liar(folder, **more):
    run = simulation(folder, "fedavg", policy=POLICY, limits=more.pop("limits", CoordinatorLimits()))
    return run, add_liar(run, **more)


def rejected(run):
    return {reason: number for reason, number in run.service.run.link.meter.rejected.items() if number}


def results(run, kind):
    messages = run.service.run.link.meter.messages
    return {result: n for (way, k, result), n in messages.items() if way == "up" and k == kind}


def hellos(liar, place):
    for _ in range(MANY):
        liar.greet()


def garbage(liar, place):
    for i in range(MANY):
        liar.publish(b"PF\x01" + i.to_bytes(2, "little") + bytes(90))


def forged(liar, place):
    mine, liar.keys = liar.keys, Keys.new()
    for _ in range(MANY):
        liar.greet()
    liar.keys = mine


def wants(liar, place):
    if place[2]:
        for _ in range(MANY):
            liar.say("want", {"object": place[2], "ranges": [0, 1], "again": True})


def farewells(liar, place):
    for _ in range(MANY // 2):
        liar.greet()
        liar.say("bye", {"reason": "see you"})


def updates(liar, place):
    for _ in range(MANY):
        liar.update(place, {})


def unasked_blocks(liar, place):
    for i in range(3 * MANY):
        liar.publish(b"PF\x02" + bytes(16) + i.to_bytes(4, "little") + b"x" * 1000)


STORMS = {f.__name__: f for f in (hellos, garbage, forged, wants, farewells, updates, unasked_blocks)}


@pytest.mark.parametrize("storm", STORMS.values(), ids=STORMS)
def test_a_flood_of_messages_is_counted_and_changes_no_bit(tmp_path, honest, storm):
    run, liar = with_liar(tmp_path, answers=storm)
    sent_to_liar = []
    publish = run.broker.publish
    run.broker.publish = lambda topic, frame, retain: (
        sent_to_liar.append(len(frame)) if topic.endswith("/liar") and "down" in topic else None,
        publish(topic, frame, retain),
    )
    run.run()
    assert run.service.finished
    assert rejected(run)[Reason.FLOOD] > MANY / 2
    heard = FRAME_BURST + FRAME_RATE * run.clock.now
    assert len(sent_to_liar) <= heard + REPEAT_BURST + REPEAT_RATE * run.clock.now
    assert_same(honest, run)


@pytest.mark.slow
def test_a_thousand_unknown_devices_are_counted_and_use_little_memory(tmp_path, honest):
    run, liar = with_liar(tmp_path)

    def strangers():
        for i in range(MANY):
            name = f"stranger-{i}"
            liar.publish(liar.frame("hello", {}, sender=name), run.topics.up(name))

    run.clock.call_at(1.5, strangers)
    tracemalloc.start()
    run.run()
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert set(rejected(run)) == {Reason.UNKNOWN_SENDER, Reason.FLOOD, Reason.BANNED}
    link = run.service.link
    assert len(link.missing()) <= 4, "numbers are kept only for devices with a key"
    assert not list((tmp_path / "coordinator" / "updates").glob("stranger*"))
    assert peak < 48 << 20
    assert_same(honest, run)


def parts_on_disk(run):
    return list((Path(run.folder) / "coordinator" / "updates").glob("*/*.part"))


def offers_without_end(liar, place):
    """Offer a new object every time, and send no block of it."""
    liar.mute = True
    for i in range(MANY if place[1] == "train" else 0):
        liar.update(place, [i.to_bytes(32, "big"), 8000, 1000, bytes(16 * 8), [["weights", 8000]], KEY])


@pytest.fixture
def in_files(monkeypatch):
    """Keep all unfinished answers in files, as large ones are."""
    monkeypatch.setattr("protofleet.coordinator.spool.answer_log.SMALL", 0)


@pytest.mark.usefixtures("in_files")
def test_offers_without_blocks_hold_one_file_and_none_after_the_phase(tmp_path, honest):
    run, liar = with_liar(tmp_path, answers=offers_without_end)
    most = []
    run.run(until=lambda: bool(most.append(len(parts_on_disk(run)))) or run.service.finished)
    assert max(most) == 1 and not parts_on_disk(run)
    assert set(rejected(run)) - {Reason.BANNED} == {Reason.FLOOD}
    assert_same(honest, run)


def test_an_offer_takes_no_disk_space_before_its_blocks_arrive(tmp_path):
    """Otherwise one silent device would hold a gigabyte, and a small disk would have no room to save a round."""
    store, size = ObjectStore(tmp_path), 1 << 30
    manifest = Manifest(bytes(32), size, 1 << 20, (bytes(16),) * 1024, (("weights", size),), KEY)
    partial = store.begin(manifest)
    (path,) = tmp_path.glob("*.part")
    assert path.stat().st_size == size and path.stat().st_blocks * 512 < 1 << 16
    partial.write(7, memoryview(bytes([1]) * (1 << 20)))
    assert 1 << 20 <= path.stat().st_blocks * 512 < 2 << 20
    partial.abandon()
    assert not path.exists()


def one_offer_that_never_comes(liar, place):
    liar.mute = True
    liar.update(place, [bytes(32), 8000, 1000, bytes(16 * 8), [["weights", 8000]], KEY])


class TakenByParts(Disk):
    """A disk on which, from some time on, unfinished answers take the space that a save needs."""

    def __init__(self, now):
        super().__init__(durable=False)
        self.now = now

    def free_bytes(self, folder):
        parts = list(Path(folder).glob("updates/*/*.part")) if self.now() > 15.0 else []
        return 0 if parts else 1 << 40


@pytest.mark.usefixtures("in_files")
def test_a_save_without_disk_space_removes_unfinished_answers(tmp_path):
    """A round that begins again is saved before any phase ends, so nothing else would free the room."""
    run = []

    def disk(name):
        mine = name == "coordinator"
        return TakenByParts(lambda: run[0].clock.now if run else 0.0) if mine else Disk(durable=False)

    policy = replace(POLICY, quorum=4)
    run.append(simulation(tmp_path, "fedavg", policy=policy, make_disk=disk))
    add_liar(run[0], answers=one_offer_that_never_comes)
    service = run[0].service
    run[0].run(until=lambda: run[0].clock.now > 10.0)
    assert len(parts_on_disk(run[0])) == 1 and service.run.machine.attempt == 0
    run[0].run(
        until=lambda: service.run.machine.attempt == 1 and service.run.machine.stage is Stage.COLLECTING
    )
    assert run[0].clock.now < 60.0 and not service.run.queue.full_disk.problem


class FullOfParts(Disk):
    """A disk on which unfinished answers take the room that the index needs for an accepted answer."""

    def __init__(self):
        super().__init__(durable=False)
        self.met = 0

    def before_step(self, step, what):
        if step == "commit" and list(Path(what).parent.glob("updates/*/*.part")):
            self.met += 1
            raise sqlite3.OperationalError("database or disk is full")


@pytest.mark.usefixtures("in_files")
def test_an_accepted_answer_without_index_space_removes_unfinished_answers(tmp_path):
    """The answer waits before every step that would end the phase, so nothing else would free the room."""
    disks = {"coordinator": FullOfParts()}
    run = simulation(tmp_path, "fedavg", make_disk=lambda name: disks.get(name) or Disk(durable=False))
    add_liar(run, answers=one_offer_that_never_comes)
    run.run(until=lambda: run.clock.now > 600.0)
    assert run.service.finished and disks["coordinator"].met > 0


def test_slow_liars_do_not_block_the_credit_of_honest_devices(tmp_path, monkeypatch):
    """Four liars have taken the whole credit before the first honest answer is offered."""
    policy = replace(POLICY, rounds=1, quorum=7, patience_seconds=60.0)
    run = simulation(tmp_path, "fedavg", policy=policy)
    in_blocks(run, monkeypatch)

    def trickle(liar, place):
        if place[1] != "train":
            return
        liar.mute = True
        body = bytes([len(liar.name)]) * 8000
        liar.update(place, liar.offer(body, 40, [["weights", len(body)]]))
        name = next(iter(liar.serves))
        for second in range(1, 60):
            run.clock.call_at(run.clock.now + 0.9 * second, lambda i=second: liar.serve(name, [i, i + 1]))

    liars = [add_liar(run, f"liar{'r' * i}", answers=trickle) for i in range(4)]
    run.run(until=lambda: len(run.service.run.link.answers.fetches) == 4)
    held = sum(len(fetch.asked) for fetch, _ in run.service.run.link.answers.fetches.values())
    assert held == 256 and len(liars) == 4
    begun = run.clock.now
    run.run(until=lambda: len(run.service.run.machine.answered) == 3)
    assert run.clock.now - begun < 15, "the honest devices wait for eight seconds, not for the deadline"


def test_answers_without_spool_space_are_rejected_as_no_room(tmp_path):
    run = simulation(
        tmp_path,
        "fedavg",
        policy=replace(POLICY, rounds=1, quorum=1),
        limits=CoordinatorLimits(1000, 40_000, 40_000),
    )
    run.run()
    assert Reason.NO_ROOM in rejected(run) and set(rejected(run)) <= {Reason.NO_ROOM, Reason.LATE}
    assert run.service.finished and run.service.run.spool.bytes_of_answers() <= 40_000


def test_a_device_rejects_messages_for_another_device_and_of_an_older_epoch(tmp_path):
    ends = Ends(tmp_path, "ab", NetworkConditions())
    old = ends.coordinator.seal(Task(1, "train"), "a")
    for_b = ends.coordinator.seal(Task(1, "train"), "b")
    ends.boot_coordinator(epoch=2)
    ends.broker.clients["a"].deliver(Arrived(TOPICS.down("a"), for_b))
    ends.coordinator.send("a", Task(1, "train"))
    ends.run()
    ends.broker.clients["a"].deliver(Arrived(TOPICS.down("a"), old))
    assert +ends.links["a"].meter.rejected == {Reason.WRONG_RECIPIENT: 1, Reason.STALE_EPOCH: 1}


def test_a_changed_block_is_rejected_and_counted(tmp_path):
    ends = Ends(tmp_path, "a", NetworkConditions(delay=0.1))
    from tests.protocol.ends import weights

    name = ends.update("a", weights(400_000))
    ends.run(until=lambda: bool(ends.coordinator.answers.fetches))
    called = ends.links["a"].offered[name].wire_name
    ends.broker.clients["coordinator"].deliver(
        Arrived(TOPICS.up("a"), b"PF\x02" + called[:16] + bytes(4) + bytes(65536))
    )
    assert +ends.coordinator.meter.rejected == {Reason.BAD_BLOCK: 1}


def test_each_reason_occurs_in_a_test():
    here = Path(__file__).parent
    text = "".join(
        (here / name).read_text() for name in ("test_malice.py", "test_floods.py", "test_replay.py")
    )
    assert [reason for reason in Reason if f"Reason.{reason.name}" not in text] == []
