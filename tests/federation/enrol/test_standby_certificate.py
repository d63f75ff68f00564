"""The coordinator's second certificate is made, renewed and revoked together with the first."""

import json
import time
from dataclasses import replace
from pathlib import Path

import pytest
from cryptography import x509

from protofleet.cli.main import main
from protofleet.federation.enrol import certificates, key_folder, lifecycle
from protofleet.federation.enrol.approval import APPROVAL, MAX_LISTS, MAX_ROOTS, MAX_RULES, read_approval
from protofleet.federation.enrol.authority import Authority, make_authority
from protofleet.federation.enrol.local_federation import enrol, enrol_federation, tls_files
from protofleet.federation.enrol.request import new_request
from protofleet.protocol.link.standby import standby_address, standby_client_id
from protofleet.protocol.security.records import MAX_RECORD
from protofleet.protocol.security.statements import (
    Reader,
    StatementError,
    StatementFault,
    read_armoured,
    unverified_body,
)
from protofleet.protocol.settings.reader import SettingsError
from protofleet.protocol.transport.address import BrokerAddress
from protofleet.protocol.transport.tls import tls_context
from protofleet.protocol.wire.names import COORDINATOR, STANDBY


@pytest.fixture
def do(tmp_path, monkeypatch, capsys):
    """Return a function that runs `protofleet enrol ...` in a fresh folder and returns exit code and output."""
    monkeypatch.chdir(tmp_path)

    def run(line):
        code = main(["enrol", *line.split()])
        return code, "".join(capsys.readouterr())

    assert run("root root --federation lab")[0] == 0
    return run


@pytest.fixture
def lab(do):
    assert do("coordinator --root root --folder coordinator")[0] == 0
    assert do("broker localhost --root root --folder broker")[0] == 0
    return do


def address(folder):
    return standby_address(replace(BrokerAddress(), tls=tls_files(folder / COORDINATOR)))


def installed(folder):
    """Return the coordinator's two certificates."""
    current = folder / COORDINATOR / "current"
    return [
        x509.load_pem_x509_certificate((current / name).read_bytes()) for name in ("tls.crt", "standby.crt")
    ]


def serials(folder, name):
    return {e.serial for e in Authority(folder / "root").register.entries if e.name == name}


def without_standby(folder, root="root", coordinator="coordinator"):
    """Leave the files of an earlier release: one certificate in the folder and in the register."""
    path = folder / root / "register.json"
    register = json.loads(path.read_text())
    register["entries"] = [e for e in register["entries"] if e["name"] != STANDBY]
    path.write_text(json.dumps(register))
    (folder / root / "certs" / f"{STANDBY}.crt").unlink()
    (folder / coordinator / "current" / "standby.crt").unlink()


def test_one_enrolment_of_the_coordinator_gives_it_two_certificates_for_one_key(lab, tmp_path):
    own, second = installed(tmp_path)
    assert certificates.common_name(second.subject) == STANDBY
    assert second.public_key() == own.public_key() and second.serial_number != own.serial_number
    assert second.not_valid_after_utc == own.not_valid_after_utc
    files = address(tmp_path).tls
    assert files.cert.endswith("standby.crt") and files.key == tls_files(tmp_path / COORDINATOR).key
    tls_context(files)  # raises an error if key and certificate do not belong together
    assert {p.name for p in (tmp_path / COORDINATOR / "current").glob("*.key")} == {
        "identity.key", "receive.key", "tls.key",
    }  # fmt: skip
    said = lab("list --root root")[1]
    assert "coordinator.standby  standby      valid" in said


def test_a_coordinator_enrolled_by_request_and_approval_gets_both_certificates(do, tmp_path):
    assert do("request coordinator --federation lab --folder coordinator")[0] == 0
    assert do("approve coordinator/pending/request --root root --part coordinator --yes")[0] == 0
    assert do("install root/approvals/coordinator.approval --folder coordinator --yes")[0] == 0
    assert address(tmp_path).tls.cert.endswith("standby.crt")


def test_a_device_and_a_broker_get_one_certificate_only(lab, tmp_path):
    lab("request d1 --federation lab --folder d1")
    lab("approve d1/pending/request --root root --yes")
    lab("install root/approvals/d1.approval --folder d1 --yes")
    for name in ("d1", "broker"):
        assert not (tmp_path / name / "current" / "standby.crt").exists()


def test_the_second_certificate_is_renewed_only_together_with_the_first(lab, tmp_path):
    before = installed(tmp_path)
    assert "coordinator.standby" not in lab("list --root root --due 400")[1]
    code, said = lab("renew --root root --due 400")
    assert code == 0 and "standby" not in said
    assert lab("install root/approvals/coordinator.approval --folder coordinator")[0] == 0
    for old, new in zip(before, installed(tmp_path), strict=True):
        assert new.serial_number > old.serial_number and new.public_key() == old.public_key()
    for line in ("renew coordinator.standby --root root", "revoke coordinator.standby --root root"):
        code, said = lab(line)
        assert code == 2 and "is renewed and revoked together with coordinator" in said


def test_a_revocation_of_the_coordinator_covers_both_certificates_until_a_new_approval(lab, tmp_path):
    lab("renew coordinator --root root")
    issued = serials(tmp_path, COORDINATOR) | serials(tmp_path, STANDBY)
    assert len(issued) == 4
    assert lab("revoke coordinator --root root")[0] == 0
    authority = Authority(tmp_path / "root")
    assert issued <= set(authority.register.listed)
    assert lifecycle.revoked_names(authority, authority.now()) == {COORDINATOR, STANDBY}
    rules = (tmp_path / "broker" / "current" / "acl").read_text
    assert lab("install root/approvals/broker.approval --folder broker")[0] == 0
    assert all(f"user {name}\ntopic deny protofleet/1/lab/#" in rules() for name in (COORDINATOR, STANDBY))
    lab("request coordinator --federation lab --folder coordinator --new-keys")
    assert lab("approve coordinator/pending/request --root root --part coordinator --yes --replace")[0] == 0
    authority = Authority(tmp_path / "root")
    assert lifecycle.revoked_names(authority, authority.now()) == set()
    assert lab("install root/approvals/broker.approval --folder broker")[0] == 0
    assert "deny protofleet/1/lab/#" not in rules()


def test_a_coordinator_of_an_earlier_release_gets_both_certificates_with_its_next_approval(lab, tmp_path):
    without_standby(tmp_path)
    assert address(tmp_path) is None
    own, record = installed_one(tmp_path), (tmp_path / "root/records/coordinator.record").read_bytes()
    lab("request d1 --federation lab --folder d1")
    lab("approve d1/pending/request --root root --yes")
    lab("revoke d1 --root root")  # writes the coordinator's approval again
    assert lab("install root/approvals/coordinator.approval --folder coordinator")[0] == 0
    assert installed_one(tmp_path) == own and installed(tmp_path)[1].public_key() == own.public_key()
    assert (tmp_path / "root/records/coordinator.record").read_bytes() == record
    assert serials(tmp_path, STANDBY) == {installed(tmp_path)[1].serial_number}
    lab("rotate --root root")  # writes it once more
    assert lab("install root/approvals/coordinator.approval --folder coordinator")[0] == 0
    assert serials(tmp_path, STANDBY) == {installed(tmp_path)[1].serial_number}


def installed_one(folder):
    return x509.load_pem_x509_certificate((folder / COORDINATOR / "current" / "tls.crt").read_bytes())


def test_a_local_federation_of_an_earlier_release_gets_both_certificates_at_its_next_start(tmp_path):
    enrol_federation(tmp_path, "lab", ["d1"])
    assert address(tmp_path)
    without_standby(tmp_path)
    own, rules = installed_one(tmp_path), tmp_path / "broker" / "current" / "acl"
    rules.write_text("# without the topic of a standby\n")
    for _ in range(2):
        enrol_federation(tmp_path, "lab", ["d1"])
        assert address(tmp_path) and installed_one(tmp_path) == own
        assert "user coordinator.standby" in rules.read_text()
    assert len(serials(tmp_path, STANDBY)) == 1


def test_a_certificate_that_an_interrupted_command_left_is_not_used(lab, tmp_path):
    """The register is written after the certificate, so the certificate of a killed command could not be revoked."""
    before = json.loads((tmp_path / "root" / "register.json").read_text())
    lab("renew coordinator --root root")
    left = x509.load_pem_x509_certificate((tmp_path / "root" / "certs" / f"{STANDBY}.crt").read_bytes())
    (tmp_path / "root" / "register.json").write_text(json.dumps(before))
    authority = Authority(tmp_path / "root", clock=lambda: time.time() + 60)
    assert lifecycle.reissue_approvals(authority, COORDINATOR) == [COORDINATOR]
    data = read_armoured(APPROVAL, tmp_path / "root" / "approvals" / "coordinator.approval")
    approval = read_approval(data, [root.public for root in authority.roots])
    given = x509.load_der_x509_certificate(approval.standby).serial_number
    known = {e.serial for e in Authority(tmp_path / "root").register.entries if e.name == STANDBY}
    assert given in known and given != left.serial_number


def test_an_earlier_release_still_reads_the_approval_of_a_coordinator(lab, tmp_path):
    """It reads the fields up to the last one, and uses the field with the second certificate for a broker only."""
    data = read_armoured(APPROVAL, tmp_path / "root" / "approvals" / "coordinator.approval")
    fields = Reader(APPROVAL, unverified_body(APPROVAL, data))
    assert [fields.text(), fields.text(), fields.text()] == ["lab", COORDINATOR, "coordinator"]
    assert fields.number() == installed_one(tmp_path).serial_number
    for most in (MAX_ROOTS, MAX_LISTS, MAX_RECORD, MAX_RECORD, 4096, MAX_LISTS):
        fields.blob(most)
    assert fields.text(MAX_RULES) == ""
    fields.end()


def test_an_approval_whose_second_certificate_is_for_another_key_is_not_installed(lab, tmp_path):
    authority = Authority(tmp_path / "root")
    enrol(authority, tmp_path / "d1", "d1", 30)
    lifecycle.renew(authority, COORDINATOR)
    path = tmp_path / "root" / "certs" / f"{STANDBY}.crt"
    entry, key = authority.register.latest(STANDBY), key_folder.load_keys(tmp_path / "d1" / "current").tls
    root, own = authority.roots[0], x509.load_pem_x509_certificate(path.read_bytes())
    validity = (own.not_valid_before_utc, own.not_valid_after_utc)
    other = certificates.issue_certificate(root.tls_ca, key.public_key(), STANDBY, (), entry.serial, validity)
    path.write_bytes(other.public_bytes(certificates.PEM))
    lifecycle.reissue_approvals(authority, COORDINATOR)
    code, said = lab("install root/approvals/coordinator.approval --folder coordinator")
    assert code == 2 and "is for keys that are not in coordinator" in said


def test_a_rotation_of_the_root_does_not_wait_for_the_second_certificate(lab, tmp_path):
    lab("rotate --root root")
    assert "still use the old root: broker, coordinator;" in lab("list --root root")[1]
    for name in (COORDINATOR, "broker"):
        assert lab(f"renew {name} --root root")[0] == 0
    assert lab("rotate --finish --root root")[0] == 0
    assert lab("install root/approvals/coordinator.approval --folder coordinator")[0] == 0
    own, second = installed(tmp_path)
    assert own.issuer == second.issuer and "CA 2" in certificates.common_name(own.issuer)


@pytest.mark.parametrize("part", ["device", "operator"])
def test_a_new_party_cannot_have_a_name_that_is_reserved_for_the_coordinator(lab, tmp_path, part):
    code, said = lab(f"request coordinator.standby --federation lab --folder x --part {part}")
    assert code == 2 and said.count("\n") == 1
    assert (
        "names that begin with 'coordinator.' are reserved for the coordinator; choose another name" in said
    )
    assert not (tmp_path / "x").exists()
    lab(f"request coordinator2 --federation lab --folder y --part {part}")
    asked = key_folder.load_keys(tmp_path / "y" / "pending")
    for name in ("coordinator.x", STANDBY):
        _, data = new_request("lab", name, (), asked, part)
        with pytest.raises(StatementError) as error:
            lifecycle.review_request(Authority(tmp_path / "root"), data, name, part)
        assert error.value.why in (StatementFault.WRONG_NAME, StatementFault.WRONG_ROLE)
    code, said = lab("fleet made coordinator.7")
    assert code == 2 and "a device of this fleet cannot be called 'coordinator.7'" in said
    assert not (tmp_path / "made" / "devices").exists()


def test_a_coordinator_has_no_second_certificate_if_a_device_has_the_reserved_name(tmp_path, caplog):
    authority = make_authority(tmp_path / "root", "lab", 1.0, durable=False)
    request, data = key_folder.make_request(tmp_path / "d", "lab", STANDBY, (), False, durable=False)
    authority.store(authority.issue(request, 30, "", authority.roots[0]), data)
    lifecycle.renew(authority, STANDBY)
    enrol(authority, tmp_path / COORDINATOR, COORDINATOR, 30)
    assert address(tmp_path) is None and "coordinator.standby is a device" in caplog.text
    with pytest.raises(SettingsError, match="was never enrolled here"):
        lifecycle.renew(authority, "coordinator.other")


def test_a_standby_without_certificates_differs_only_in_its_client_id():
    plain = BrokerAddress("hall", 1883, username="c", password="x")
    assert standby_address(plain) == plain
    only_ca = replace(plain, tls=replace(tls_files(Path("nowhere")), cert=None, key=None))
    assert standby_address(only_ca) == only_ca
    assert standby_client_id("lab") == "lab.coordinator.standby"
