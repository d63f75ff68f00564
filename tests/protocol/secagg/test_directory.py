"""Tests that each device of an attempt must have a valid record of the root."""

from dataclasses import replace

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from protofleet.protocol.secagg.directory import Directory, admitted, pack_records, unpack_records
from protofleet.protocol.secagg.faults import SecaggError, SecaggFault
from protofleet.protocol.security.records import Record, Revocations, issue_record
from protofleet.protocol.security.trust import Roots, Trust

NOW = 1_800_000_000
ROOT = Ed25519PrivateKey.from_private_bytes(bytes([9]) * 32)
RECEIVE = X25519PrivateKey.from_private_bytes(bytes([8]) * 32).public_key().public_bytes_raw()
TRUST = Trust(Roots("lab", 1, (ROOT.public_key().public_bytes_raw(),), (b"authority",)), Revocations("lab"))


def record(number, **changes):
    sign = Ed25519PrivateKey.from_private_bytes(bytes([number]) * 32).public_key().public_bytes_raw()
    whole = Record("lab", f"board-{number}", "device", sign, RECEIVE, number, NOW - 10, NOW + 10)
    return replace(whole, **changes)


def issued(*records, root=ROOT):
    return [issue_record(one, root) for one in records]


def test_the_directory_has_the_keys_that_the_root_has_signed_in_the_order_of_names():
    found = admitted(issued(record(3), record(1), record(2)), TRUST, NOW)
    assert found.names == ("board-1", "board-2", "board-3")
    assert found.key("board-2") == record(2).sign
    assert [found.number(name) for name in found.names] == [0, 1, 2]


@pytest.mark.parametrize(
    ("changes", "now", "words"),
    [
        ({"not_after": NOW - 1}, NOW, "has expired"),
        ({"not_before": NOW + 1}, NOW, "valid only from"),
        ({}, NOW + 11, "has expired"),
        ({"federation": "works"}, NOW, "belongs to federation works"),
        ({"name": "coordinator", "role": "coordinator"}, NOW, "is a coordinator, not a device"),
    ],
)
def test_all_records_are_refused_if_one_record_is_not_valid(changes, now, words):
    with pytest.raises(SecaggError, match=words) as error:
        admitted(issued(record(1), record(2, **changes), record(3)), TRUST, now)
    assert error.value.why is SecaggFault.NOT_ENROLLED


def test_a_revoked_record_and_a_record_of_another_root_are_refused():
    data = issued(record(1), record(2))
    with pytest.raises(SecaggError, match="has been revoked"):
        admitted(data, replace(TRUST, revoked=Revocations("lab", 1, frozenset({2}))), NOW)
    with pytest.raises(SecaggError, match="signed by root"):
        admitted(issued(record(1), root=Ed25519PrivateKey.generate()), TRUST, NOW)


def test_two_records_with_the_same_key_or_name_are_refused():
    with pytest.raises(SecaggError, match="two names have the same key") as error:
        admitted(issued(record(1), record(2, sign=record(1).sign)), TRUST, NOW)
    assert error.value.why is SecaggFault.BAD_KEYS
    with pytest.raises(SecaggError, match="two records for board-1"):
        admitted(issued(record(1), record(1, serial=7, sign=record(2).sign)), TRUST, NOW)


def test_a_name_without_a_record_is_refused():
    with pytest.raises(SecaggError, match="no record for board-2"):
        admitted(issued(record(1)), TRUST, NOW).number("board-2")


@pytest.mark.parametrize("keys", [{"coordinator": bytes(32)}, {"a b": bytes(32)}, {"a": bytes(31)}])
def test_invalid_names_and_keys_are_refused(keys):
    with pytest.raises(SecaggError, match="cannot be called|is no name|31 bytes"):
        Directory(keys)


def test_packed_records_are_unpacked_unchanged():
    data = issued(record(1), record(2))
    assert unpack_records(pack_records(data)) == data
    assert unpack_records(b"") == []


@pytest.mark.parametrize("wrong", [b"\x01", b"\x00\x00", b"\x05\x00abc", b"\xff\xff" + bytes(70000)])
def test_records_of_a_wrong_length_are_refused(wrong):
    with pytest.raises(SecaggError, match="record 0 has"):
        unpack_records(wrong)
