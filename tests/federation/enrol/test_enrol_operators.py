"""Operators are enrolled with the same commands as devices; the root signs which commands they may give."""

import time

import pytest

from protofleet.cli.main import main
from protofleet.federation.enrol.authority import Authority
from protofleet.protocol.security.enrolment import CURRENT, KnownRecords, load_trust
from protofleet.protocol.security.operators import (
    GRANTS,
    OPERATOR,
    KnownOperators,
    OperatorRecord,
    issue_operator,
    load_operator,
    read_operator,
)
from protofleet.protocol.security.records import read_record
from protofleet.protocol.security.statements import StatementError, StatementFault, read_armoured
from protofleet.protocol.security.trust import ROOTS, first_roots


@pytest.fixture
def do(tmp_path, monkeypatch, capsys):
    """Return a function that runs `protofleet enrol ...` in a fresh folder and returns exit code and output."""
    monkeypatch.chdir(tmp_path)

    def run(line):
        code = main(["enrol", *line.split()])
        return code, "".join(capsys.readouterr())

    for line in (
        "root root --federation lab",
        "coordinator --root root --folder coordinator",
        "request alice --part operator --federation lab --folder alice",
    ):
        assert run(line)[0] == 0
    return run


def approve(do, *options, request="alice/pending/request"):
    return do(" ".join((f"approve {request} --root root --yes", *options)))[1]


def known(tmp_path):
    trust = load_trust(tmp_path / "coordinator" / CURRENT)
    return KnownOperators(tmp_path / "root" / "records", trust, follow=tmp_path / "coordinator")


def test_an_operator_joins_renews_and_is_revoked_like_a_device(do, tmp_path):
    said = approve(do, "--grants", "run,view")
    assert "the operator alice asks to join lab, with the grants view,run" in said
    assert "give this statement to the coordinator: root/records/alice.operator" in said
    assert do("install root/approvals/alice.approval --folder alice --yes")[0] == 0
    own, trust, keys = load_operator(tmp_path / "alice" / CURRENT, time.time())
    assert (own.name, own.grants, keys.serial) == ("alice", {"view", "run"}, own.serial)
    assert "coordinator" in KnownRecords(tmp_path / "alice" / CURRENT, trust, role="coordinator")
    assert known(tmp_path)["alice"] == own
    assert "alice" not in KnownRecords(tmp_path / "root" / "records", trust)
    assert do("renew alice --root root")[0] == 0
    assert known(tmp_path)["alice"].grants == own.grants and known(tmp_path)["alice"].serial > own.serial
    assert "grants view,run" in do("list --root root")[1]
    approve(do, "--grants view", request="root/requests/alice.request")
    assert known(tmp_path)["alice"].grants == {"view"}
    statement = tmp_path / "root" / "records" / "alice.operator"
    kept = statement.read_bytes()
    assert do("revoke alice --root root")[0] == 0
    assert not statement.exists()
    assert do("install root/approvals/coordinator.approval --folder coordinator")[0] == 0
    statement.write_bytes(kept)  # A person puts the statement back.
    with pytest.raises(StatementError) as error:
        known(tmp_path).admitted("alice")
    assert error.value.why is StatementFault.REVOKED and "alice" not in known(tmp_path)


def test_approve_refuses_an_operator_with_a_wrong_part_or_wrong_grants(do):
    assert "not as a device" in approve(do)
    assert "an operator needs --grants" in approve(do, "--part operator")
    assert "no grant 'all'; there are view, run" in approve(do, "--grants all")
    assert "no other party has grants" in approve(do, "--part device --grants view")
    assert do("request coordinator --part operator --folder x")[0] == 2
    assert do("request d1 --federation lab --folder d1")[0] == 0
    said = approve(do, "--grants view", request="d1/pending/request")
    assert "asks to be enrolled as a device, not as an operator" in said
    # A name belongs to one part only.
    approve(do, "--grants view")
    assert do("request alice --federation lab --folder other")[0] == 0
    assert "alice is the name of an operator already" in approve(do, request="other/pending/request")


def test_an_operator_statement_is_refused_as_a_record_and_with_changed_grants(do, tmp_path):
    approve(do, "--grants", ",".join(GRANTS))
    authority = Authority(tmp_path / "root")
    roots = first_roots(read_armoured(ROOTS, tmp_path / "root" / "roots.statement")).keys
    data = read_armoured(OPERATOR, tmp_path / "root" / "records" / "alice.operator")
    assert read_operator(data, roots).grants == {*GRANTS}
    for read, changed in ((read_record, data), (read_operator, data[:-70] + b"\x01" + data[-69:])):
        with pytest.raises(StatementError):
            read(changed, roots)
    for grants in (frozenset(), frozenset({"run"}), frozenset({"view", "lead"})):
        made = OperatorRecord("lab", "bob", bytes([9] * 32), bytes([9] * 32), 5, 1, 2, grants)
        assert read_operator(issue_operator(made, authority.roots[0].key), roots) == made
