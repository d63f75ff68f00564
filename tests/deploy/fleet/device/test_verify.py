"""A host accepts only files that its root has signed for it; the real ssh-keygen verifies the signatures."""

import os
import shutil
import subprocess

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from protofleet.deploy.fleet.device.verify import ReleaseRefusedError, check_folder, check_roots, digest_of
from protofleet.deploy.fleet.manifest import files_of, issue_manifest
from protofleet.federation.enrol.authority import Authority, make_authority
from protofleet.federation.enrol.lifecycle import begin_rotation, finish_rotation
from protofleet.federation.enrol.ssh_signatures import ROOTS_NAMESPACE, allowed_signers, sign
from protofleet.protocol.security.statements import read_armoured
from protofleet.protocol.security.trust import ROOTS, first_roots
from protofleet.protocol.settings.reader import SettingsError

SUBJECT = "device board-1"
NOT_OURS = "no root of this host has signed"
pytestmark = pytest.mark.skipif(shutil.which("ssh-keygen") is None, reason="there is no ssh-keygen here")


class Place:
    """A host: the folder of the roots that it holds, and the folder to which files are sent."""

    def __init__(self, folder):
        self.etc, self.incoming = folder / "etc", folder / "incoming"
        self.etc.mkdir(parents=True)

    def send_roots(self, authority, changes=None):
        """Send the roots as a deployment does. `changes` replaces texts by the names of their files."""
        shutil.rmtree(self.incoming, ignore_errors=True)
        self.incoming.mkdir()
        text, signatures = authority.allowed_signers()
        files = {"roots": (authority.folder / "roots.statement").read_text()}
        files |= {"allowed_signers": text, "allowed_signers.sig": signatures}
        if (held := self.etc / "roots").exists():
            files["held_signers"] = signers_in(held)
        for name, content in (files | (changes or {})).items():
            (self.incoming / name).write_text(content)

    def pin(self, authority, changes=None):
        self.send_roots(authority, changes)
        check_roots(str(self.incoming), str(self.etc))
        for name in ("allowed_signers", "roots"):
            shutil.copy(self.incoming / name, self.etc)
        return self

    def pin_as_an_older_release(self, authority):
        (self.etc / "allowed_signers").unlink(missing_ok=True)
        shutil.copy(authority.folder / "roots.statement", self.etc / "roots")
        return self

    def send(self, authority, subject=SUBJECT, keys=None, federation="lab"):
        """Send two files with their manifest."""
        shutil.rmtree(self.incoming, ignore_errors=True)
        self.incoming.mkdir()
        (self.incoming / "settings").write_text("rounds = 3\n")
        (self.incoming / "unit").write_text("[Service]\n")
        for name, text in issue_manifest(
            federation, subject, files_of(self.incoming), keys or authority.keys
        ).items():
            (self.incoming / name).write_text(text)

    def check(self, subject=SUBJECT, prune=False):
        check_folder(str(self.incoming), str(self.etc), subject, prune)


def signers_in(statement):
    return allowed_signers(first_roots(read_armoured(ROOTS, statement)), digest_of(str(statement)))


def root_in(folder, federation="lab"):
    return make_authority(folder, federation, 10, durable=False)


@pytest.fixture
def root(tmp_path):
    return root_in(tmp_path / "root")


@pytest.fixture
def host(tmp_path, root):
    made = Place(tmp_path / "host").pin(root)
    made.send(root)
    made.check()
    return made


def test_a_signature_has_the_same_bytes_as_a_signature_of_ssh_keygen(tmp_path):
    key, file = Ed25519PrivateKey.generate(), tmp_path / "file"
    (tmp_path / "key").write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption()))
    (tmp_path / "key").chmod(0o600)
    for size in (0, 1, 5000):
        file.write_bytes(os.urandom(size))
        words = ["ssh-keygen", "-q", "-Y", "sign", "-f", str(tmp_path / "key"), "-n", "a-namespace"]
        theirs = subprocess.run(
            words, stdin=file.open("rb"), capture_output=True, text=True, check=True
        ).stdout
        assert sign("a-namespace", file.read_bytes(), [key]) == theirs


def test_one_changed_byte_of_a_manifest_its_signature_or_a_file_is_refused(host):
    for name, step in (("manifest", 9), ("manifest.sig", 31), ("settings", 4)):
        path = host.incoming / name
        good = path.read_bytes()
        for at in range(0, len(good), step):
            path.write_bytes(good[:at] + bytes([good[at] ^ 1]) + good[at + 1 :])
            with pytest.raises(ReleaseRefusedError):
                host.check()
        path.write_bytes(good)
    host.check()


def test_an_extra_file_a_missing_file_and_a_link_are_refused(host):
    extra, unit = host.incoming / "approval", host.incoming / "unit"
    extra.touch()
    with pytest.raises(ReleaseRefusedError, match="approval is not in the signed manifest"):
        host.check()
    host.check(prune=True)
    assert not extra.exists()
    text = unit.read_text()
    unit.unlink()
    with pytest.raises(ReleaseRefusedError, match="unit is missing, but the signed manifest lists it"):
        host.check()
    (host.incoming.parent / "unit").write_text(text)
    unit.symlink_to(host.incoming.parent / "unit")
    with pytest.raises(
        ReleaseRefusedError, match="unit differs from the file that the signed manifest lists"
    ):
        host.check()


@pytest.mark.parametrize(
    "text", ["", "no signature\n", "-----BEGIN SSH SIGNATURE-----\n\n-----END SSH SIGNATURE-----\n"]
)
def test_a_manifest_without_a_signature_is_refused(host, text):
    (host.incoming / "manifest.sig").write_text(text)
    with pytest.raises(ReleaseRefusedError, match=NOT_OURS):
        host.check()
    (host.incoming / "manifest.sig").unlink()
    with pytest.raises(ReleaseRefusedError, match=r"manifest.sig cannot be read"):
        host.check()


def test_a_manifest_of_another_root_host_or_federation_is_refused(host, root, tmp_path):
    host.send(root, keys=root_in(tmp_path / "other").keys)
    with pytest.raises(ReleaseRefusedError, match=NOT_OURS):
        host.check()
    host.send(root, "device board-2")
    with pytest.raises(
        ReleaseRefusedError, match="is for device board-2 in lab, and not for device board-1 in lab"
    ):
        host.check()
    host.send(root, federation="plant")
    with pytest.raises(
        ReleaseRefusedError, match="is for device board-1 in plant, and not for device board-1 in lab"
    ):
        host.check()


def test_a_signature_for_another_purpose_is_refused(host, root):
    manifest = (host.incoming / "manifest").read_bytes()
    (host.incoming / "manifest.sig").write_text(sign(ROOTS_NAMESPACE, manifest, root.keys))
    with pytest.raises(ReleaseRefusedError, match=NOT_OURS):
        host.check()
    text, _ = root.allowed_signers()
    with pytest.raises(ReleaseRefusedError, match=NOT_OURS):
        host.pin(root, {"allowed_signers.sig": sign("protofleet-manifest", text.encode(), root.keys)})


def test_a_name_with_a_line_break_is_not_signed(root):
    with pytest.raises(SettingsError, match="must be printable"):
        issue_manifest("lab", SUBJECT, {"a\nb": "0" * 64}, root.keys)


def test_a_host_follows_a_rotation_of_the_root_and_then_refuses_the_old_root(host, root):
    both = begin_rotation(root, 10)
    host.pin(both)
    host.send(both, keys=[both.keys[0]])
    host.check()
    earlier = {name: (both.folder / name).read_text() for name in ("allowed_signers", "allowed_signers.sig")}
    earlier["roots"] = (both.folder / "roots.statement").read_text()
    last = finish_rotation(Authority(both.folder, durable=False), force=True)
    host.send(last, keys=[last.keys[0]])
    host.check()
    host.pin(last)
    host.send(last, keys=[both.keys[0]])
    with pytest.raises(ReleaseRefusedError, match=NOT_OURS):
        host.check()
    with pytest.raises(ReleaseRefusedError, match=r"cannot replace .* remove .*/etc/roots on this host"):
        host.pin(last, earlier)


def test_a_host_that_was_offline_during_a_rotation_accepts_the_new_root(tmp_path, root, host):
    last = finish_rotation(Authority(begin_rotation(root, 10).folder, durable=False), force=True)
    again = Authority(last.folder, durable=False)
    host.pin(again)
    host.send(again)
    host.check()


def test_a_host_refuses_older_roots_and_roots_of_another_federation(tmp_path, root, host):
    copy = tmp_path / "copy"
    shutil.copytree(root.folder, copy)
    both = begin_rotation(root, 10)
    host.pin(both)
    with pytest.raises(
        ReleaseRefusedError,
        match=r"cannot replace version \d+ of .* lab; .* remove .*/etc/roots on this host",
    ):
        host.pin(Authority(copy, durable=False))
    for name in ("lab", "plant"):
        with pytest.raises(ReleaseRefusedError, match=rf"{NOT_OURS}.* remove .*/etc/roots on this host"):
            host.pin(root_in(tmp_path / f"stranger-{name}", name))
    (host.etc / "roots").unlink()
    host.pin(Authority(tmp_path / "stranger-plant", durable=False))


def test_the_first_roots_need_the_signatures_of_all_and_the_right_statement(tmp_path, root):
    both, bare = begin_rotation(root, 10), Place(tmp_path / "bare")
    text, _ = both.allowed_signers()
    for signer in both.keys:
        with pytest.raises(ReleaseRefusedError, match=NOT_OURS):
            bare.pin(both, {"allowed_signers.sig": sign(ROOTS_NAMESPACE, text.encode(), [signer])})
    stranger = (root_in(tmp_path / "other").folder / "roots.statement").read_text()
    with pytest.raises(ReleaseRefusedError, match="is not the statement whose SHA-256 is in"):
        bare.pin(both, {"roots": stranger})
    for text in ("", "lab ssh-ed25519 AAAA\n", text.splitlines()[0]):
        with pytest.raises(ReleaseRefusedError, match="is not a file of allowed signers"):
            bare.pin(both, {"allowed_signers": text})
    bare.pin(both)


def test_a_host_of_an_earlier_release_accepts_only_successors_of_its_own_root(tmp_path, root):
    older = Place(tmp_path / "older").pin_as_an_older_release(root)
    older.send(root)
    with pytest.raises(
        ReleaseRefusedError, match="this host has no file .*/etc/allowed_signers with the roots"
    ):
        older.check()
    stranger = root_in(tmp_path / "other")
    for held in (signers_in(older.etc / "roots"), stranger.allowed_signers()[0]):
        with pytest.raises(ReleaseRefusedError, match=r"remove .*/etc/roots on this host"):
            older.pin(stranger, {"held_signers": held})
    both = begin_rotation(root, 10)
    older.pin(both)
    older.send(both)
    older.check()


def test_an_earlier_release_may_replace_roots_between_two_deployments(host, root):
    both = begin_rotation(root, 10)
    host.pin_as_an_older_release(both)
    last = finish_rotation(Authority(both.folder, durable=False), force=True)
    host.pin(last)
    host.send(last)
    host.check()


def test_roots_that_an_earlier_release_has_replaced_are_valid(host, root):
    """The file of allowed signers on the host names the earlier statement, so it is no longer valid."""
    both = begin_rotation(root, 10)
    shutil.copy(both.folder / "roots.statement", host.etc / "roots")
    host.send(both)
    with pytest.raises(ReleaseRefusedError, match="deploy again"):
        host.check()
    host.pin(both)
    host.send(both)
    host.check()


def test_a_root_folder_of_an_earlier_release_creates_its_allowed_signers(tmp_path, root):
    for name in ("allowed_signers", "allowed_signers.sig"):
        (root.folder / name).unlink()
    bare = Place(tmp_path / "bare").pin(Authority(root.folder, durable=False))
    assert (bare.etc / "allowed_signers").read_text() == root.allowed_signers()[0]


OLD_USAGE = "echo 'unknown option -- Y\nusage: ssh-keygen [-q] [-b bits]' >&2; exit 1"


@pytest.mark.parametrize(
    ("program", "words"),
    [
        (None, "the program ssh-keygen, .* is missing"),
        (OLD_USAGE, "ssh-keygen is older than OpenSSH 8.2"),
    ],
)
def test_the_error_for_a_missing_or_old_ssh_keygen_names_the_fix(host, tmp_path, monkeypatch, program, words):
    programs = tmp_path / "programs"
    programs.mkdir()
    if program:
        (programs / "ssh-keygen").write_text(f"#!/bin/sh\n{program}\n")
        (programs / "ssh-keygen").chmod(0o755)
    monkeypatch.setenv("PATH", str(programs))
    with pytest.raises(ReleaseRefusedError, match=f"{words}.*`apt-get install openssh-client`"):
        host.check()
