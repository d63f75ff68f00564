"""After `protofleet enrol rotate` was killed before any change of the operator's folder, the next one completes it.

A separate process imports the commands once, and each command is a fork of it. The command under test dies of SIGKILL
in an audit hook.
"""

import os
import subprocess
import sys
import time

import pytest

from protofleet.protocol.security.enrolment import CURRENT, load_enrolled
from tests.support.enrol import ROOT, enrol_in

pytestmark = pytest.mark.slow  # about forty kills in each test

KILLER = """
import os, shutil, signal, sys
from pathlib import Path
from protofleet.cli import main as cli
from protofleet.federation.enrol import commands

CHANGES = ("os.mkdir", "os.rename", "os.remove", "os.rmdir")

def changes(event, arguments):
    return event in CHANGES or (event == "open" and arguments[2] & (os.O_WRONLY | os.O_RDWR))

def command(folder, line, changes_left=1e9):
    if pid := os.fork():
        return os.waitpid(pid, 0)[1]
    left = [changes_left]
    def hook(event, arguments):
        if changes(event, arguments):
            left[0] -= 1
            if left[0] < 0:
                os.kill(os.getpid(), signal.SIGKILL)
    os.chdir(folder)
    out = os.open("said", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(out, 1), os.dup2(out, 2)
    sys.addaudithook(hook)
    code = cli.main(["enrol", *line.split()])
    sys.stdout.flush()
    os._exit(code)

place, killed, next_ones = Path(sys.argv[1]), sys.argv[2], sys.argv[3:]
for at in range(1000):
    folder = place / f"killed-{at}"
    shutil.copytree(place / "whole", folder, symlinks=True)
    status = command(folder, killed, at)
    if status not in (0, signal.SIGKILL) or any(command(folder, line) for line in next_ones):
        sys.exit(f"{folder}: {(folder / 'said').read_text()}")
    if status == 0:
        break
"""


def killed_at_each_step(place, line, *next_ones):
    """Return folders in which a command was killed at its 1st, 2nd, ... change and `next_ones` then succeeded."""
    done = subprocess.run(
        [sys.executable, "-c", KILLER, str(place), line, *next_ones], stdin=subprocess.DEVNULL,
        capture_output=True, text=True, timeout=240, env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return sorted(place.glob("killed-*"))


@pytest.fixture
def lab(tmp_path):
    whole = tmp_path / "whole"
    whole.mkdir()
    for line in (
        "root root --federation lab",
        "coordinator --root root --folder coordinator",
        "broker localhost --root root --folder broker",
        "request d1 --federation lab --folder d1",
        "approve d1/pending/request --root root --yes",
        "install root/approvals/d1.approval --folder d1 --yes",
    ):
        enrol_in(whole, line)
    return tmp_path


def trusted(folder, name):
    """Load the roots, the record and the certificate that `name` has installed, and return the keys of the roots."""
    return load_enrolled(folder / name / CURRENT, time.time()).trust.roots.keys


def private_keys(folder):
    return {str(path.relative_to(folder / "root")) for path in (folder / "root").rglob("*.key")}


def installing(*names):
    return [f"install root/approvals/{name}.approval --folder {name}" for name in names]


def test_a_killed_rotation_is_completed_by_the_next_rotate_command(lab):
    next_ones = ["rotate --root root", *installing("broker", "coordinator")]
    folders = killed_at_each_step(lab, "rotate --root root", *next_ones)
    # The changes are writes and renames of three files of the root, the register, the statements and two approvals.
    assert len(folders) > 20
    for folder in folders:
        assert "root 2 is introduced" in (folder / "said").read_text()
        assert len(trusted(folder, "coordinator")) == 2
        assert private_keys(folder) >= {f"roots/{n}/{key}.key" for n in (1, 2) for key in ("root", "tls-ca")}
        assert not list((folder / "root" / "roots").glob("*.new"))


def test_other_commands_work_after_a_killed_rotation(lab):
    folders = killed_at_each_step(lab, "rotate --root root", "renew d1 --root root", *installing("d1"))
    assert {len(trusted(folder, "d1")) for folder in folders} == {1, 2}


def test_a_killed_end_of_a_rotation_is_completed_by_the_next_command(lab):
    enrol_in(lab / "whole", "rotate --root root")
    for line in installing("broker", "coordinator"):
        enrol_in(lab / "whole", line)
    for name in ("d1", "coordinator", "broker"):
        enrol_in(lab / "whole", f"renew {name} --root root")
        enrol_in(lab / "whole", *installing(name))
    finish = "rotate --root root --finish"
    folders = killed_at_each_step(lab, finish, finish, *installing("broker", "coordinator", "d1"))
    assert len(folders) > 15
    for folder in folders:
        assert {len(trusted(folder, name)) for name in ("coordinator", "d1")} == {1}
        assert private_keys(folder) == {"roots/2/root.key", "roots/2/tls-ca.key"}
        signatures = (folder / "root" / "allowed_signers.sig").read_text()
        assert signatures.count("BEGIN SSH SIGNATURE") == 2, "the retired root has signed before its key went"
