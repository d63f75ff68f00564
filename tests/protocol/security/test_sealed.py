"""Tests that only the recipient can read a sealed message, and that a party that seals rejects open messages."""

from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import pytest

from protofleet.protocol.security.envelope import Header, seal, unseal
from protofleet.protocol.security.keys import Keys
from protofleet.protocol.transport.base import Arrived
from protofleet.protocol.wire import codec
from protofleet.protocol.wire.blocks import is_block, unpack
from protofleet.protocol.wire.messages import Bye, State, Task, Welcome
from protofleet.protocol.wire.reasons import Reason, Rejected
from tests.protocol.ends import TOPICS, Ends, weights

KEYS = {name: Keys.new() for name in ("a", "b", "coordinator")}
RING = {name: keys.public for name, keys in KEYS.items()}
HEADER = Header(1, 0, 1, "bye", "lab", "r", 7, "a", 8, 9, "coordinator", 0, "", b"")
PAYLOAD = codec.encode(Bye("x"))
FRAME = seal(HEADER, PAYLOAD, KEYS["a"].sign, RING["coordinator"].receive)
LARGE = 400_000  # Numbers in the arrays: about 25 blocks.


def reason(frame, secret=KEYS["coordinator"].receive):
    try:
        unseal(frame, RING, secret)
    except Rejected as fault:
        return fault.reason
    return None


def test_only_the_recipient_can_open_a_sealed_payload():
    assert unseal(FRAME, RING, KEYS["coordinator"].receive) == (HEADER, PAYLOAD)
    assert PAYLOAD not in FRAME
    assert reason(FRAME, KEYS["b"].receive) is Reason.NOT_FOR_US
    assert reason(FRAME, None) is Reason.NOT_FOR_US


def test_every_flipped_bit_of_header_ciphertext_and_signature_is_rejected():
    for bit in range(8 * len(FRAME)):
        changed = bytearray(FRAME)
        changed[bit // 8] ^= 1 << bit % 8
        assert reason(bytes(changed)) is not None, f"bit {bit}"


def test_sealing_adds_48_bytes_and_gives_different_bytes_each_time():
    clear = seal(replace(HEADER, suite=0), PAYLOAD, KEYS["a"].sign)
    assert len(FRAME) == len(clear) + 48
    assert seal(HEADER, PAYLOAD, KEYS["a"].sign, RING["coordinator"].receive) != FRAME


@pytest.mark.parametrize("field", ["sender", "round", "sequence", "epoch", "kind"])
def test_a_sealed_payload_cannot_be_moved_under_another_header(field):
    """Even a party with a valid key cannot do it, because the header is part of the sealed data."""
    changed = {"sender": "b", "kind": "hello"}.get(field) or getattr(HEADER, field) + 1
    moved = replace(HEADER, **{field: changed})
    start, end = len(FRAME) - 64 - len(PAYLOAD) - 48, len(FRAME) - 64
    stolen = FRAME[start:end]
    head = seal(replace(moved, suite=0), b"", KEYS[moved.sender].sign)[:-64]
    head = head.replace(b"\x9e\x01\x00\x00", b"\x9e\x01\x00\x01", 1)
    frame = head + stolen
    frame += KEYS[moved.sender].sign.sign(b"protofleet/1 envelope\0" + frame)
    assert reason(frame) is Reason.NOT_FOR_US


class Listener:
    """A listener in the broker that keeps all frames that the broker sees."""

    def __init__(self, ends):
        self.seen, publish = [], ends.broker.publish

        def listen(topic, frame, retain):
            self.seen.append((topic, frame))
            publish(topic, frame, retain)

        ends.broker.publish = listen

    @property
    def all(self):
        return b"".join(topic.encode() + frame for topic, frame in self.seen)


def pieces(array, size=16):
    data = np.asarray(array).tobytes()
    return [data[i : i + size] for i in range(0, len(data) - size, size)]


@pytest.mark.parametrize("size", [100, LARGE], ids=["inline", "in blocks"])
def test_the_broker_sees_no_part_of_an_array(tmp_path, size):
    ends = Ends(tmp_path, "a")
    ear = Listener(ends)
    down, up = weights(size, 1), weights(size, 2)
    ends.broadcast(down, "a")
    ends.run()
    ends.update("a", up)
    ends.run()
    assert len(ends.heard["a"]) == len(ends.heard["coordinator"]) == 1
    seen = ear.all
    windows = {seen[i : i + 16] for i in range(len(seen) - 15)}
    for arrays in (down, up):
        assert not [piece for piece in pieces(arrays["weights.w"]) if piece in windows]
    ends.links["coordinator"].sealed = ends.links["a"].sealed = False
    more = weights(size, 3)
    ends.update("a", more, round=2)
    ends.run()
    assert more["weights.w"].tobytes()[:64] in ear.all, "the ear would hear what is not sealed"


def test_messages_to_one_recipient_are_sealed_and_messages_to_all_are_not(tmp_path):
    ends = Ends(tmp_path, "a")
    ear = Listener(ends)
    ends.coordinator.send("a", Welcome(b'{"secret": 1}'))
    ends.coordinator.publish(TOPICS.coord_state, State(True))
    ends.links["a"].send(Bye("a word for the coordinator"))
    ends.run()
    assert b"secret" not in ear.all and b"a word" not in ear.all
    assert len(ends.heard["a"]) == 2 and len(ends.heard["coordinator"]) == 1


@pytest.mark.parametrize("way", ["up", "down"])
def test_a_party_that_seals_rejects_an_open_message(tmp_path, way):
    ends = Ends(tmp_path, "a")
    speaker, hearer = ("a", "coordinator") if way == "up" else ("coordinator", "a")
    ends.links[speaker].sealed = False
    if way == "up":
        ends.links["a"].send(Bye("in clear"))
    else:
        ends.coordinator.send("a", Task(1, "train"))
    ends.run()
    assert [fault.reason for fault in ends.rejected[hearer]] == [Reason.NOT_SEALED]
    assert not ends.heard[hearer]


def test_a_coordinator_without_sealing_reads_a_sealed_message(tmp_path):
    ends = Ends(tmp_path, "a")
    ends.links["coordinator"].sealed = False
    ends.links["a"].send(Bye("sealed"))
    ends.run()
    assert len(ends.heard["coordinator"]) == 1 and not ends.rejected["coordinator"]


@contextmanager
def only_blocks_below(number, ends):
    honest = ends.broker.publish
    ends.broker.publish = lambda topic, frame, retain: (
        is_block(frame) and unpack(frame)[1] >= number or honest(topic, frame, retain)
    )
    yield
    ends.broker.publish = honest


def test_a_broadcast_continues_under_the_new_key_of_a_restarted_coordinator(tmp_path):
    ends = Ends(tmp_path, "a")
    arrays = weights(LARGE)
    with only_blocks_below(10, ends):
        first = ends.broadcast(arrays, "a")
        ends.run(0.5)
    assert ends.links["a"].progress == (10, 25)
    ends.boot_coordinator(epoch=2)
    second = ends.broadcast(arrays, "a")
    assert first.key != second.key and first.wire_name != second.wire_name
    ends.run()
    assert [r.object for r in ends.heard["a"]] == [first.object]
    sent = ends.coordinator.meter.messages["down", "block", "sent"]
    assert sent == 15
    assert not ends.rejected["a"]


def test_an_update_continues_under_the_new_key_of_a_restarted_device(tmp_path):
    ends = Ends(tmp_path, "a")
    with only_blocks_below(10, ends):
        name = ends.update("a", weights(LARGE))
        ends.run(0.5)
    ends.boot_device("a", boot=2)
    ends.update("a", weights(LARGE))
    ends.run()
    assert [r.object for r in ends.heard["coordinator"]] == [name]
    assert ends.links["a"].meter.messages["up", "block", "sent"] == 15
    assert not ends.rejected["coordinator"]


def test_each_block_size_of_an_object_has_its_own_key(tmp_path):
    """The nonce of a block is its number: blocks of another size under the same key would reveal both contents."""
    ends = Ends(tmp_path, "a")
    link = ends.links["a"]
    name = link.store.put(weights(LARGE)).object
    keys = set()
    for block in (65_536, 32_768):
        link.adapt(block + 4096)
        ends.update("a", weights(LARGE))
        keys.add((link.offered[name].block, link.offered[name].key))
        link.forget(name)
    assert len({block for block, _ in keys}) == len({key for _, key in keys}) == 2


def test_a_block_that_the_broker_changed_is_rejected_and_requested_again(tmp_path):
    ends = Ends(tmp_path, "a")
    name = ends.update("a", weights(LARGE))
    honest, spoilt = ends.broker.publish, []

    def publish(topic, frame, retain):
        if frame[:3] == b"PF\x02" and len(spoilt) < 3:
            spoilt.append(frame)
            frame = frame[:-1] + bytes([frame[-1] ^ 1])
        honest(topic, frame, retain)

    ends.broker.publish = publish
    ends.run()
    assert [fault.reason for fault in ends.rejected["coordinator"]] == [Reason.BAD_BLOCK] * 3
    assert [r.object for r in ends.heard["coordinator"]] == [name]


def test_a_device_rejects_a_frame_for_another_device_before_it_opens_the_frame(tmp_path):
    ends = Ends(tmp_path)
    frame = ends.coordinator.seal(Task(1, "train"), "a")
    ends.broker.clients["b"].deliver(Arrived(TOPICS.down("b"), frame))
    assert [fault.reason for fault in ends.rejected["b"]] == [Reason.WRONG_RECIPIENT]
