"""Tests that a change of any part of an envelope is detected."""

import struct
from dataclasses import astuple, replace

import msgpack
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import given
from hypothesis import strategies as st

from protofleet.protocol.security.envelope import (
    ENVELOPE,
    MAX_HEADER,
    SIGNATURE,
    Header,
    read_header,
    seal,
    unseal,
)
from protofleet.protocol.security.keys import PublicKeys
from protofleet.protocol.transport.base import Arrived
from protofleet.protocol.wire import codec
from protofleet.protocol.wire.messages import Bye, Task
from protofleet.protocol.wire.reasons import Reason, Rejected
from tests.protocol.draws import VALUES, damaged
from tests.protocol.ends import TOPICS, Ends

KEYS = {name: Ed25519PrivateKey.from_private_bytes(bytes([i]) * 32) for i, name in enumerate("ab", 1)}
RING = {name: PublicKeys(key.public_key().public_bytes_raw(), bytes(32)) for name, key in KEYS.items()}
HEADER = Header(
    1, 0, 0, "task", "lab", "spring", 7, "a", 8, 9, "b", 3, "train", b"\x01" * 32
)  # fmt: skip
PAYLOAD = codec.encode(Task(3, "train"))
FRAME = seal(HEADER, PAYLOAD, KEYS["a"])
OTHER = {
    "major": 2, "minor": 1, "suite": 3, "kind": "update", "federation": "lab2", "run": "summer", "epoch": 8,
    "sender": "b", "boot": 9, "sequence": 10, "recipient": "c", "round": 4, "phase": "mix", "base": b"\x02" * 32,
}  # fmt: skip


def reason(frame, ring=RING):
    """Return why a frame is rejected, or None if it is not; any error except Rejected is a bug of ours."""
    try:
        unseal(frame, ring)
    except Rejected as fault:
        return fault.reason
    return None


def with_fields(fields, signature=FRAME[-SIGNATURE:], payload=PAYLOAD):
    packed = msgpack.packb(fields)
    return ENVELOPE + struct.pack("<H", len(packed)) + packed + payload + signature


def test_an_envelope_returns_its_header_and_its_payload():
    assert unseal(FRAME, RING) == (HEADER, PAYLOAD)
    assert unseal(seal(HEADER, b"", KEYS["a"]), RING) == (HEADER, b"")


@pytest.mark.parametrize("name", OTHER)
def test_a_changed_header_field_is_rejected(name):
    assert set(OTHER) == set(Header.__dataclass_fields__)
    changed = replace(HEADER, **{name: OTHER[name]})
    expected = Reason.VERSION if name == "major" else Reason.BAD_SIGNATURE
    assert reason(with_fields(astuple(changed))) is expected


def test_a_changed_payload_or_signature_is_rejected():
    for at in range(len(FRAME) - len(PAYLOAD) - SIGNATURE, len(FRAME)):
        changed = bytearray(FRAME)
        changed[at] ^= 0x80
        assert reason(bytes(changed)) is Reason.BAD_SIGNATURE
    assert reason(FRAME + b"\0") is Reason.BAD_SIGNATURE


def test_an_envelope_that_is_cut_anywhere_is_rejected():
    reasons = {reason(FRAME[:n]) for n in range(len(FRAME))}
    assert reasons == {Reason.MALFORMED, Reason.BAD_SIGNATURE}


def test_an_envelope_of_another_key_or_of_an_unknown_sender_is_rejected():
    assert reason(seal(HEADER, PAYLOAD, KEYS["b"])) is Reason.BAD_SIGNATURE
    assert reason(FRAME, {"b": RING["b"]}) is Reason.UNKNOWN_SENDER
    assert reason(FRAME, {"a": RING["b"]}) is Reason.BAD_SIGNATURE


def test_a_signature_without_the_domain_of_this_protocol_is_rejected():
    bare = FRAME[:-SIGNATURE]
    assert reason(bare + KEYS["a"].sign(bare)) is Reason.BAD_SIGNATURE


@pytest.mark.parametrize("position", range(len(OTHER)))
def test_a_header_field_of_a_wrong_type_is_malformed(position):
    fields = list(astuple(HEADER))
    for value in (None, True, 0.5, [], b"x" if isinstance(fields[position], str) else "x"):
        bad = [*fields[:position], value, *fields[position + 1 :]]
        assert reason(with_fields(bad)) is Reason.MALFORMED


@pytest.mark.parametrize("name", ["epoch", "boot", "sequence", "round"])
def test_a_negative_number_is_malformed(name):
    assert reason(seal(replace(HEADER, **{name: -1}), PAYLOAD, KEYS["a"])) is Reason.MALFORMED


def test_a_header_that_is_short_or_no_list_or_too_long_is_malformed():
    fields = list(astuple(HEADER))
    for bad in (
        fields[:-1],
        fields[:1],
        [],
        {},
        None,
        "x",
        ["1"],
        [*fields, *range(32)],
        [*fields[:-1], bytes(1024)],
    ):
        assert reason(with_fields(bad)) is Reason.MALFORMED
    for length in (0, MAX_HEADER + 1, 0xFFFF):
        assert reason(ENVELOPE + struct.pack("<H", length) + FRAME[5:]) is Reason.MALFORMED


def test_a_header_of_a_later_minor_version_may_have_more_fields():
    packed = msgpack.packb([*astuple(replace(HEADER, minor=9)), "later", {}][:15])
    frame = ENVELOPE + struct.pack("<H", len(packed)) + packed + PAYLOAD
    frame += KEYS["a"].sign(b"protofleet/1 envelope\x00" + frame)
    assert unseal(frame, RING) == (replace(HEADER, minor=9), PAYLOAD)


def test_an_unknown_suite_is_refused_with_the_reason_version():
    assert reason(seal(replace(HEADER, suite=2), PAYLOAD, KEYS["a"])) is Reason.VERSION


@given(st.binary(max_size=200) | damaged(st.just(FRAME)))
def test_all_other_bytes_are_rejected(frame):
    assert reason(frame) is not None or frame == FRAME


@given(st.lists(VALUES, max_size=16))
def test_all_random_headers_are_rejected(fields):
    assert reason(with_fields(fields)) is not None


# A field that its own sender signed can still be wrong for the receiver.

SIGNED = [
    ({"federation": "other", "epoch": 99}, Reason.WRONG_FEDERATION),
    ({"kind": "nonsense"}, Reason.MALFORMED),
    ({"epoch": 1}, Reason.STALE_EPOCH),
    ({"sender": "b"}, Reason.WRONG_TOPIC),
    ({"boot": 1}, Reason.STALE_BOOT),
    ({"recipient": "b"}, Reason.WRONG_RECIPIENT),
    ({"recipient": "*"}, Reason.WRONG_RECIPIENT),
    ({"kind": "state"}, Reason.WRONG_TOPIC),
]


@pytest.mark.parametrize(("change", "expected"), SIGNED, ids=[str(s[0]) for s in SIGNED])
def test_a_wrong_field_in_a_signed_header_is_rejected_with_its_reason(tmp_path, change, expected):
    ends = Ends(tmp_path)
    ends.boot_coordinator(epoch=5)
    ends.coordinator.send("a", Task(1, "train"))
    ends.run()
    header, payload = ends.unsealed(ends.coordinator.seal(Task(2, "train"), "a"), "a")
    for said in (replace(header, **change), header):
        frame = ends.sealed(said, payload, said.sender, "a")
        ends.broker.clients["a"].deliver(Arrived(TOPICS.down("a"), frame))
    assert [fault.reason for fault in ends.rejected["a"]] == [expected]
    assert [r.message.round for r in ends.heard["a"]] == [1, 2], "what was wrong must leave no trace"


def test_a_message_of_the_coordinator_is_rejected_if_it_is_sent_back(tmp_path):
    ends = Ends(tmp_path)
    for topic in (TOPICS.up("a"), TOPICS.device_state("a")):
        frame = ends.coordinator.seal(Task(1, "train"), "a")
        ends.broker.clients["coordinator"].deliver(Arrived(topic, frame))
    assert [fault.reason for fault in ends.rejected["coordinator"]] == [Reason.WRONG_TOPIC] * 2


def test_a_frame_on_an_unknown_topic_is_counted(tmp_path):
    ends = Ends(tmp_path, "a")
    for frame in (ends.links["a"].seal(Bye("x")), b"PF\x02" + bytes(30), b"junk"):
        ends.broker.clients["coordinator"].deliver(Arrived("protofleet/1/test/up/-", frame))
    wrong = ends.results("coordinator", "up")
    assert wrong == {("bye", "wrong_topic"): 1, ("block", "wrong_topic"): 1, ("unreadable", "malformed"): 1}


def test_the_header_of_a_frame_is_readable_without_a_key():
    assert read_header(FRAME)[0] == HEADER
