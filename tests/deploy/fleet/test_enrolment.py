"""`protofleet deploy apply` runs as a process; a false `ssh` answers as one honest and five hostile boards."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from protofleet.federation.enrol import key_folder
from protofleet.federation.enrol.authority import Authority, make_authority
from protofleet.federation.enrol.local_federation import enrol
from protofleet.federation.enrol.request import REQUEST
from protofleet.protocol.security.statements import Writer, armoured, sign_statement
from protofleet.protocol.settings.reader import write_toml
from tests.support.small_order import RECEIVE

ROOT = Path(__file__).parents[3]
FACTS = """arch=aarch64
uid=0
now={now}
os=ubuntu 22.04
tool=rsync
tool=python3
tool=sha256sum
tool=runuser
tool=ssh-keygen
verifies=yes
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
for board in {folder}/requests/*; do
    case "$*" in
        *" quick"*) cat {folder}/facts; exit ;;
        *" request "*" ${{board##*/}} "*) cat "$board" ;;
        *" state"*) printf 'ActiveState=active\\000'; exit ;;
    esac
done
"""


def asked(folder, name, hosts=(), receive=b""):
    """Return a request of a board with a hostile process: for any name and hosts, signed with the board's keys."""
    made, _ = key_folder.make_request(folder, "lab", name, tuple(hosts), new_keys=True, durable=False)
    if not receive:
        return (folder / "pending/request").read_text()
    keys = key_folder.load_keys(folder / "pending")
    fields = Writer().text("lab").text(name).text("device").blobs([]).blob(made.sign).blob(receive)
    return armoured(REQUEST, sign_statement(REQUEST, fields.blob(made.csr).done(), [keys.identity]))


def operators_machine(folder, requests):
    """Make a root, a fleet of the boards in `requests`, and false `ssh` and `rsync` programs."""
    authority = make_authority(folder / "root", "lab", 1, durable=False)
    enrol(authority, folder / "coordinator", "coordinator", 30)
    (folder / "facts").write_text(FACTS.format(now=int(time.time())).replace("\n", "\0"))
    for place in ("requests", "wheels", "bin"):
        (folder / place).mkdir()
    for name, text in requests.items():
        (folder / "requests" / name).write_text(text)
    (folder / "wheels/protofleet-0-py3-none-any.whl").write_bytes(b"none of the boards looks")
    for name in ("ssh", "rsync"):
        path = folder / "bin" / name
        path.write_text(SSH.format(folder=folder))
        path.chmod(0o755)
    table = {
        "root": "root", "software": {"wheels": "wheels", "dependencies": "system"},
        "care": {"canary": len(requests), "health_seconds": 0.1, "drain_seconds": 0.1},
        "device": {"data": {"source": "digits", "domain": "mnist"}, "broker": {"host": "broker"}},
        "hosts": {name: {"address": f"{name}.example"} for name in requests},
    }  # fmt: skip
    (folder / "fleet.toml").write_text(write_toml(table))


@pytest.mark.slow
def test_a_board_gets_only_its_own_certificate_and_blocks_no_other_board(tmp_path):
    no_request = "-----BEGIN PROTOFLEET REQUEST-----\nQUJD\n-----END PROTOFLEET REQUEST-----\n"
    board = tmp_path / "board"
    boards = {
        "to-be-broker": (
            asked(board, "to-be-broker", ["broker.example"]),
            "to-be-broker asks to be enrolled as a broker for broker.example, not as a device",
        ),
        "coordinates": (asked(board, "coordinator"), "asks to be enrolled as a coordinator, not as a device"),
        "somebody": (
            asked(board, "honest"),
            "somebody was expected, but the request is for the name honest",
        ),
        "weak": (
            asked(board, "weak", receive=RECEIVE[2]),
            "key to receive with is a point of small order",
        ),
        "none": (no_request, "this is not a request"),
        "honest": (asked(tmp_path / "honest", "honest"), "health: after 0.1 s the device is still starting"),
    }
    operators_machine(tmp_path, {name: text for name, (text, _) in boards.items()})
    done = subprocess.run(
        [sys.executable, "-m", "protofleet", "deploy", "apply", "--fleet", "fleet.toml", "--yes"],
        cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False,
        env={**os.environ, "PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert done.returncode == 1 and "Traceback" not in done.stderr, done.stderr
    for name, (_, words) in boards.items():
        said = [line for line in done.stderr.splitlines() if line.startswith(f"protofleet: {name}: ")]
        assert len(said) == 1 and words in said[0], done.stderr
    entries = Authority(tmp_path / "root").register.entries
    assert [(e.name, e.part) for e in entries if e.part not in ("coordinator", "standby")] == [
        ("honest", "device")
    ]
