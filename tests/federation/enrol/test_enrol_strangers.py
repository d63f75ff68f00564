"""Invalid requests and forged approvals are refused.

The tests use the commands that people use. Commands whose files a later command reads are separate processes.
"""

import sys
from functools import partial
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import Encoding

from protofleet.cli.main import main
from protofleet.federation.enrol import key_folder, lifecycle
from protofleet.federation.enrol.approval import Approval, issue_approval, read_approval
from protofleet.federation.enrol.authority import Authority, make_authority
from protofleet.federation.enrol.certificates import new_csr, read_csr
from protofleet.federation.enrol.local_federation import enrol
from protofleet.federation.enrol.request import REQUEST, new_request
from protofleet.protocol.security.enrolment import load_trust
from protofleet.protocol.security.records import RECORD
from protofleet.protocol.security.statements import (
    StatementError,
    StatementFault,
    Writer,
    armoured,
    read_armoured,
    sign_statement,
    verified_body,
)
from protofleet.protocol.security.trust import Roots, issue_roots
from tests.support.enrol import enrol_in
from tests.support.small_order import RECEIVE, SIGN, signed_by_nobody

FEDERATION = "lab"
ROOT = Path(__file__).parents[3]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Return the working folder with a root, a coordinator and a request of d1."""
    monkeypatch.chdir(tmp_path)
    authority = make_authority(tmp_path / "root", FEDERATION, 1, durable=False)
    enrol(authority, tmp_path / "coordinator", "coordinator", 30)
    key_folder.make_request(tmp_path / "d1", FEDERATION, "d1", (), new_keys=True, durable=False)
    return tmp_path


@pytest.fixture
def lab(folder, capsys):
    """Return a function that runs `protofleet enrol ...` in the folder and returns its output."""

    def run(line, code=0):
        found = main(["enrol", *line.split()])
        told = capsys.readouterr()
        assert found == code, told
        return told.out + told.err

    return run


@pytest.fixture
def process(folder):
    """Return a function that runs each `protofleet enrol ...` command in the folder as a separate process."""
    return partial(enrol_in, folder)


def why(call, *arguments, **options):
    with pytest.raises(StatementError) as error:
        call(*arguments, **options)
    return error.value.why


def request_of(folder, **other):
    """Return the request that waits in a folder with the fields in `other` replaced, and the key to sign it."""
    keys = key_folder.load_keys(folder / "pending")
    made, _ = new_request(FEDERATION, "d1", (), keys)
    found = {
        "name": "d1",
        "part": "device",
        "hosts": [],
        "sign": made.sign,
        "receive": made.receive,
        "csr": made.csr,
    }
    found |= other
    fields = Writer().text(FEDERATION).text(found["name"]).text(found["part"])
    body = fields.blobs(found["hosts"]).blob(found["sign"]).blob(found["receive"]).blob(found["csr"]).done()
    return body, keys.identity


# -- invalid keys


@pytest.mark.parametrize("key", RECEIVE, ids=bytes.hex)
def test_a_request_with_a_receive_key_of_small_order_is_refused(tmp_path, key):
    key_folder.make_request(tmp_path, FEDERATION, "d1", (), new_keys=True, durable=False)
    body, identity = request_of(tmp_path, receive=key)
    authority = make_authority(tmp_path / "root", FEDERATION, 1, durable=False)
    assert (
        why(lifecycle.review_request, authority, sign_statement(REQUEST, body, [identity]))
        is StatementFault.MALFORMED
    )


@pytest.mark.parametrize("key", SIGN, ids=bytes.hex)
def test_a_request_with_a_signing_key_of_small_order_is_refused(tmp_path, key):
    key_folder.make_request(tmp_path, FEDERATION, "d1", (), new_keys=True, durable=False)
    body, _ = request_of(tmp_path, sign=key)
    authority = make_authority(tmp_path / "root", FEDERATION, 1, durable=False)
    said = why(lifecycle.review_request, authority, signed_by_nobody(REQUEST, body, key))
    assert said in (StatementFault.MALFORMED, StatementFault.BAD_SIGNATURE)
    assert authority.register.entries == ()


def test_approve_prints_one_line_for_a_weak_key_and_issues_nothing(lab, tmp_path):
    body, identity = request_of(tmp_path / "d1", receive=RECEIVE[0])
    (tmp_path / "asked").write_text(armoured(REQUEST, sign_statement(REQUEST, body, [identity])))
    said = lab("approve asked --root root --yes", code=2)
    assert "key to receive with is a point of small order" in said and len(said.splitlines()) == 1
    body, _ = request_of(tmp_path / "d1", sign=SIGN[2])
    (tmp_path / "asked").write_text(armoured(REQUEST, signed_by_nobody(REQUEST, body, SIGN[2])))
    assert "key to sign with is a point of small order" in lab("approve asked --root root --yes", code=2)
    assert not (tmp_path / "root/records/d1.record").exists()


def weak_from_before(root, folder):
    """Enrol d1 as an earlier release did: request, record and register have a receive key of small order."""
    authority = Authority(root, durable=False)
    asked = lifecycle.review_request(authority, read_armoured(REQUEST, folder / "pending" / REQUEST))
    lifecycle.approve(authority, asked)
    body, identity = request_of(folder, receive=RECEIVE[0])
    authority.write("requests/d1.request", armoured(REQUEST, sign_statement(REQUEST, body, [identity])))
    made = verified_body(
        RECORD, read_armoured(RECORD, root / "records/d1.record"), [authority.roots[0].public]
    )
    weak = made.replace(asked.request.receive, RECEIVE[0])
    authority.write("records/d1.record", armoured(RECORD, sign_statement(RECORD, weak, authority.keys)))


def test_a_device_enrolled_earlier_with_a_weak_key_does_not_block_other_devices(lab, tmp_path, caplog):
    weak_from_before(tmp_path / "root", tmp_path / "d1")
    lab("request d2 --federation lab --folder d2")
    lab("approve d2/pending/request --root root --yes --days 20")
    said = lab("renew --due 400 --root root", code=1)
    assert "d1 is not renewed: an invalid request" in said
    assert "approvals/d2.approval (send this file back)" in said
    lab("rotate --root root")
    lab("rotate --finish --force --root root")
    assert "d1 gets no new approval: an invalid request" in caplog.text
    lab("install root/approvals/d2.approval --folder d2 --yes")
    lab("request d1 --federation lab --folder d1 --new-keys")
    assert "enrolled with other keys" in lab("approve d1/pending/request --root root --yes", code=2)
    lab("approve d1/pending/request --root root --yes --replace")
    lab("install root/approvals/d1.approval --folder d1 --yes")


def csr_of(key, version=0):
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "d1")])
    data = x509.CertificateSigningRequestBuilder().subject_name(name).sign(key, hashes.SHA256())
    return data.public_bytes(Encoding.DER).replace(b"\x02\x01\x00", bytes([2, 1, version]), 1)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: csr_of(ec.generate_private_key(ec.SECP256R1()), version=7), "not a valid CSR version"),
        (lambda: csr_of(ec.generate_private_key(ec.SECP384R1())), "not on the curve P-256"),
        (lambda: csr_of(rsa.generate_private_key(65_537, 2048)), "not on the curve P-256"),
        (
            lambda: csr_of(ec.generate_private_key(ec.SECP256R1())).replace(
                bytes.fromhex("2a8648ce3d030107"), bytes.fromhex("2a8648ce3d03010f")
            ),
            "cannot be used",
        ),
        (lambda: csr_of(ec.generate_private_key(ec.SECP256R1())).replace(b"d1", b"d2"), "by its own key"),
        (lambda: b"", "invalid request"),
    ],
)
def test_a_request_with_an_invalid_csr_is_refused_with_the_reason(tmp_path, make, words):
    key_folder.make_request(tmp_path, FEDERATION, "d1", (), new_keys=True, durable=False)
    body, identity = request_of(tmp_path, csr=make())
    authority = make_authority(tmp_path / "root", FEDERATION, 1, durable=False)
    with pytest.raises(StatementError, match=words):
        lifecycle.review_request(authority, sign_statement(REQUEST, body, [identity]))


def test_an_interrupt_while_a_request_is_read_is_raised_unchanged():
    data = new_csr("d1", ec.generate_private_key(ec.SECP256R1()))

    def interrupted_in_its_signature(frame, event, argument):
        """Raise KeyboardInterrupt at the first Python function that the library calls from `read_csr`."""
        if frame.f_code.co_filename != csr_file and frame.f_back.f_code.co_name == "read_csr":
            raise KeyboardInterrupt

    csr_file = read_csr.__code__.co_filename
    before = sys.gettrace()
    sys.settrace(interrupted_in_its_signature)
    try:
        with pytest.raises(KeyboardInterrupt):
            read_csr(data, "d1")
    finally:
        sys.settrace(before)


# -- approvals, and what they are for


def test_a_request_is_approved_only_for_the_part_in_the_command(lab, tmp_path):
    lab("request board --federation lab --folder board --host broker.example")
    said = lab("approve board/pending/request --root root --yes", code=2)
    assert said.splitlines()[-1] == (
        "protofleet: board asks to be enrolled as a broker for broker.example, not as a device; "
        "if this is intended, `protofleet enrol approve --part broker` approves it"
    )
    assert not (tmp_path / "root/approvals/board.approval").exists()
    assert "the broker board for broker.example" in lab(
        "approve board/pending/request --root root --yes --part broker"
    )
    lab("request coordinator --federation lab --folder second")
    assert "as a coordinator, not as a device" in lab(
        "approve second/pending/request --root root --yes", code=2
    )
    said = lab("approve second/pending/request --root root --yes --part coordinator", code=2)
    assert "enrolled with other keys" in said
    assert "as a device, not as a broker" in lab(
        "approve d1/pending/request --root root --yes --part broker", code=2
    )


def test_a_request_is_approved_only_for_the_name_in_the_command(lab, tmp_path):
    said = lab("approve d1/pending/request --root root --yes --name d2", code=2)
    assert "d2 was expected, but the request is for the name d1" in said
    assert not (tmp_path / "root/approvals/d1.approval").exists()
    lab("approve d1/pending/request --root root --yes --name d1")


# -- roots that an owner trusts


def stranger(tmp_path, keys_of, signed_by, approved_by):
    """Forge an approval of d1's request: the attacker makes the record and chooses roots and signers.

    Write it to the file "forged" and return the fingerprint of the honest root.
    """
    evil = make_authority(tmp_path / "evil", FEDERATION, 1, durable=False)
    asked = lifecycle.review_request(evil, read_armoured(REQUEST, tmp_path / "d1/pending" / REQUEST))
    made = read_approval(lifecycle.approve(evil, asked), [evil.roots[0].public])
    honest = Authority(tmp_path / "root", durable=False)
    both = {"honest": honest.roots[0], "evil": evil.roots[0]}
    roots = Roots(
        FEDERATION, 2, tuple(both[w].public for w in keys_of),
        tuple(both[w].tls_ca.cert.public_bytes(Encoding.DER) for w in keys_of),
    )  # fmt: skip
    told = issue_roots(roots, [both[w].key for w in signed_by])
    forged = Approval(
        FEDERATION, "d1", "device", made.serial, told, made.revoked, made.record, b"", made.cert
    )
    (tmp_path / "forged").write_text(
        armoured("approval", issue_approval(forged, [both[w].key for w in approved_by]))
    )
    return honest.fingerprint.replace(" ", "")


@pytest.mark.parametrize("keys_of", [("evil", "honest"), ("honest", "evil")])
def test_a_forged_approval_is_refused_if_the_right_fingerprint_is_given(process, tmp_path, keys_of):
    right = stranger(tmp_path, keys_of, ["evil"], ["evil"])
    said = process(f"install forged --folder d1 --fingerprint {right}", code=2)
    assert not (tmp_path / "d1/current").exists() and len(said.splitlines()) <= 2


def test_a_new_device_refuses_an_approval_that_only_a_retired_root_signed(lab, tmp_path):
    """Both roots have signed the rotation. A thief of the old root signs an approval that names the new root."""
    right = stranger(tmp_path, ["evil", "honest"], ["evil", "honest"], ["evil"])
    said = lab(f"install forged --folder d1 --fingerprint {right}", code=2)
    assert "signed by root" in said and not (tmp_path / "d1/current").exists()


def test_a_new_device_joins_during_a_rotation_with_the_newest_fingerprint(lab, tmp_path):
    lab("rotate --root root")
    lab("approve d1/pending/request --root root --yes")
    newest = Authority(tmp_path / "root").fingerprint.replace(" ", "")
    lab(f"install root/approvals/d1.approval --folder d1 --fingerprint {newest}")
    assert len(load_trust(tmp_path / "d1/current").roots.keys) == 2
    lab("renew coordinator --root root")
    lab("install root/approvals/coordinator.approval --folder coordinator")
    lab("rotate --finish --root root")
    lab("install root/approvals/d1.approval --folder d1")
    lab("request d2 --federation lab --folder d2")
    lab("approve d2/pending/request --root root --yes")
    lab(f"install root/approvals/d2.approval --folder d2 --fingerprint {newest}")
