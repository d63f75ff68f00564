"""Steps of root on a device whose own process is hostile: real root, a real user, and links where root writes."""

import hashlib
import os

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from protofleet.deploy.fleet.device.facts import read_facts
from protofleet.deploy.fleet.device.roles import ROLES
from protofleet.deploy.fleet.device.scripts import HostRole
from protofleet.federation.enrol.authority import make_authority
from protofleet.protocol.security.records import MAX_SERIALS, REVOCATIONS, Revocations, issue_revocations
from protofleet.protocol.security.statements import armoured
from protofleet.protocol.security.trust import ROOTS
from tests.deploy.fleet.root_board import NoBoardError, RootBoard

RELEASE = "a" * 16
SECRET = "-----BEGIN PROTOFLEET REQUEST----- the secret of another -----END PROTOFLEET REQUEST-----"
PROGRAM = """#!/bin/sh
id -un >>/opt/ran-as
for open in /proc/self/fd/*; do readlink "$open"; done >/var/lib/protofleet/open 2>/dev/null
exit 0
"""
VICTIM = "/etc/victim"  # it and all its files belong to root
NAMES = ("request", "tls.crt", "roots", "coordinator.record", "root.key", "status.json", "card.json")
ALL = " ".join(NAMES)
HOME, KEYS, SHOWN = "/var/lib/protofleet", "/var/lib/protofleet/keys", "/run/protofleet"
LINKS = {
    "all keys": f"rm -rf {KEYS}; ln -s {VICTIM} {KEYS}",
    "the keys in use": f"mkdir -p {KEYS}; ln -s {VICTIM} {KEYS}/current",
    "a set of keys": f"mkdir -p {KEYS}; ln -s {VICTIM} {KEYS}/set-1",
    "pending keys": f"mkdir -p {KEYS}; ln -s {VICTIM} {KEYS}/pending",
    "the request": f"mkdir -p {KEYS}/pending; ln -s {VICTIM}/request {KEYS}/pending/request",
    "the status": f"ln -s {VICTIM}/status.json {SHOWN}/status.json",
    "a version of the model": f"mkdir -p {HOME}/state/models; ln -s {VICTIM} {HOME}/state/models/current",
    "single files": f"mkdir -p {KEYS}/current; for n in {ALL}; do ln -s {VICTIM}/$n {KEYS}/current/$n; done",
}
STEPS = {
    "prepare": lambda board: board.step("prepare", check=False),
    "request": lambda board: board.step("request", RELEASE, "board-1", "lab", check=False),
    "state": lambda board: board.step("state", check=False),
    "erase_keys": lambda board: board.step("erase_keys", check=False),
    "facts": lambda board: board.run("sh", "-s", "--", "quick", stdin=facts_script(), check=False),
    "deep facts": lambda board: board.run("sh", "-s", "--", "deep", stdin=facts_script(), check=False),
}


def facts_script():
    return HostRole(models=f"{HOME}/state/models").facts


@pytest.fixture
def board():
    try:
        made = RootBoard()
    except NoBoardError as error:
        (pytest.fail if os.environ.get("CI") else pytest.skip)(str(error))
    made.step("prepare")
    release = f"/opt/protofleet/releases/{RELEASE}"
    made.sh(f"install -d {release}/bin; : >{release}/.complete; install -m 0666 /dev/null /opt/ran-as")
    for program in ("protofleet", "python"):
        made.run(
            "sh", "-c", f"cat >{release}/bin/{program}; chmod 755 {release}/bin/{program}", stdin=PROGRAM
        )
    made.sh(
        f"ln -sfn releases/{RELEASE} /opt/protofleet/current; install -d -o protofleet -g protofleet {SHOWN}"
    )
    made.sh(
        f"install -d {VICTIM}; for n in {ALL}; do echo '{SECRET}' >{VICTIM}/$n; chmod 600 {VICTIM}/$n; done"
    )
    yield made
    made.close()


def outside(board):
    """Return owner, mode, size, link target and change time of all files outside the user's own."""
    return board.sh(
        f"find /opt/protofleet /etc/protofleet {VICTIM} /etc/shadow -printf '%p %u %g %m %s %l %C@\\n' | sort"
    )


@pytest.mark.slow
@pytest.mark.parametrize("link", LINKS)
def test_steps_of_root_follow_no_link_of_the_user_of_the_device(board, link):
    board.as_user(LINKS[link])
    before = outside(board)
    digest = hashlib.sha256(f"{SECRET}\n".encode()).hexdigest()
    for name, step in STEPS.items():
        said = step(board)
        told = said.stdout + said.stderr
        assert SECRET not in told and digest not in told, f"{name} prints a file that only root may read"
        assert outside(board) == before, f"{name} has changed a file of another user"
    assert board.sh(f"test -e {KEYS} || test -L {KEYS}; echo $?") == "1", "the keys, or the link, are gone"


@pytest.mark.slow
def test_a_pipe_without_a_writer_and_an_endless_file_block_no_step(board):
    """The test has a pipe that no process writes to, and a file without an end."""
    board.as_user(
        f"mkdir -p {KEYS}/current {KEYS}/pending; mkfifo {KEYS}/current/tls.crt {SHOWN}/status.json"
    )
    board.as_user(f"ln -s /dev/zero {KEYS}/current/roots; ln -s /dev/zero {KEYS}/pending/request")
    assert "end=yes" in board.facts()
    assert "agent" in board.step("state").stdout
    assert len(board.step("request", RELEASE, "board-1", "lab").stdout) <= 1 << 20


def test_programs_of_a_release_get_neither_the_lock_nor_the_script_of_root(board):
    board.step("request", RELEASE, "board-1", "lab")
    assert set(board.sh("cat /opt/ran-as").split()) == {"protofleet"}, "no program of a release runs as root"
    told = board.sh(f"cat {HOME}/open").split()
    assert told[0] == "/dev/null" and not [name for name in told if name.endswith(".lock")], told


def test_no_program_of_a_release_runs_as_root(board):
    for name in ("deep facts", "request"):
        STEPS[name](board)
    assert set(board.sh("cat /opt/ran-as").split()) == {"protofleet"}


@pytest.mark.parametrize("name", ["../../../var/lib/protofleet/evil", "", "a b", "aaaa/../b"])
def test_a_path_is_refused_as_the_name_of_a_release(board, name):
    """A step gets a device's own facts as an argument."""
    board.as_user(f"mkdir -p {HOME}/evil/bin; touch {HOME}/evil/.complete")
    before = outside(board)
    for step in ("build", "load", "request", "enrol", "check", "switch", "block", "allow"):
        said = board.step(step, name, check=False)
        assert said.returncode == 1 and "is not the name of a release" in said.stderr, step
    assert outside(board) == before
    assert board.sh("readlink /opt/protofleet/current") == f"releases/{RELEASE}"


@pytest.mark.parametrize("groups", ["video:x:44:", "video:x:44:\nrender:x:105:", ""])
def test_facts_include_files_of_the_user_with_any_groups_of_the_board(board, groups):
    board.sh(f"sed -i '/^video:/d; /^render:/d' /etc/group; echo '{groups}' | grep . >>/etc/group; true")
    board.as_user(
        f"mkdir -p {KEYS}/current; echo held >{KEYS}/current/tls.crt; echo '{{}}' >{SHOWN}/status.json"
    )
    told = board.facts().split("\0")
    digest = hashlib.sha256(b"held\n").hexdigest()
    assert f"tls={digest}" in told and "status={}" in told


def test_the_facts_have_the_complete_revocation_list_of_a_host(board, tmp_path):
    """The list is as long as allowed. By this list an operator notices a root that was restored from an old copy."""
    key = Ed25519PrivateKey.generate()
    revoked = issue_revocations(Revocations("lab", 7, frozenset(range(MAX_SERIALS))), [key])
    authority = make_authority(tmp_path / "root", "lab", 1, durable=False)
    texts = {"revoked": armoured(REVOCATIONS, revoked), "crl.pem": (crl := authority.crl()).decode()}
    texts["roots"] = armoured(ROOTS, authority.roots_statement())
    for role in (ROLES["broker"], ROLES["coordinator"]):
        for path in (f"{role.keys}/current/revoked", f"{role.keys}/current/crl.pem", f"{role.etc}/roots"):
            text = texts[path.rpartition("/")[2]]
            board.run("sh", "-c", f"mkdir -p $(dirname {path}); cat >{path}", stdin=text)
        facts = HostRole(role).facts
        installed = read_facts(board.run("sh", "-s", "--", "quick", stdin=facts).stdout).installed
        assert installed.held_roots == authority.roots_statement(), role.name
        assert installed.held_revoked == (b"" if role.name == "broker" else revoked), role.name
        assert installed.held_crl == (crl if role.name == "broker" else b""), role.name
