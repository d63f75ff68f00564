"""Tests that messages cross a bad network complete and exactly once, and that all frames are counted."""

import hashlib

import numpy as np
import pytest

from protofleet.lab.simulation.network import NetworkConditions
from protofleet.protocol.storage.store import ObjectStore
from protofleet.protocol.transport.address import BrokerError
from protofleet.protocol.transport.base import Arrived
from protofleet.protocol.wire.messages import Bye, Hello, IndirectManifest, Refusal, Task, Update
from protofleet.protocol.wire.names import COORDINATOR
from protofleet.protocol.wire.reasons import Reason
from tests.protocol.ends import TOPICS, Ends, weights
from tests.support.few_methods import few

SMALL, LARGE = 1000, 400_000  # 4 kB travel inside the message, 1.6 MB travel in 25 blocks.
BAD_NETWORKS = [
    NetworkConditions(jitter=0.2, loss=0.2, repeat=0.2),
    NetworkConditions(loss=0.5),
    NetworkConditions(jitter=2.0, repeat=0.9),
]


@pytest.mark.parametrize("size", [0, SMALL, LARGE])
def test_an_update_arrives_as_it_was_sent(tmp_path, size):
    ends, arrays = Ends(tmp_path), weights(size)
    ends.update("a", arrays)
    ends.run()
    (received,) = ends.heard["coordinator"]
    assert received.sender == "a" and isinstance(received.message, Update)
    np.testing.assert_array_equal(received.message.arrays["weights.w"], arrays["weights.w"])


@pytest.mark.parametrize("conditions", BAD_NETWORKS)
@pytest.mark.parametrize("seed", range(3))
def test_a_broadcast_reaches_all_devices_over_any_network(tmp_path, conditions, seed):
    ends = Ends(tmp_path, "abcd", conditions, seed)
    arrays = weights(LARGE)

    def done():
        return all(any(isinstance(r.message, Task) for r in ends.heard[d]) for d in "abcd")

    for _ in range(20):  # The round machine repeats a task at each hello; here the test does it.
        ends.broadcast(arrays, "abcd")
        ends.run(20, done)
    assert done()
    for device in "abcd":
        name = ends.heard[device][0].object
        np.testing.assert_array_equal(ends.links[device].store.open(name)["weights.w"], arrays["weights.w"])


@pytest.mark.parametrize("conditions", few(BAD_NETWORKS, 3))
def test_updates_of_many_devices_arrive_over_any_network(tmp_path, conditions):
    ends = Ends(tmp_path, "abcd", conditions)
    for _ in range(20):
        for device in "abcd":
            ends.update(device, weights(LARGE, ord(device)))
        ends.run(20)
    for device in "abcd":
        got = next(r for r in ends.heard["coordinator"] if r.sender == device)
        np.testing.assert_array_equal(
            got.message.arrays["weights.w"], weights(LARGE, ord(device))["weights.w"]
        )


def test_a_broadcast_is_sent_once_for_the_whole_cohort(tmp_path):
    ends = Ends(tmp_path, "abcdef")
    ends.broadcast(weights(LARGE), "abcdef")
    ends.run()
    assert ends.coordinator.meter.payload["down", "weights"] == 4 * LARGE
    assert ends.coordinator.meter.wire["down", "weights"] == 4 * LARGE
    for device in "abcdef":
        assert ends.links[device].meter.payload["down", "weights"] == 4 * LARGE


def test_a_device_that_holds_the_broadcast_fetches_no_block(tmp_path):
    ends = Ends(tmp_path)
    ends.broadcast(weights(LARGE), "ab", round=1)
    ends.run()
    before = ends.coordinator.meter.wire["down", "weights"]
    ends.broadcast(weights(LARGE), "ab", round=2)
    ends.run()
    assert [r.message.round for r in ends.heard["a"]] == [1, 2]
    assert ends.coordinator.meter.wire["down", "weights"] == before


def test_an_interrupted_transfer_continues_after_a_restart_of_the_coordinator(tmp_path):
    ends = Ends(tmp_path, "a")
    ends.update("a", weights(LARGE))
    ends.run(until=lambda: ends.coordinator.meter.payload["up", "weights"] > 2 * LARGE)
    ends.boot_coordinator(epoch=2)  # The memory is lost, but not the disk.
    ends.update("a", weights(LARGE))
    ends.run()
    assert len(ends.heard["coordinator"]) == 1
    assert ends.coordinator.meter.payload["up", "weights"] < 2 * LARGE


def test_both_ends_count_the_same_bytes_and_the_sum_is_the_traffic_of_the_broker(tmp_path):
    ends = Ends(tmp_path, "a")
    ends.broadcast(weights(LARGE), "a")
    ends.update("a", {**weights(LARGE), "prototypes": np.ones((10, 8), np.float32)})
    ends.run()
    a, c = ends.links["a"].meter, ends.coordinator.meter
    assert +a.payload == +c.payload and +a.wire == +c.wire and a.frames == c.frames
    assert sum(c.frames.values()) == ends.broker.bytes_received
    assert c.payload["up", "prototypes"] == 320


@pytest.mark.parametrize("conditions", [NetworkConditions(), *BAD_NETWORKS])
def test_each_received_frame_is_counted_in_exactly_one_counter(tmp_path, conditions):
    ends, delivered = Ends(tmp_path, "ab", conditions), []
    link = ends.links[COORDINATOR]
    take = link.arrived
    link.arrived = lambda *a: delivered.append(1) or take(*a)
    for device in "ab":
        ends.update(device, weights(LARGE))
        ends.links[device].send(Hello(device, 10, 5))
    ends.broadcast(weights(LARGE), "ab")
    ends.run()
    assert sum(ends.results("coordinator", "up").values()) == len(delivered)


def test_a_repeated_message_is_accepted_once(tmp_path):
    ends = Ends(tmp_path, "a", NetworkConditions(repeat=1.0))
    ends.links["a"].send(Bye("enough"))
    ends.run()
    assert len(ends.heard["coordinator"]) == 1
    assert ends.results("coordinator", "up") == {("bye", "accepted"): 1, ("bye", "duplicate"): 1}


def frame_of(ends, device, message):
    return ends.links[device].seal(message, "coordinator")


def reason_of(ends, topic, frame, receiver="coordinator"):
    ends.broker.clients[receiver].deliver(Arrived(topic, frame))
    return ends.rejected[receiver][-1].reason


def test_a_frame_with_one_flipped_bit_is_rejected(tmp_path):
    ends = Ends(tmp_path, "a")
    frame = frame_of(ends, "a", Hello("a", 10, 5))
    for place in range(len(frame)):
        bad = bytearray(frame)
        bad[place] ^= 1
        ends.clock.now += 1.0  # So no message is rejected only because there are many.
        assert reason_of(ends, TOPICS.up("a"), bytes(bad)) is not Reason.FLOOD
    assert len(ends.rejected["coordinator"]) == len(frame)
    assert not ends.heard["coordinator"]


def test_a_frame_in_the_name_of_another_device_is_rejected(tmp_path):
    ends = Ends(tmp_path)
    frame = frame_of(ends, "a", Hello("a", 10, 5))
    assert reason_of(ends, TOPICS.up("b"), frame) is Reason.WRONG_TOPIC
    header, payload = ends.unsealed(frame, "coordinator")
    forged = ends.sealed(header, payload, "b", "coordinator")
    assert reason_of(ends, TOPICS.up("a"), forged) is Reason.BAD_SIGNATURE


def replaced(folder):
    """Return ends that have received a hello of a later process of device "a", and a frame of the earlier process."""
    ends = Ends(folder, "a")
    old = frame_of(ends, "a", Hello("a", 10, 5))
    ends.boot_device("a", boot=2)
    ends.links["a"].send(Hello("a", 10, 5))
    ends.run()
    return ends, old


def test_a_frame_of_an_older_process_of_a_device_is_rejected(tmp_path):
    ends, old = replaced(tmp_path)
    assert reason_of(ends, TOPICS.up("a"), old) is Reason.STALE_BOOT


def test_an_older_process_of_a_device_gets_a_refusal_and_its_frame_is_counted(tmp_path):
    ends, old = replaced(tmp_path)
    reason_of(ends, TOPICS.up("a"), old)
    ends.run()
    assert [said.message.boot for said in ends.heard["a"] if isinstance(said.message, Refusal)] == [2]
    assert ends.results("coordinator", "up") == {("hello", "accepted"): 1, ("hello", "stale_boot"): 1}


def test_a_device_rejects_a_task_of_an_older_coordinator(tmp_path):
    ends = Ends(tmp_path, "a")
    old = ends.coordinator.seal(Task(1, "train"), "a")
    ends.boot_coordinator(epoch=2)
    ends.coordinator.send("a", Task(1, "train"))
    ends.run()
    assert reason_of(ends, TOPICS.down("a"), old, "a") is Reason.STALE_EPOCH


def test_a_forged_block_is_dropped_and_the_correct_block_is_fetched(tmp_path):
    ends = Ends(tmp_path, "a", NetworkConditions(delay=0.1))
    ends.update("a", weights(LARGE))
    device = ends.links["a"]
    honest = device.transport.publish

    def forge(topic, frame, retain=False, qos=1):
        honest(
            topic,
            frame[:-1] + bytes([frame[-1] ^ 1])
            if frame[:3] == b"PF\x02" and not done.append(1) and len(done) == 3
            else frame,
            retain,
        )

    done = []
    device.transport = type("T", (), {"publish": staticmethod(forge)})()
    ends.run()
    assert ends.results("coordinator", "up")["block", "bad_block"] == 1
    np.testing.assert_array_equal(
        ends.heard["coordinator"][0].message.arrays["weights.w"], weights(LARGE)["weights.w"]
    )


def test_an_unwanted_update_costs_only_one_small_message(tmp_path):
    ends = Ends(tmp_path, "a")
    ends.gate.open = False
    ends.update("a", weights(LARGE))
    ends.run()
    assert not ends.heard["coordinator"] and sum(ends.coordinator.meter.frames.values()) < 1500


@pytest.mark.parametrize("numbers", [20_000, 250_000])
def test_a_manifest_that_is_larger_than_a_packet_is_sent_as_an_object(tmp_path, numbers):
    """A model of 1 MB at a broker that takes 5,120 bytes, both ways."""
    ends = Ends(tmp_path)
    for link in ends.parts.values():
        link.adapt(5120)  # Blocks have 1 kB, and a manifest names 64 of them.
    ends.links["a"].peer_forms = frozenset({"manifest"})
    offer = ends.broadcast(weights(numbers), ["a"])
    name = ends.update("a", weights(numbers))
    assert isinstance(offer, IndirectManifest)
    ends.run()
    ((down,), (up,)) = ends.heard["a"], ends.heard[COORDINATOR]
    assert (down.object, up.object) == (offer.object, name)
    assert not ends.rejected["a"] and not ends.rejected[COORDINATOR]


def test_an_update_is_refused_if_the_coordinator_lacks_the_form_manifest(tmp_path):
    ends = Ends(tmp_path)
    ends.links["a"].adapt(5120)
    with pytest.raises(BrokerError, match="raise the broker's packet limit to 131072"):
        ends.update("a", weights(20_000))


def test_an_object_with_too_many_blocks_is_refused_with_the_packet_limit_it_needs(tmp_path):
    ends = Ends(tmp_path)
    ends.coordinator.adapt(5120)
    words = r"an object of \d+ bytes has at most 4096 blocks, so each block has 2048 bytes, .*packets of 5120; raise"
    with pytest.raises(BrokerError, match=words):
        ends.broadcast(weights(1_500_000), ["a"])


def test_an_inline_update_is_hashed_once_and_read_without_its_file(tmp_path, monkeypatch):
    ends, hashed, sha256 = Ends(tmp_path), [], hashlib.sha256

    def counted(data=b"", **more):
        hashed.append(len(data))
        return sha256(data, **more)

    sent = weights(5000)
    name = ends.links["a"].store.put(sent).object
    ends.links["a"].send_update(Update("a", 1, "train", 10), name)
    monkeypatch.setattr(hashlib, "sha256", counted)
    ends.run()
    monkeypatch.undo()
    (received,) = ends.heard[COORDINATOR]
    store = ObjectStore(tmp_path / "spool-a", False)
    assert received.object == name and store.has(name)
    assert len([size for size in hashed if size > 4 * 5000]) == 1
    store.drop(name)
    assert np.array_equal(received.message.arrays["weights.w"], sent["weights.w"])
