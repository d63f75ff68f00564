"""`protofleet deploy apply` as a process, with an `ssh` of ours that answers as two boards do: one is hostile."""

import os
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest

from deploy.enrol import party
from deploy.enrol.authority import Authority, make_authority
from deploy.enrol.fleet import join
from deploy.enrol.requests import REQUEST
from protocol.settings import write_toml
from protocol.statements import Writer, armoured, state
from tests.small_order import RECEIVE

ROOT = Path(__file__).parents[2]
FACTS = """arch=aarch64
uid=0
now={now}
os=ubuntu 22.04
tool=rsync
tool=python3
tool=sha256sum
tool=runuser
python=3.10.12
venv=yes
systemd=249
systemd_state=running
clock_synced=yes
disk_free=80000000000
state_free=80000000000
storage=/dev/nvme0n1p1
ram=8000000000
ram_free=6000000000
swap=0
end=yes
"""
# The step and the board's name are among the words; the script itself comes by standard input.
SSH = """#!/bin/sh
cat >/dev/null
case "$*" in
    *" quick"*) cat {folder}/facts ;;
    *" request "*board-1*) cat {folder}/board-1.request ;;
    *" request "*board-2*) cat {folder}/board-2.request ;;
    *" state"*) echo ActiveState=active ;;
esac
"""


def program(path, text):
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    path.chmod(path.stat().st_mode | stat.S_IXUSR)


@pytest.fixture
def fleet(tmp_path):
    """An operator's machine; gives what runs `deploy apply` on a fleet whose board-1 sends a certain request."""
    authority = make_authority(tmp_path / "root", "lab", 1, durable=False)
    join(authority, tmp_path / "coordinator", "coordinator", 30)
    party.make_request(tmp_path / "honest", "lab", "board-2", (), fresh=True, durable=False)
    (tmp_path / "board-2.request").write_text((tmp_path / "honest/pending/request").read_text())
    (tmp_path / "facts").write_text(FACTS.format(now=int(time.time())))
    (tmp_path / "wheels").mkdir()
    (tmp_path / "wheels/protofleet-0-py3-none-any.whl").write_bytes(b"none of the boards looks")
    for name in ("ssh", "rsync"):
        program(tmp_path / "bin" / name, SSH.format(folder=tmp_path))
    (tmp_path / "fleet.toml").write_text(
        write_toml({
            "root": "root", "software": {"wheels": "wheels", "dependencies": "system"},
            "care": {"canary": 2, "health_seconds": 0.1, "drain_seconds": 0.1},
            "device": {"data": {"source": "digits", "domain": "mnist"}, "broker": {"host": "broker"}},
            "hosts": {name: {"address": f"{name}.example"} for name in ("board-1", "board-2")},
        })
    )  # fmt: skip

    def apply(request):
        (tmp_path / "board-1.request").write_text(request)
        path = f"{tmp_path / 'bin'}:{os.environ['PATH']}"
        done = subprocess.run(
            [sys.executable, "-m", "deploy.cli", "deploy", "apply", "--fleet", "fleet.toml", "--yes"],
            cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False,
            env={**os.environ, "PATH": path, "PYTHONPATH": str(ROOT)},
        )  # fmt: skip
        assert "Traceback" not in done.stderr, done.stderr
        assert done.returncode == 1
        return [line for line in done.stderr.splitlines() if "board-1" in line]

    return apply


def asked(folder, name, hosts=(), receive=None):
    """The request of a board whose process was taken over: it may ask for anything, with its own keys."""
    party.make_request(folder, "lab", name, tuple(hosts), fresh=True, durable=False)
    if receive is None:
        return (folder / "pending/request").read_text()
    keys = party.load_keys(folder / "pending")
    made = party.make_request(folder, "lab", name, (), fresh=False, durable=False)[0]
    fields = Writer().text("lab").text(name).text("device").blobs([]).blob(made.sign).blob(receive)
    return armoured(REQUEST, state(REQUEST, fields.blob(made.csr).done(), [keys.identity]))


@pytest.mark.parametrize(
    ("request_of", "words"),
    [
        (
            lambda folder: asked(folder, "board-1", ["broker.example"]),
            "board-1 was not approved: board-1 asks to be enrolled as a broker for broker.example, not as a device",
        ),
        (
            lambda folder: asked(folder, "coordinator"),
            "asks to be enrolled as a coordinator, not as a device",
        ),
        (
            lambda folder: asked(folder, "board-9"),
            "board-1 was expected, the request is to be enrolled as board-9",
        ),
        (
            lambda folder: asked(folder, "board-1", receive=RECEIVE[2]),
            "key to receive with is a point of small order",
        ),
        (
            lambda folder: "-----BEGIN PROTOFLEET REQUEST-----\nQUJD\n-----END PROTOFLEET REQUEST-----\n",
            "this is not a request",
        ),
    ],
)
def test_a_board_gets_no_certificate_but_its_own_and_keeps_none_from_the_others(
    fleet, tmp_path, request_of, words
):
    said = fleet(request_of(tmp_path / "board"))
    assert len(said) == 1 and words in said[0], said
    entries = Authority(tmp_path / "root").register.entries
    assert [(e.name, e.part) for e in entries if e.name != "coordinator"] == [("board-2", "device")]
    assert not (tmp_path / "root/approvals/board-1.approval").exists()
