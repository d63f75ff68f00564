"""Tests of crashes, silent parties and attacks during transfers: all other transfers continue and complete."""

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


def leave_all_blocks_without_the_rename(store, source, manifest):
    """Leave a store as after a process that died between writing the last block and the rename."""
    partial = store.begin(manifest)
    for i in range(len(manifest.hashes)):
        start = i * manifest.block
        partial.write(i, memoryview(source.read(manifest.object, start, start + length_of(manifest, i))))


def rounds_heard(ends, name):
    return [r.message.round for r in ends.heard[name]]


def test_a_restarted_coordinator_accepts_a_complete_update_without_another_block(tmp_path):
    ends = Ends(tmp_path, "a")
    source = ends.links["a"].store
    spool = ObjectStore(ends.folder / "spool-a", durable=False)
    leave_all_blocks_without_the_rename(spool, source, source.put(weights(LARGE)))
    ends.update("a", weights(LARGE))
    ends.run()
    assert rounds_heard(ends, "coordinator") == [1]
    assert ("block", "accepted") not in ends.results("coordinator", "up")


def test_a_restarted_device_accepts_a_complete_broadcast_without_another_block(tmp_path):
    ends = Ends(tmp_path, "a")
    source = ObjectStore(ends.folder / "broadcasts", durable=False)
    leave_all_blocks_without_the_rename(ends.links["a"].store, source, source.put(weights(LARGE)))
    ends.broadcast(weights(LARGE), "a")
    ends.run()
    assert rounds_heard(ends, "a") == [1]
    assert ("block", "accepted") not in ends.results("a", "down")


def test_a_deleted_object_can_be_fetched_again(tmp_path):
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


def test_all_devices_together_never_have_more_blocks_in_flight_than_the_budget(tmp_path):
    ends, most = Ends(tmp_path, "abcdef", SLOW), []
    for device in "abcdef":
        ends.update(device, weights(HUGE, ord(device)))
    ends.run(until=lambda: most.append(in_flight(ends)))
    assert {r.sender for r in ends.heard["coordinator"]} == set("abcdef")
    assert max(most) == BUDGET


def test_a_device_without_credit_continues_when_the_other_devices_have_left(tmp_path):
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


def test_a_small_update_is_requested_in_one_want(tmp_path):
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


def test_silent_devices_do_not_keep_the_credit_of_other_devices(tmp_path):
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
def test_a_coordinator_accepts_an_update_once_its_full_disk_has_space_again(tmp_path, monkeypatch, call):
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


def test_an_update_whose_rename_fails_on_a_full_disk_is_accepted_later(tmp_path, monkeypatch):
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


def test_an_update_that_is_sent_twice_counts_once_as_payload(tmp_path):
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
    "blocks of zero bytes": [b"x" * 32, 2, 0, b"h" * 32, [["weights", 2]]],
    "hashes as text": [b"x" * 32, 9, 9, "h" * 16, [["weights", 9]]],
    "a deeply nested table": body(b"\x91" * 1000 + b"\x90"),
    "an empty array with a huge shape": body(msgpack.packb([["w", "float32", [0, 1 << 39, 1 << 39]]])),
}


@pytest.mark.parametrize("asked", [False, True])
@pytest.mark.parametrize("arrays", MALICE.values(), ids=MALICE)
def test_a_malicious_update_is_rejected_and_the_next_update_is_accepted(tmp_path, arrays, asked):
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


def test_a_want_for_an_unknown_or_deleted_object_is_ignored(tmp_path):
    ends = Ends(tmp_path, "a")
    name = ends.update("a", weights(LARGE))
    ends.links["a"].store.keep(set())
    ends.coordinator.send("a", BlockRequest(b"?" * 32, ((0, 9),)))
    ends.coordinator.send("a", BlockRequest(name, ((0, 9),)))
    ends.links["a"].send(BlockRequest(b"?" * 32, ((0, 9),)))
    ends.run(3)
    assert not ends.rejected["a"] and not ends.rejected["coordinator"]


def test_a_broadcast_over_the_size_limit_is_refused_before_a_block_is_fetched(tmp_path):
    ends = Ends(tmp_path, "a")
    size, block = (1 << 30) + 1, 1 << 20
    manifest = Manifest(b"x" * 32, size, block, (b"h" * 16,) * 1025, (("weights", size),))
    ends.coordinator.send("a", Task(1, "train", manifest))
    ends.links["a"].send(Hello("a", 1, 1))
    ends.run()
    assert [fault.reason for fault in ends.rejected["a"]] == [Reason.TOO_LARGE]
    assert not list(ends.links["a"].store.folder.iterdir())
