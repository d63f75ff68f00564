"""Tests that keys of small order are refused: anyone can read messages sealed to one, and forge its signatures."""

import pytest
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from hypothesis import given
from hypothesis import strategies as st

from protofleet.protocol.security.envelope import DOMAIN, HPKE, SEALED, Header, seal, unseal
from protofleet.protocol.security.keyfiles import KeyFileError
from protofleet.protocol.security.keys import Keys, load_keyring, load_public
from protofleet.protocol.security.records import Record, read_record
from protofleet.protocol.security.statements import StatementError, StatementFault, Writer, sign_statement
from protofleet.protocol.security.trust import Roots, first_roots, issue_roots
from protofleet.protocol.security.weak_keys import check_keys, check_sign
from protofleet.protocol.wire.reasons import Reason, Rejected
from tests.support.small_order import RECEIVE, SIGN, signed_by_nobody, times, torsion

ROOT = Ed25519PrivateKey.from_private_bytes(bytes(31) + b"\x01")
PUBLIC = ROOT.public_key().public_bytes_raw()
MINE = Keys(
    ROOT, X25519PrivateKey.from_private_bytes(bytes(31) + b"\x02")
).public  # The same key for every test process.


def test_the_lists_of_weak_keys_are_complete():
    assert len(set(torsion())) == 8 and {times(8, p) for p in torsion()} == {(0, 1)}
    assert len(set(SIGN)) == len(set(RECEIVE)) == 14, "seven, with and without the bit that nobody reads"
    for key in RECEIVE:
        with pytest.raises(ValueError, match="shared key"):
            HPKE.encrypt(b"secret", X25519PublicKey.from_public_bytes(key))


def test_a_forged_signature_is_valid_under_a_signing_key_of_small_order():
    """Without the check, anyone could send messages in the name of a party that is enrolled with a weak key."""
    nothing = (1).to_bytes(32, "little")
    for said in (b"hello", b"goodbye"):
        Ed25519PublicKey.from_public_bytes(nothing).verify(nothing + bytes(32), said)
        with pytest.raises(InvalidSignature):
            Ed25519PublicKey.from_public_bytes(MINE.sign).verify(nothing + bytes(32), said)


@pytest.mark.parametrize("key", RECEIVE, ids=bytes.hex)
def test_a_receive_key_of_small_order_is_refused(key):
    with pytest.raises(ValueError, match="key to receive with is a point of small order"):
        check_keys(MINE.sign, key)


@pytest.mark.parametrize("key", SIGN, ids=bytes.hex)
def test_a_signing_key_of_small_order_is_refused(key):
    with pytest.raises(ValueError, match="key to sign with is a point of small order"):
        check_keys(key, MINE.receive)


@given(st.binary(min_size=32, max_size=32), st.binary(min_size=32, max_size=32))
def test_each_key_that_is_made_from_random_bytes_is_accepted(one, other):
    keys = Keys(Ed25519PrivateKey.from_private_bytes(one), Keys.new().receive).public
    check_keys(keys.sign, keys.receive)
    check_sign(Ed25519PrivateKey.from_private_bytes(other).public_key().public_bytes_raw())


def record(sign, receive):
    """Return a signed record whose keys were not checked."""
    fields = Writer().text("north").text("d1").text("device").blob(sign).blob(receive)
    return sign_statement("record", fields.number(7).number(1000).number(2000).done(), [ROOT])


@pytest.mark.parametrize(
    ("sign", "receive"), [(MINE.sign, k) for k in RECEIVE] + [(k, MINE.receive) for k in SIGN], ids=bytes.hex
)
def test_a_record_with_a_weak_key_cannot_be_created_or_read(sign, receive):
    with pytest.raises(ValueError, match="small order"):
        Record("north", "d1", "device", sign, receive, 7, 1000, 2000)
    with pytest.raises(StatementError, match=r"small order .*; make new keys on its machine") as error:
        read_record(record(sign, receive), [PUBLIC])
    assert error.value.why is StatementFault.MALFORMED


@pytest.mark.parametrize(
    ("sign", "receive"), [(MINE.sign, k) for k in RECEIVE] + [(k, MINE.receive) for k in SIGN], ids=bytes.hex
)
def test_the_error_names_a_public_key_file_with_a_weak_key(tmp_path, sign, receive):
    (tmp_path / "a.pub").write_text(f"{sign.hex()}\n{receive.hex()}\n")
    for load in (load_public, lambda path: load_keyring(path.parent)):
        with pytest.raises(KeyFileError, match=r"a\.pub cannot be used: its key to .* small order"):
            load(tmp_path / "a.pub")


@pytest.mark.parametrize("key", RECEIVE, ids=bytes.hex)
def test_a_message_that_is_sealed_with_a_point_of_small_order_is_rejected(key):
    """The sender chooses the bytes in the place of the encapsulated key."""
    sender, receiver = Keys.new(), Keys.new()
    header = Header(1, 0, SEALED, "hello", "north", "run", 1, "d1", 1, 1, "coordinator", 0, "", b"")
    whole = seal(header, b"secret", sender.sign, receiver.public.receive)
    start = len(whole) - 64 - len(b"secret") - 16 - 32
    frame = whole[:start] + key + whole[start + 32 : -64]
    frame += sender.sign.sign(DOMAIN + frame)
    with pytest.raises(Rejected) as error:
        unseal(frame, {"d1": sender.public}, receiver.receive)
    assert error.value.reason is Reason.NOT_FOR_US


@pytest.mark.parametrize("key", SIGN, ids=bytes.hex)
def test_a_root_key_of_small_order_is_refused(key):
    body = Writer().text("north").number(1).blobs([key]).blobs([b"ca"]).done()
    with pytest.raises(StatementError, match="a root key that cannot be used: .*small order"):
        first_roots(signed_by_nobody("roots", body, key))
    both = issue_roots(Roots("north", 2, (PUBLIC, key), (b"ca",)), [ROOT])
    with pytest.raises(StatementError, match="small order"):
        first_roots(both)
