"""Tests that a record is accepted only if a root has signed exactly its bytes."""

import ast
from dataclasses import replace
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import given
from hypothesis import strategies as st

from protofleet.protocol.security import records, statements, trust
from protofleet.protocol.security.records import (
    Record,
    Revocations,
    issue_record,
    issue_revocations,
    read_record,
    read_revocations,
)
from protofleet.protocol.security.statements import (
    StatementError,
    StatementFault,
    armoured,
    fingerprint,
    read_armoured,
    sign_statement,
    verified_body,
)
from protofleet.protocol.security.trust import Roots, Trust, first_roots, issue_roots, read_roots

OLD, NEW, EVIL = (Ed25519PrivateKey.from_private_bytes(bytes([i]) * 32) for i in (1, 2, 3))
PUBLIC = {key: key.public_key().public_bytes_raw() for key in (OLD, NEW, EVIL)}
D1 = Record("north", "d1", "device", b"s" * 32, b"r" * 32, 7, 1000, 2000)
SIGNED = issue_record(D1, OLD)


def trust_in(*keys, federation="north", version=1, revoked=frozenset(), heard=1):
    roots = Roots(federation, version, tuple(PUBLIC[key] for key in keys), (b"ca",))
    return Trust(roots, Revocations(federation, heard, revoked))


def refusal(call, *arguments, **options):
    with pytest.raises(StatementError) as error:
        call(*arguments, **options)
    assert "\n" not in str(error.value)
    return error.value.why


def test_a_record_is_accepted_with_the_root_that_signed_it():
    assert read_record(SIGNED, [PUBLIC[OLD]]) == D1
    assert trust_in(OLD).admit(SIGNED, 1500, name="d1", role="device") == D1
    assert len(SIGNED) < records.MAX_RECORD


def test_records_of_both_roots_are_valid_while_a_root_is_replaced():
    both = trust_in(OLD, NEW)
    assert both.admit(SIGNED, 1500) == both.admit(issue_record(D1, NEW), 1500) == D1
    assert refusal(trust_in(NEW).admit, SIGNED, 1500) == StatementFault.UNKNOWN_ROOT
    assert refusal(trust_in(OLD).admit, issue_record(D1, NEW), 1500) == StatementFault.UNKNOWN_ROOT


@pytest.mark.parametrize("bit", range(8))
def test_a_record_with_one_changed_bit_is_refused(bit):
    for at in range(len(SIGNED)):
        changed = SIGNED[:at] + bytes([SIGNED[at] ^ 1 << bit]) + SIGNED[at + 1 :]
        assert refusal(read_record, changed, [PUBLIC[OLD]]) in (
            StatementFault.MALFORMED, StatementFault.UNKNOWN_ROOT, StatementFault.BAD_SIGNATURE,
        )  # fmt: skip


def test_a_record_that_is_cut_or_longer_is_malformed():
    for length in range(len(SIGNED)):
        assert refusal(read_record, SIGNED[:length], [PUBLIC[OLD]]) == StatementFault.MALFORMED
    assert refusal(read_record, SIGNED + b"\0", [PUBLIC[OLD]]) == StatementFault.MALFORMED


@given(st.binary(max_size=600))
def test_random_bytes_are_refused_with_a_statement_error(data):
    for read in (read_record, read_revocations, read_roots):
        with pytest.raises(StatementError):
            read(data, [PUBLIC[OLD]])


@given(st.binary(max_size=300))
def test_a_malformed_body_is_refused_although_the_root_signed_it(body):
    for kind, read in (("record", read_record), ("revocations", read_revocations), ("roots", read_roots)):
        assert refusal(read, sign_statement(kind, body, [OLD]), [PUBLIC[OLD]]) == StatementFault.MALFORMED


def test_a_length_above_its_limit_is_malformed():
    body = b"\xff\xff\xff\xff" + bytes(40)
    assert (
        refusal(read_record, sign_statement("record", body, [OLD]), [PUBLIC[OLD]]) == StatementFault.MALFORMED
    )
    huge = bytes(statements.MAX_STATEMENT + 1)
    assert refusal(verified_body, "roots", huge, [PUBLIC[OLD]]) == StatementFault.MALFORMED


def test_a_signature_of_one_kind_of_statement_is_not_valid_for_another_kind():
    body = verified_body("record", SIGNED, [PUBLIC[OLD]])
    assert (
        refusal(read_record, sign_statement("request", body, [OLD]), [PUBLIC[OLD]])
        == StatementFault.MALFORMED
    )
    swapped = sign_statement("request", body, [OLD]).replace(b"\x07request", b"\x06record")
    assert refusal(read_record, swapped, [PUBLIC[OLD]]) == StatementFault.BAD_SIGNATURE


def test_a_forged_statement_that_names_our_root_is_refused():
    forged = sign_statement("record", verified_body("record", SIGNED, [PUBLIC[OLD]]), [EVIL])
    forged = forged.replace(statements.signer(PUBLIC[EVIL]), statements.signer(PUBLIC[OLD]))
    assert refusal(read_record, forged, [PUBLIC[OLD]]) == StatementFault.BAD_SIGNATURE


@pytest.mark.parametrize(
    ("now", "why"),
    [(999, StatementFault.NOT_YET_VALID), (1000, None), (2000, None), (2000.5, StatementFault.EXPIRED)],
)
def test_a_record_is_valid_from_its_first_to_its_last_second(now, why):
    if why is None:
        assert trust_in(OLD).admit(SIGNED, now) == D1
    else:
        assert refusal(trust_in(OLD).admit, SIGNED, now) == why


def test_each_wrong_use_of_a_record_is_refused_with_its_own_reason():
    assert refusal(trust_in(OLD, federation="south").admit, SIGNED, 1500) == StatementFault.WRONG_FEDERATION
    assert refusal(trust_in(OLD).admit, SIGNED, 1500, name="d2") == StatementFault.WRONG_NAME
    assert refusal(trust_in(OLD).admit, SIGNED, 1500, role="coordinator") == StatementFault.WRONG_ROLE
    assert refusal(trust_in(OLD, revoked={7}).admit, SIGNED, 1500) == StatementFault.REVOKED
    assert trust_in(OLD, revoked={6, 8}).admit(SIGNED, 1500) == D1


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"name": "a b"}, "'a b' is no name"),
        ({"federation": ""}, "'' is no name"),
        ({"role": "root"}, "role is 'root', it must be one of device, coordinator"),
        ({"role": "coordinator"}, "'d1' cannot be a coordinator"),
        ({"name": "coordinator"}, "'coordinator' cannot be a device"),
        ({"sign": b"s" * 31}, "the keys have 31 and 32 bytes, but each must have 32"),
        ({"receive": b""}, "the keys have 32 and 0 bytes, but each must have 32"),
        ({"not_before": 2000}, "the record would be valid from 2000 to 2000"),
        ({"not_after": records.LATEST + 1}, f"the record would be valid from 1000 to {records.LATEST + 1}"),
    ],
)
def test_an_invalid_record_cannot_be_created(wrong, words):
    with pytest.raises(ValueError, match=words):
        replace(D1, **wrong)


def test_a_revocation_list_is_replaced_only_by_a_newer_list():
    first, later = (
        issue_revocations(Revocations("north", v, frozenset(s)), [OLD]) for v, s in ((2, {5}), (3, {5, 7}))
    )
    held = trust_in(OLD).with_revocations(first)
    assert held.admit(SIGNED, 1500) == D1
    held = held.with_revocations(later).with_revocations(later)
    assert refusal(held.admit, SIGNED, 1500) == StatementFault.REVOKED
    assert refusal(held.with_revocations, first) == StatementFault.SUPERSEDED
    other = issue_revocations(Revocations("north", 3, frozenset({5})), [OLD])  # Same version, fewer devices.
    assert refusal(held.with_revocations, other) == StatementFault.SUPERSEDED
    south = issue_revocations(Revocations("south", 9, frozenset()), [OLD])
    assert refusal(held.with_revocations, south) == StatementFault.WRONG_FEDERATION
    evil = issue_revocations(Revocations("north", 9, frozenset()), [EVIL])
    assert refusal(held.with_revocations, evil) == StatementFault.UNKNOWN_ROOT


def test_new_roots_are_accepted_only_if_a_held_root_signed_them_and_they_are_newer():
    def roots(version, *keys):
        return Roots("north", version, tuple(PUBLIC[key] for key in keys), (b"ca",))

    second, third = issue_roots(roots(2, OLD, NEW), [OLD, NEW]), issue_roots(roots(3, NEW), [OLD, NEW])
    one = trust_in(OLD)
    assert one.with_roots(second).with_roots(third).roots.keys == (PUBLIC[NEW],)
    assert one.with_roots(third).roots.keys == (PUBLIC[NEW],)  # A party that missed the second version.
    assert refusal(one.with_roots(third).with_roots, second) == StatementFault.SUPERSEDED
    alone = issue_roots(roots(2, NEW), [NEW])
    assert refusal(one.with_roots, alone) == StatementFault.UNKNOWN_ROOT
    assert refusal(one.with_roots, issue_roots(roots(2, EVIL), [EVIL])) == StatementFault.UNKNOWN_ROOT
    south = issue_roots(replace(roots(2, OLD), federation="south"), [OLD])
    assert refusal(one.with_roots, south) == StatementFault.WRONG_FEDERATION


def test_the_first_roots_must_sign_themselves():
    told = Roots("north", 1, (PUBLIC[OLD],), (b"ca",))
    assert first_roots(issue_roots(told, [OLD])) == told
    assert refusal(first_roots, issue_roots(told, [EVIL])) == StatementFault.UNKNOWN_ROOT
    for keys in ((), (PUBLIC[OLD],) * 2, (PUBLIC[OLD][:31],)):
        assert refusal(first_roots, issue_roots(replace(told, keys=keys), [OLD])) == StatementFault.MALFORMED


@pytest.mark.parametrize("keys", [(EVIL, OLD), (OLD, EVIL)])
def test_several_roots_are_accepted_only_if_each_of_them_has_signed(keys):
    told = Roots("north", 2, tuple(PUBLIC[key] for key in keys), (b"ca",))
    for signers in ([EVIL], [OLD]):
        assert refusal(first_roots, issue_roots(told, signers)) == StatementFault.UNKNOWN_ROOT
        assert refusal(trust_in(OLD).with_roots, issue_roots(told, signers)) == StatementFault.UNKNOWN_ROOT
    assert first_roots(issue_roots(told, [OLD, EVIL])) == told


def test_an_armoured_file_is_read_after_mail_and_a_damaged_file_is_named(tmp_path):
    path = tmp_path / "d1.record"
    path.write_text("  " + armoured("record", SIGNED).replace("\n", "\r\n"))
    assert read_armoured("record", path) == SIGNED
    for text in ("", "hello", armoured("request", SIGNED), armoured("record", SIGNED)[:-9]):
        path.write_text(text)
        assert refusal(read_armoured, "record", path) == StatementFault.MALFORMED
    path.write_text(armoured("record", SIGNED).replace("A", "\u00e4", 1))
    with pytest.raises(StatementError, match=rf"{path}.*damaged"):
        read_armoured("record", path)
    with pytest.raises(StatementError, match=f"there is no file {tmp_path / 'gone'}"):
        read_armoured("record", tmp_path / "gone")


def test_fingerprints_are_compared_without_case_and_separators():
    shown = fingerprint(b"key")
    assert statements.same_fingerprint(shown, shown.upper().replace(" ", ":"))
    assert not statements.same_fingerprint(shown, fingerprint(b"other"))
    assert not statements.same_fingerprint(shown, shown[:-1])


@pytest.mark.parametrize("module", [records, statements, trust])
def test_no_module_of_records_imports_torch_or_a_parser_such_as_pickle(module):
    tree = ast.parse(Path(module.__file__).read_text())
    names = {n.module or "" for n in ast.walk(tree) if isinstance(n, ast.ImportFrom)}
    names |= {a.name for n in ast.walk(tree) if isinstance(n, ast.Import) for a in n.names}
    assert not {name.split(".")[0] for name in names} & {"torch", "pickle", "marshal", "msgpack", "json"}
