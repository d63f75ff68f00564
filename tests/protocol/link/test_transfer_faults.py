"""Tests of crashes, silent parties and malice during transfers: others continue, and all that is due arrives."""

import errno
import os
import struct

import msgpack
import pytest

from protofleet.lab.simulation.network import NetworkConditions
from protofleet.protocol.link.block_budget import BUDGET
from protofleet.protocol.storage.disk import Disk
from protofleet.protocol.storage.store import ObjectStore
from protofleet.protocol.transport.base import Arrived
from protofleet.protocol.wire.blocks import length_of
from protofleet.protocol.wire.messages import BlockRequest, Hello, Manifest, Task, Update
from protofleet.protocol.wire.reasons import Reason
from tests.protocol.ends import TOPICS, Ends, weights

LARGE = 400_000  # 1.6 MB in 25 blocks.
HUGE = 4_000_000  # 16 MB in 245 blocks, which is more than three windows.
SLOW = NetworkConditions(delay=0.1)


def all_blocks_but_no_name(store, source, manifest):
    """Leave in a store what a process leaves that dies between writing the last block and the rename."""
    partial = store.begin(manifest)
    for i in range(len(manifest.hashes)):
        start = i * manifest.block
        partial.write(i, memoryview(source.read(manifest.object, start, start + length_of(manifest, i))))


def rounds_heard(ends, name):
    return [r.message.round for r in ends.heard[name]]


def test_an_answer_that_was_all_here_when_the_coordinator_died_is_taken_without_a_block(tmp_path):
    ends = Ends(tmp_path, "a")
    source = ends.links["a"].store
    spool = ObjectStore(ends.folder / "spool-a", durable=False)
    all_blocks_but_no_name(spool, source, source.put(weights(LARGE)))
    ends.update("a", weights(LARGE))
    ends.run()
    assert rounds_heard(ends, "coordinator") == [1]
    assert ("block", "accepted") not in ends.results("coordinator", "up")


def test_a_broadcast_that_was_all_here_when_the_device_died_is_taken_without_a_block(tmp_path):
    ends = Ends(tmp_path, "a")
    source = ObjectStore(ends.folder / "broadcasts", durable=False)
    all_blocks_but_no_name(ends.links["a"].store, source, source.put(weights(LARGE)))
    ends.broadcast(weights(LARGE), "a")
    ends.run()
    assert rounds_heard(ends, "a") == [1]
    assert ("block", "accepted") not in ends.results("a", "down")


def test_what_was_forgotten_can_be_fetched_again(tmp_path):
    ends = Ends(tmp_path, "a")
    for turn in (1, 2):
        ends.broadcast(weights(LARGE), "a", round=turn)
        ends.update("a", weights(LARGE, seed=1), round=turn)
        ends.run()
        ends.links["a"].store.keep(set())
        ObjectStore(ends.folder / "spool-a", durable=False).keep(set())
    assert rounds_heard(ends, "a") == rounds_heard(ends, "coordinator") == [1, 2]


def in_flight(ends):
    return sum(len(fetch.asked) for fetch, _ in ends.coordinator.answers.fetches.values())


def test_all_devices_together_never_have_more_in_flight_than_the_budget(tmp_path):
    ends, most = Ends(tmp_path, "abcdef", SLOW), []
    for device in "abcdef":
        ends.update(device, weights(HUGE, ord(device)))
    ends.run(until=lambda: most.append(in_flight(ends)))
    assert {r.sender for r in ends.heard["coordinator"]} == set("abcdef")
    assert max(most) == BUDGET


def test_whoever_found_no_credit_goes_on_when_the_others_have_gone(tmp_path):
    ends = Ends(tmp_path, "abcde", SLOW)
    for device in "abcde":
        ends.update(device, weights(HUGE, ord(device)))
    ends.run(until=lambda: len(ends.coordinator.answers.fetches) == 5)
    assert not ends.coordinator.answers.fetches["e"][0].asked, "four windows are the whole budget"
    for device in "abcd":
        ends.broker.clients[device].alive = False
        ends.coordinator.answers.abandon(device)
    ends.update("e", weights(HUGE, ord("e")))  # A device does this while it has no receipt.
    ends.run()
    assert [r.sender for r in ends.heard["coordinator"]] == ["e"]


def test_whoever_begins_asks_for_all_of_a_small_answer_at_once(tmp_path):
    devices = [chr(ord("A") + i) for i in range(20)]
    ends, requests = Ends(tmp_path, devices, SLOW), []
    send = ends.coordinator.send
    ends.coordinator.send = lambda device, message: (
        requests.append((device, message)),
        send(device, message),
    )
    for device in devices:
        # An answer has 25 blocks, and ten answers use the whole budget.
        ends.update(device, weights(LARGE, ord(device)))
    ends.run()
    assert {r.sender for r in ends.heard["coordinator"]} == set(devices)
    assert sorted(device for device, message in requests if isinstance(message, BlockRequest)) == devices


def test_devices_that_fall_silent_take_nobodys_credit_for_long(tmp_path):
    ends = Ends(tmp_path, "abcde", SLOW)
    for device in "abcd":
        ends.update(device, weights(HUGE, ord(device)))
    ends.run(until=lambda: len(ends.coordinator.answers.fetches) == 4)
    for device in "abcd":
        ends.broker.clients[device].alive = False
    ends.update("e", weights(HUGE, ord("e")))
    ends.run(10)
    assert [r.sender for r in ends.heard["coordinator"]] == ["e"]


@pytest.mark.parametrize("call", ["pwrite", "ftruncate"])
def test_a_coordinator_whose_disk_was_full_takes_the_answer_when_there_is_room(tmp_path, monkeypatch, call):
    ends, real, full = Ends(tmp_path, "a"), getattr(os, call), [True]

    def full_disk(*arguments):
        if full:
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(*arguments)

    monkeypatch.setattr(os, call, full_disk)
    ends.update("a", weights(LARGE))
    ends.run(30)
    assert {fault.reason for fault in ends.rejected["coordinator"]} == {Reason.NO_ROOM}
    full.clear()
    ends.update("a", weights(LARGE))
    ends.run(60)
    assert rounds_heard(ends, "coordinator") == [1] and not ends.gate.faults


def test_an_answer_that_found_no_room_for_its_name_is_not_refused(tmp_path, monkeypatch):
    ends, real, full = Ends(tmp_path, "a"), Disk.rename, [True]

    def full_disk(disk, source, target):
        if full and target.parent.name == "spool-a":
            raise OSError(errno.ENOSPC, "No space left on device")
        real(disk, source, target)

    monkeypatch.setattr(Disk, "rename", full_disk)
    ends.update("a", weights(LARGE))
    ends.run(30)
    assert [fault.reason for fault in ends.rejected["coordinator"]] == [
        Reason.NO_ROOM
    ] and not ends.gate.faults
    full.clear()
    ends.update("a", weights(LARGE))
    ends.run(30)
    assert rounds_heard(ends, "coordinator") == [1]


def test_an_answer_said_twice_is_payload_once(tmp_path):
    ends = Ends(tmp_path, "a")
    for turn in (1, 1, 2):
        ends.update("a", weights(10), round=turn)
        ends.run(5)
    for end in ("a", "coordinator"):
        assert ends.parts[end].meter.payload["up", "weights"] == 2 * 40
        assert ends.parts[end].meter.wire["up", "weights"] == 3 * 40
    assert len(ends.heard["coordinator"]) == 3, "what it means that it came twice is not for the link to say"


def forged(ends, device, message, **fields):
    """Return a frame that a device could sign but that our own code never sends."""
    header, payload = ends.unsealed(ends.links[device].seal(message, "coordinator"), "coordinator")
    return ends.sealed(header, msgpack.packb({**msgpack.unpackb(payload), **fields}), device, "coordinator")


def body(table):
    return struct.pack("<I", len(table)) + table


MALICE = {
    "blocks of nothing": [b"x" * 32, 2, 0, b"h" * 32, [["weights", 2]]],
    "hashes that are words": [b"x" * 32, 9, 9, "h" * 16, [["weights", 9]]],
    "nested without end": body(b"\x91" * 1000 + b"\x90"),
    "an empty shape that no library can make": body(msgpack.packb([["w", "float32", [0, 1 << 39, 1 << 39]]])),
}


@pytest.mark.parametrize("asked", [False, True])
@pytest.mark.parametrize("arrays", MALICE.values(), ids=MALICE)
def test_an_update_made_to_break_the_coordinator_is_rejected_and_the_next_is_taken(tmp_path, arrays, asked):
    ends = Ends(tmp_path)
    ends.gate.asked = asked
    for _ in range(2):
        frame = forged(ends, "a", Update("a", 1, "train", 1), arrays=arrays)
        ends.broker.clients["coordinator"].deliver(Arrived(TOPICS.up("a"), frame))
        ends.coordinator.answers.abandon("a")
    faults = ends.rejected["coordinator"] + ends.gate.faults
    assert len(faults) == 2 and len(ends.gate.faults) == (2 if asked else 0)
    counted = ends.results("coordinator", "up")
    assert sum(counted["update", reason] for reason in {f.reason.value for f in faults}) == 2
    ends.update("b", weights(10))
    ends.run()
    assert [r.sender for r in ends.heard["coordinator"]] == ["b"]


def test_a_want_for_what_is_not_offered_or_not_there_any_more_is_passed_over(tmp_path):
    ends = Ends(tmp_path, "a")
    name = ends.update("a", weights(LARGE))
    ends.links["a"].store.keep(set())
    ends.coordinator.send("a", BlockRequest(b"?" * 32, ((0, 9),)))
    ends.coordinator.send("a", BlockRequest(name, ((0, 9),)))
    ends.links["a"].send(BlockRequest(b"?" * 32, ((0, 9),)))
    ends.run(3)
    assert not ends.rejected["a"] and not ends.rejected["coordinator"]


def test_a_broadcast_over_the_limit_is_refused_before_anything_is_fetched(tmp_path):
    ends = Ends(tmp_path, "a")
    size, block = (1 << 30) + 1, 1 << 20
    manifest = Manifest(b"x" * 32, size, block, (b"h" * 16,) * 1025, (("weights", size),))
    ends.coordinator.send("a", Task(1, "train", manifest))
    ends.links["a"].send(Hello("a", 1, 1))
    ends.run()
    assert [fault.reason for fault in ends.rejected["a"]] == [Reason.TOO_LARGE]
    assert not list(ends.links["a"].store.folder.iterdir())
