"""The files that hosts hold show that a root is an older copy."""

import shutil

import pytest

from protofleet.federation.enrol.authority import Authority, make_authority
from protofleet.federation.enrol.lifecycle import begin_rotation, finish_rotation, revoke
from protofleet.federation.enrol.local_federation import enrol
from protofleet.federation.enrol.older_root import Held, problem, read_held
from protofleet.protocol.security.records import REVOCATIONS
from protofleet.protocol.security.statements import read_armoured
from protofleet.protocol.security.trust import ROOTS


@pytest.fixture
def root(tmp_path):
    made = make_authority(tmp_path / "root", "lab", 1, durable=False)
    for name in ("a", "b"):
        enrol(made, tmp_path / name, name, 30)
    shutil.copytree(tmp_path / "root", tmp_path / "copy")
    return made


@pytest.fixture
def copy(root, tmp_path):
    """Return a copy of the root as it was before the test began."""
    return Authority(tmp_path / "copy", durable=False)


def held_of(root, copy):
    """Return what a host of that root holds, as the copy of the root reads it."""
    revoked = read_armoured(REVOCATIONS, root.folder / "revoked.statement")
    return read_held(copy, revoked, read_armoured(ROOTS, root.folder / "roots.statement"), root.crl())


def test_the_x509_list_of_a_broker_contains_the_version_and_the_serial_numbers(root, copy):
    revoke(root, "a", "sold")
    held = read_held(copy, crl=root.crl())
    assert (held.version, held.serials) == (root.register.version, {root.register.latest("a").serial})


def test_lists_of_another_federation_and_damaged_lists_are_ignored(root, tmp_path):
    revoke(root, "a", "sold")
    other = make_authority(tmp_path / "other", "lab", 1, durable=False)
    assert (
        held_of(root, other)
        == Held()
        == read_held(other, b"x", b"y", b"-----BEGIN X509 CRL-----z-----END X509 CRL-----")
    )


def test_a_root_that_is_as_new_as_the_hosts_or_newer_is_accepted(root, copy):
    before = held_of(root, root)
    assert problem(root, {"hub": before}, "ab") == ""
    revoke(root, "a", "sold")
    assert problem(root, {"hub": before, "other": held_of(root, root)}, "ab") == ""


def test_an_older_root_is_refused_with_the_revocation_that_it_lacks(root, copy):
    revoke(root, "a", "sold")
    revoke(root, "b", "lost")
    copy.register = copy.register.with_revocation_lists(copy.now() + 100)  # newer than all lists so far
    revoke(copy, "a", "sold")
    said = problem(copy, {"hub": held_of(root, copy)}, "a")
    assert "it lacks revocations that hub holds; revoked on hosts but valid here: b;" in said
    assert f"`protofleet enrol revoke b --root {copy.folder}`" in said, "it is no device of the fleet's file"


def test_the_fix_for_a_lacking_revocation_of_an_unknown_name_is_a_rotation(root, copy, tmp_path):
    enrol(root, tmp_path / "c", "c", 30)
    revoke(root, "c", "sold")
    said = problem(copy, {"hub": held_of(root, copy)}, "ab")
    assert "revoked on hosts" not in said and "`protofleet enrol rotate`" in said


def test_a_root_from_before_a_rotation_is_detected_by_the_list_of_roots(root, copy):
    finish_rotation(begin_rotation(root, 1), force=True)
    held = read_held(copy, roots=read_armoured(ROOTS, root.folder / "roots.statement"))
    assert "its roots are of version 1, hub holds version" in problem(copy, {"hub": held}, "ab")
