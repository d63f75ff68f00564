"""People enrol with commands and files, from the first key to the last renewal."""

import os
import re
import stat
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from cryptography import x509

from protofleet.cli.main import main
from protofleet.federation.enrol import key_folder, lifecycle
from protofleet.federation.enrol.approval import APPROVAL, unverified_approval
from protofleet.federation.enrol.authority import DAY, Authority, make_authority
from protofleet.federation.enrol.local_federation import enrol, enrol_federation
from protofleet.federation.enrol.request import REQUEST, read_request
from protofleet.protocol.security.enrolment import (
    LOOK_SECONDS,
    KnownRecords,
    load_enrolled,
    load_trust,
)
from protofleet.protocol.security.keyfiles import KeyFileError, private_pem
from protofleet.protocol.security.statements import StatementError, StatementFault, armoured, read_armoured
from protofleet.protocol.settings.reader import SettingsError

FEDERATION = "lab"


@pytest.fixture
def do(tmp_path, monkeypatch, capsys):
    """Return a function that runs `protofleet enrol ...` in a fresh folder and returns exit code and output."""
    monkeypatch.chdir(tmp_path)

    def run(line):
        code = main(["enrol", *line.split()])
        told = capsys.readouterr()
        assert "PRIVATE" not in told.out + told.err
        return code, told.out + told.err

    return run


@pytest.fixture
def lab(do):
    for line in (
        f"root root --federation {FEDERATION}",
        "coordinator --root root --folder coordinator",
        "broker localhost 127.0.0.1 --root root --folder broker",
        f"request d1 --federation {FEDERATION} --folder d1",
    ):
        code, said = do(line)
        assert code == 0, said
    return do


def shown(said):
    return re.search(r"fingerprint.*?: ((?:[0-9a-f]{4} ?){8})", said)[1].strip().replace(" ", "")


def why(call, *arguments, **options):
    with pytest.raises(StatementError) as error:
        call(*arguments, **options)
    return error.value.why


def private_files(folder):
    """Return every file below the folder whose content holds a private key."""
    return [p for p in folder.rglob("*") if p.is_file() and b"PRIVATE KEY" in p.read_bytes()]


def test_a_device_joins_by_a_request_an_approval_and_two_fingerprints(lab, tmp_path):
    asked = shown(lab(f"request d1 --federation {FEDERATION} --folder d1")[1])
    code, said = lab(f"approve d1/pending/request --root root --fingerprint {asked}")
    assert code == 0 and "the device d1 asks to join lab" in said
    root = Authority(tmp_path / "root").fingerprint.replace(" ", "")
    code, said = lab(f"install root/approvals/d1.approval --folder d1 --fingerprint {root}")
    assert code == 0 and "d1 is enrolled in lab until" in said
    mine = load_enrolled(tmp_path / "d1" / "current", time.time())
    assert (mine.record.name, mine.record.federation, mine.record.role) == ("d1", FEDERATION, "device")
    assert KnownRecords(tmp_path / "d1" / "current", mine.trust, role="coordinator")["coordinator"]
    assert KnownRecords(tmp_path / "root" / "records", mine.trust)["d1"] == mine.record
    assert not (tmp_path / "d1" / "pending").exists()


def test_a_wrong_fingerprint_stops_an_approval_and_an_installation(lab, tmp_path):
    code, said = lab("approve d1/pending/request --root root --fingerprint 0123456789abcdef")
    assert code == 2 and "not approved" in said and not (tmp_path / "root/approvals/d1.approval").exists()
    lab("approve d1/pending/request --root root --yes")
    code, said = lab("install root/approvals/d1.approval --folder d1 --fingerprint 0123")
    assert (
        code == 2
        and "the root's fingerprint was not confirmed" in said
        and not (tmp_path / "d1/current").exists()
    )


def test_approve_without_a_terminal_needs_a_fingerprint_or_yes(lab):
    code, said = lab("approve d1/pending/request --root root")
    assert code == 2 and "use --fingerprint or --yes" in said


def test_private_keys_stay_in_their_folder_and_have_mode_0600(lab, tmp_path):
    lab("approve d1/pending/request --root root --yes")
    keys = {p.name for p in private_files(tmp_path / "d1")}
    assert keys == {"identity.key", "receive.key", "tls.key"}
    lab("install root/approvals/d1.approval --folder d1 --yes")
    for folder in ("root", "d1", "coordinator", "broker"):
        assert stat.S_IMODE((tmp_path / folder).stat().st_mode) == 0o700
    everywhere = private_files(tmp_path)
    assert {stat.S_IMODE(p.stat().st_mode) for p in everywhere} == {0o600}
    secret = {p.read_bytes() for p in private_files(tmp_path / "d1")}
    elsewhere = [p for p in everywhere if p.read_bytes() in secret and tmp_path / "d1" not in p.parents]
    assert elsewhere == []
    assert {p.name for p in private_files(tmp_path / "root")} == {"root.key", "tls-ca.key"}
    assert b"PRIVATE" not in str(os.environ).encode()


def test_a_key_that_others_can_read_is_refused_with_a_fix(lab, tmp_path):
    lab("approve d1/pending/request --root root --yes")
    lab("install root/approvals/d1.approval --folder d1 --yes")
    for name in ("identity.key", "receive.key"):
        path = tmp_path / "d1" / "current" / name
        for mode in (0o644, 0o660, 0o601):
            path.chmod(mode)
            with pytest.raises(
                KeyFileError, match=rf"{name} is open to others \(mode {mode:04o}\); chmod 600"
            ):
                load_enrolled(tmp_path / "d1" / "current", time.time())
        path.chmod(0o640)
        load_enrolled(tmp_path / "d1" / "current", time.time())
    (tmp_path / "root/roots/1/root.key").chmod(0o644)
    assert lab("list --root root") == (2, lab("list --root root")[1])
    assert "is open to others" in lab("list --root root")[1]


def test_a_request_changed_on_its_way_is_refused(lab, tmp_path):
    data = read_armoured(REQUEST, tmp_path / "d1/pending/request")
    for at in range(len(data)):
        changed = data[:at] + bytes([data[at] ^ 4]) + data[at + 1 :]
        assert why(read_request, changed) in (
            StatementFault.MALFORMED,
            StatementFault.BAD_SIGNATURE,
            StatementFault.UNKNOWN_ROOT,
        )


def test_an_approval_changed_on_its_way_is_refused_and_changes_nothing(lab, tmp_path):
    lab("approve d1/pending/request --root root --yes")
    data = key_folder.read_approval_file(tmp_path / "root/approvals/d1.approval")
    wanted = key_folder.expect_fingerprint(Authority(tmp_path / "root").fingerprint)
    for at in range(0, len(data), 23):
        changed = data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]
        assert why(key_folder.install, tmp_path / "d1", changed, wanted, time.time()) in (
            StatementFault.MALFORMED, StatementFault.BAD_SIGNATURE, StatementFault.UNKNOWN_ROOT,
        )  # fmt: skip
        assert not (tmp_path / "d1/current").exists()
    key_folder.install(tmp_path / "d1", data, wanted, time.time())


def test_a_request_of_another_federation_and_an_approval_of_another_device_are_refused(lab, tmp_path):
    other = make_authority(tmp_path / "other", "elsewhere", 1)
    data = read_armoured(REQUEST, tmp_path / "d1/pending/request")
    assert why(lifecycle.review_request, other, data) == StatementFault.WRONG_FEDERATION
    lab("approve d1/pending/request --root root --yes")
    lab(f"request d2 --federation {FEDERATION} --folder d2")
    code, said = lab("install root/approvals/d1.approval --folder d2 --yes")
    assert code == 2 and "is for keys that are not in d2" in said
    lab("install root/approvals/d1.approval --folder d1 --yes")
    evil = make_authority(tmp_path / "evil", FEDERATION, 1)
    forged = lifecycle.approve(evil, lifecycle.review_request(evil, data))
    assert (
        why(key_folder.install, tmp_path / "d1", forged, lambda seen: True, time.time())
        == StatementFault.UNKNOWN_ROOT
    )


def test_an_enrolled_name_gets_other_keys_only_with_the_option_replace(lab, tmp_path):
    lab("approve d1/pending/request --root root --yes")
    lab(f"request d1 --federation {FEDERATION} --folder intruder")
    code, said = lab("approve intruder/pending/request --root root --yes")
    assert code == 2 and "other keys; if the keys of this name were really replaced, use --replace" in said
    assert lab("approve intruder/pending/request --root root --yes --replace")[0] == 0
    code, said = lab(f"request d1 --federation {FEDERATION} --host x --folder b")
    assert (
        code == 0 and "the name of a device already" in lab("approve b/pending/request --root root --yes")[1]
    )


def test_a_renewal_keeps_the_keys_and_an_older_approval_is_refused(lab, tmp_path):
    lab("approve d1/pending/request --root root --yes --days 10")
    first = (tmp_path / "root/approvals/d1.approval").read_text()
    lab("install root/approvals/d1.approval --folder d1 --yes")
    before = load_enrolled(tmp_path / "d1/current", time.time()).record
    assert "d1" in lab("list --root root --due 11")[1] and "d1" not in lab("list --root root --due 9")[1]
    assert lab("renew --due 11 --root root")[0] == 0
    assert lab("install root/approvals/d1.approval --folder d1")[0] == 0  # the root is known by now
    after = load_enrolled(tmp_path / "d1/current", time.time()).record
    assert (after.sign, after.receive) == (before.sign, before.receive)
    assert after.serial > before.serial and after.not_after > before.not_after + 300 * DAY
    (tmp_path / "old").write_text(first)
    code, said = lab("install old --folder d1")
    assert code == 2 and "is older than" in said
    assert len(list((tmp_path / "d1").glob("set*"))) == 2


def test_an_expired_record_is_the_first_due_one_and_can_be_renewed(lab, tmp_path):
    lab("approve d1/pending/request --root root --yes --days 0.00001")
    while "expired" not in lab("list --root root")[1]:  # this takes one second at most
        pass
    due = lab("list --root root --due 400")[1].splitlines()
    assert due[0].split()[:3] == ["d1", "device", "expired"], due
    assert lab("list --root root --due 0")[1].split()[0] == "d1"
    assert lab("renew --due 0 --root root")[0] == 0
    assert "expired" not in lab("list --root root --due 400")[1]
    assert lab("install root/approvals/d1.approval --folder d1 --yes")[0] == 0
    lab("revoke d1 --root root")
    assert "d1" not in lab("list --root root --due 400")[1], "a revoked device is not due for a renewal"


def test_new_keys_are_not_used_before_they_are_approved(lab, tmp_path):
    lab("approve d1/pending/request --root root --yes")
    lab("install root/approvals/d1.approval --folder d1 --yes")
    before = load_enrolled(tmp_path / "d1/current", time.time()).record
    lab(f"request d1 --federation {FEDERATION} --folder d1 --new-keys")
    assert load_enrolled(tmp_path / "d1/current", time.time()).record == before
    lab("approve d1/pending/request --root root --yes --replace")
    assert lab("install root/approvals/d1.approval --folder d1")[0] == 0
    after = load_enrolled(tmp_path / "d1/current", time.time()).record
    assert after.sign != before.sign and after.receive != before.receive


def test_a_revoked_device_is_refused_until_it_is_approved_with_new_keys(lab, tmp_path):
    lab("approve d1/pending/request --root root --yes")
    lab("install root/approvals/d1.approval --folder d1 --yes")
    code, said = lab("revoke d1 --root root --reason stolen")
    assert code == 0 and "root/approvals/broker.approval" in said and "enrol cut d1" in said
    assert "revoked" in lab("list --root root")[1] and "(stolen)" in lab("list --root root")[1]
    lab("install root/approvals/coordinator.approval --folder coordinator")
    trust = load_trust(tmp_path / "coordinator/current")
    record = (tmp_path / "d1/current/identity.record").read_text()
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept/d1.record").write_text(record)  # a copy that a person has kept
    known = KnownRecords(tmp_path / "kept", trust)
    assert "d1" not in known and why(known.admitted, "d1") == StatementFault.REVOKED
    assert lab("revoke d1 --root root")[0] == 2 and lab("renew d1 --root root")[0] == 2
    lab(f"request d1 --federation {FEDERATION} --folder d1 --new-keys")
    approval = tmp_path / "root/approvals/broker.approval"
    assert "user d1\ntopic deny" in unverified_approval(read_armoured(APPROVAL, approval)).rules
    code, said = lab("approve d1/pending/request --root root --yes")  # it may come back, with other keys
    assert code == 0 and "d1 was revoked before, and the brokers deny this name until" in said
    assert (
        "root/approvals/broker.approval: install this file on the broker's machine with `protofleet" in said
    )
    assert "user d1" not in unverified_approval(read_armoured(APPROVAL, approval)).rules


def test_changes_of_records_are_noticed_during_a_run(tmp_path):
    fleet = enrol_federation(tmp_path, FEDERATION, ["d1"])
    now = [time.time()]
    trust = load_trust(fleet.folder_of("coordinator") / "current")
    known = KnownRecords(fleet.root / "records", trust, clock=lambda: now[0])
    assert list(known) == ["d1"] and "d2" not in known and "../d1" not in known
    enrol(fleet.authority(), fleet.folder_of("d2"), "d2", 30)
    assert sorted(known) == ["d1", "d2"]
    now[0] += 31 * DAY
    assert list(known) == ["d1"] and why(known.admitted, "d2") == StatementFault.EXPIRED
    (fleet.root / "records/d1.record").write_text("hello")
    now[0] += LOOK_SECONDS
    assert "d1" not in known


def test_a_record_is_read_at_most_once_a_second_unless_the_clock_was_set_back(tmp_path):
    fleet = enrol_federation(tmp_path, FEDERATION, ["d1", "d2"])
    folder, now = fleet.folder_of("coordinator"), [time.time()]
    trust = load_trust(folder / "current")
    known = KnownRecords(fleet.root / "records", trust, clock=lambda: now[0], follow=folder)
    first = known["d1"]
    (fleet.root / "records/d1.record").unlink()
    now[0] += LOOK_SECONDS / 2
    assert known["d1"] is first and "d2" in known
    now[0] += LOOK_SECONDS / 2
    assert "d1" not in known and "d2" in known
    assert why(known.admitted, "d1") == StatementFault.WRONG_NAME
    (fleet.root / "records/d2.record").unlink()
    assert "d2" in known
    now[0] -= 3600.0
    assert "d2" not in known


def test_a_rotation_replaces_the_root_and_every_party_accepts_the_new_root(lab, tmp_path):
    lab("approve d1/pending/request --root root --yes")
    lab("install root/approvals/d1.approval --folder d1 --yes")
    now = time.time()
    old = load_enrolled(tmp_path / "d1/current", now)
    assert lab("rotate --root root")[0] == 0
    for name in ("broker", "coordinator"):
        assert lab(f"install root/approvals/{name}.approval --folder {name}")[0] == 0
    code, said = lab("rotate --root root --finish")
    assert code == 2 and "these names still use the old root: broker, coordinator, d1" in said
    lab("renew coordinator --root root")  # this is too early, as the devices would not trust it
    assert "coordinator" in lab("rotate --root root --finish")[1]
    lab("renew d1 --root root")
    record = read_armoured("record", tmp_path / "root/records/d1.record")
    both = load_trust(tmp_path / "coordinator/current")
    assert both.admit(record, now).name == "d1"  # the coordinator trusts the old and the new root
    assert why(old.trust.admit, record, now) == StatementFault.UNKNOWN_ROOT
    # No fingerprint is needed, as the old root has signed the new one.
    assert lab("install root/approvals/d1.approval --folder d1")[0] == 0
    for name in ("coordinator", "broker"):
        lab(f"renew {name} --root root")
        assert lab(f"install root/approvals/{name}.approval --folder {name}")[0] == 0
    assert lab("rotate --root root --finish")[0] == 0
    assert not (tmp_path / "root/roots/1/root.key").exists()
    for name in ("coordinator", "broker", "d1"):
        assert lab(f"install root/approvals/{name}.approval --folder {name}")[0] == 0
    trust = load_trust(tmp_path / "d1/current")
    assert len(trust.roots.keys) == len(trust.roots.authorities) == 1
    assert load_enrolled(tmp_path / "d1/current", now).record.name == "d1"
    ends = (tmp_path / "broker/current/ca.crt").read_bytes()
    assert len(x509.load_pem_x509_certificates(ends)) == 1


def test_a_device_that_missed_a_rotation_can_still_install_the_new_root(lab, tmp_path):
    lab("approve d1/pending/request --root root --yes")
    lab("install root/approvals/d1.approval --folder d1 --yes")
    lab("rotate --root root")
    assert lab("rotate --root root --finish --force")[0] == 0
    asleep = load_trust(tmp_path / "d1/current").roots.keys
    lab("renew d1 --root root")
    assert lab("install root/approvals/d1.approval --folder d1")[0] == 0
    keys = load_trust(tmp_path / "d1/current").roots.keys
    assert len(keys) == 1 and asleep != keys


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("list --root nowhere", "nowhere is no root of a federation"),
        ("root root", "holds a root already"),
        ("root r2 --federation a/b", "'a/b' is no name"),
        ("root r2 --years 0", "--years: it is '0', it must be a number, above 0 and at most 50"),
        ("request -- -x", "is no name"),
        ("request b --host a/b", "neither a host name nor an address"),
        ("approve gone --root root --yes", "there is no file gone"),
        ("approve root/register.json --root root --yes", "is no request"),
        ("approve d1/pending/request --root root --yes --days 0", "--days: it is '0'"),
        ("approve d1/pending/request --root root --yes --days 9999", "9999 days end after root 1 expires"),
        ("install gone", "there is no file gone"),
        ("renew --root root", "give the names to renew"),
        ("renew d9 --root root", "d9 was never enrolled here; the enrolled names are broker, coordinator"),
        ("revoke d9 --root root", "d9 was never enrolled here"),
        (
            "revoke coordinator --root root --broker nowhere",
            "no broker of this federation is enrolled in nowhere",
        ),
        ("cut d1 here:1883 --root root", "d1 is not revoked"),
        ("cut d1 here --root root", "not of the form HOST:PORT"),
        ("rotate --root root --finish", "there is only one root"),
        ("fleet f coordinator", "that name is the coordinator's"),
        ("fleet f", "no device is named"),
        ("coordinator --root root --folder coordinator", "holds enrolled keys already"),
        ("rotate --root root --force", "use --force only with --finish"),
        ("rotate --root root --finish --years 3", "--years is for a new root, but --finish makes no root"),
    ],
)
def test_a_wrong_command_ends_with_an_error_that_names_the_fault(lab, line, words):
    code, said = lab(line)
    assert code in (1, 2) and words in said.splitlines()[-1]
    assert "Traceback" not in said


def test_the_repr_of_keys_and_requests_contains_no_private_key(tmp_path):
    request, _ = key_folder.make_request(tmp_path, FEDERATION, "d1", (), new_keys=True)
    keys = key_folder.load_keys(tmp_path / "pending")
    for key in (keys.identity, keys.receive, keys.tls):
        body = b"".join(private_pem(key).splitlines()[1:-1]).decode()
        assert body not in f"{keys!r}{request!r}" and len(body) > 40


def test_a_fleet_in_one_folder_keeps_its_keys_when_it_grows(tmp_path):
    first = enrol_federation(tmp_path, FEDERATION, ["d1"])
    before = (first.folder_of("d1") / "current/tls.key").read_bytes()
    again = enrol_federation(tmp_path, FEDERATION, ["d1", "d2"])
    assert (again.folder_of("d1") / "current/tls.key").read_bytes() == before
    for name in ("d1", "d2", "coordinator"):
        assert load_enrolled(again.folder_of(name) / "current", time.time()).record.name == name


def test_the_error_names_a_damaged_register(lab, tmp_path):
    (tmp_path / "root/register.json").write_text('{"federation": "lab", "entries": 3}')
    code, said = lab("list --root root")
    assert code == 2 and "register.json is damaged: entries" in said


def test_an_approval_is_refused_in_place_of_a_request(tmp_path):
    (tmp_path / "x").write_text(armoured(APPROVAL, b"x"))
    assert why(read_armoured, REQUEST, tmp_path / "x") == StatementFault.MALFORMED
    with pytest.raises(SettingsError):
        Authority(tmp_path)


def test_a_command_with_an_outdated_register_writes_nothing(tmp_path):
    make_authority(tmp_path / "root", "lab", 1, durable=False)
    one, other = Authority(tmp_path / "root", durable=False), Authority(tmp_path / "root", durable=False)
    enrol(one, tmp_path / "d1", "d1", 30)
    third = Authority(tmp_path / "root", durable=False)
    enrol(one, tmp_path / "d2", "d2", 30)
    written = {path: path.read_bytes() for path in (tmp_path / "root").rglob("*") if path.is_file()}
    with pytest.raises(
        SettingsError, match="another command has changed .*root in the meantime; nothing was written"
    ):
        enrol(other, tmp_path / "d3", "d3", 30)
    with pytest.raises(SettingsError, match="run your command again"):
        lifecycle.revoke(third, "d1", "lost")
    assert written == {path: path.read_bytes() for path in (tmp_path / "root").rglob("*") if path.is_file()}
    enrol(Authority(tmp_path / "root", durable=False), tmp_path / "d3", "d3", 30)


def test_concurrent_enrolments_in_one_folder_are_all_kept(tmp_path):
    make_authority(tmp_path / "root", "lab", 1, durable=False)

    def enrolled(name):
        while True:
            try:
                return enrol(Authority(tmp_path / "root", durable=False), tmp_path / name, name, 30)
            except SettingsError as error:
                assert "in the meantime" in str(error)

    names = {f"d{i}" for i in range(8)}
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(enrolled, sorted(names)))
    register = Authority(tmp_path / "root").register
    assert {entry.name for entry in register.entries} == names
    assert len({entry.serial for entry in register.entries}) == 8
