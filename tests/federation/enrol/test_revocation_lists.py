"""A party that holds one of the operator's lists of revoked certificates accepts each later one, over years."""

import os
import shutil
import subprocess
import sys
from dataclasses import replace
from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protofleet.federation.enrol import key_folder, lifecycle
from protofleet.federation.enrol.authority import DAY, Authority, make_authority
from protofleet.federation.enrol.local_federation import enrol
from protofleet.federation.enrol.register import load_register, save_register
from protofleet.protocol.security.enrolment import load_trust
from protofleet.protocol.security.records import Revocations
from protofleet.protocol.security.statements import read_armoured
from protofleet.protocol.security.trust import Trust, first_roots
from tests.support.enrol import ROOT, enrol_in

FEDERATION = "lab"
HOURS_LATER = """
import time
now = time.time
time.time = lambda: now() + 3 * 3600  # before protofleet uses it as a clock
from protofleet.cli.main import program
program()
"""


@pytest.fixture
def folder(tmp_path):
    """Return a folder with a root, a coordinator and a request of d1."""
    authority = make_authority(tmp_path / "root", FEDERATION, 1, durable=False)
    enrol(authority, tmp_path / "coordinator", "coordinator", 30)
    key_folder.make_request(tmp_path / "d1", FEDERATION, "d1", (), new_keys=True, durable=False)
    return tmp_path


@pytest.fixture
def process(folder):
    """Return a function that runs each `protofleet enrol ...` command in the folder as a separate process."""
    return partial(enrol_in, folder)


def test_a_list_is_accepted_after_the_revoked_certificate_has_expired(process, folder):
    """A certificate that is valid for some minutes is revoked and then expires; hosts keep the list."""
    process("approve d1/pending/request --root root --yes --days 0.01")
    process("revoke d1 --root root")
    process("install root/approvals/coordinator.approval --folder coordinator")
    held = load_trust(folder / "coordinator/current").revoked
    assert len(held.serials) == 1
    hours_later(folder, "renew coordinator --root root")
    hours_later(folder, "install root/approvals/coordinator.approval --folder coordinator")
    assert load_trust(folder / "coordinator/current").revoked == held, "one version, one list"


def hours_later(folder, line):
    """Run the command with a clock that is 3 hours ahead.

    A certificate of some minutes must not end too early, and the test cannot wait for its end.
    """
    done = subprocess.run(
        [sys.executable, "-m", "tests.support.source", HOURS_LATER, "enrol", *line.split()], cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr


class Years:
    """An operator's folder over years, with a party that must accept every list that is published."""

    def __init__(self, folder):
        self.now = 1_800_000_000.0
        make_authority(folder, FEDERATION, 40, durable=False, clock=self.clock)
        self.folder, self.names, self.seen = folder, 0, {}
        self.trust = None
        self.copy = folder.parent / "copy"
        self.save_copy()

    def clock(self):
        return self.now

    def opened(self):
        return Authority(self.folder, durable=False, clock=self.clock)

    def enrol(self, days):
        self.names += 1
        enrol(self.opened(), self.folder.parent / f"p{self.names}", f"p{self.names}", days)

    def revoke(self, canary):
        authority = self.opened()
        name = next((e.name for e in authority.register.current_entries(self.now)), None)
        if name is None:
            return
        also = []
        if canary:
            key = key_folder.load_keys(self.folder.parent / name / "current").tls.public_key()
            also = [authority.issue_check_certificate("check", key, 600)[0]]
            authority.save()
        lifecycle.revoke(authority, name, "", also)

    def save_copy(self):
        shutil.rmtree(self.copy, ignore_errors=True)
        shutil.copytree(self.folder, self.copy)

    def restore_and_revoke(self):
        shutil.rmtree(self.folder)
        shutil.copytree(self.copy, self.folder)
        self.now += 60  # a copy takes longer
        self.enrol(2)  # so that the root knows a name, however old the copy is
        self.revoke(canary=True)

    def published(self):
        """Check that the party accepts the list of an approval made now, and that each version has one content."""
        authority = self.opened()
        authority.save()
        told = read_armoured("revocations", self.folder / "revoked.statement")
        roots = read_armoured("roots", self.folder / "roots.statement")
        for data in (told, authority.revoked_statement()):
            if self.trust is None:
                self.trust = Trust(first_roots(roots), Revocations(FEDERATION))
            self.trust = self.trust.with_roots(roots).with_revocations(data)
            held = self.trust.revoked
            assert self.seen.setdefault(held.version, held.serials) == held.serials
        good = {e.serial for e in authority.register.entries if e.revoked_at and self.now <= e.not_after}
        assert good <= held.serials, "what is revoked and has not ended is in the list"


ACTIONS = st.one_of(
    st.tuples(st.just("wait"), st.sampled_from([0.2, 60, 700, 3 * DAY])),
    st.tuples(st.just("enrol"), st.sampled_from([0.01, 2, 300])),
    st.tuples(st.just("revoke"), st.booleans()),
    st.tuples(st.sampled_from(["copy", "restore"]), st.none()),
)


@given(st.lists(ACTIONS, max_size=8))
@settings(max_examples=8, deadline=None)
def test_every_later_list_is_accepted_after_any_actions_of_an_operator(tmp_path_factory, actions):
    years = Years(tmp_path_factory.mktemp("years") / "root")
    years.published()
    for action, value in [("enrol", 2), *actions, ("revoke", True), ("wait", 700), ("wait", 3 * DAY)]:
        match action:
            case "wait":
                years.now += value
            case "enrol":
                years.enrol(value)
            case "revoke":
                years.revoke(value)
            case "copy":
                years.save_copy()
            case "restore":
                years.restore_and_revoke()
        years.published()


def test_a_register_of_an_earlier_form_gives_lists_that_every_party_accepts(process, folder):
    """The version of such a register may have had two contents already; the next version has one."""
    process("approve d1/pending/request --root root --yes")
    process("revoke d1 --root root")
    register = load_register(folder / "root")
    save_register(folder / "root", replace(register, listed=None), durable=False)
    old = Authority(folder / "root").revoked_statement()
    trust = load_trust(folder / "coordinator/current").with_revocations(old)
    assert trust.revoked.version > register.version and trust.revoked.serials == set(register.listed)
    process("renew coordinator --root root")
    process("install root/approvals/coordinator.approval --folder coordinator")
