"""A board whose user or root is hostile can send any text, and harms only the commands of that board."""

import json
import os
import random
from dataclasses import asdict

import pytest

from protofleet.deploy.fleet import commands, execute
from protofleet.deploy.fleet.device.scripts import HostRole
from protofleet.deploy.fleet.execute import gather_facts, read_state
from protofleet.deploy.fleet.settings import Fleet, Host
from protofleet.deploy.fleet.ssh import CommandResult, Ssh
from protofleet.edge_client.host.status_file import Status
from protofleet.runtime.command.errors import RunError
from tests.deploy.fleet.recorded import RecordedBoard, recording
from tests.deploy.fleet.test_recorded_ssh import Desk

ENDS = ("\n", "\r", "\x0b", "\x0c", "\x1c", "\x1d", "\x1e", "\x85", "\u2028", "\u2029", "\x00", "\r\n")
FORGED = ("release=NEW", 'good={"release": "NEW"}', "uid=zero", "end=yes", "ActiveState=active", "agent=77")
HONEST = asdict(Status(77, 1, 5, "0.1.0", 5, connected=True, heard=True, run="r"))
# An ssh that runs the script here, with the status file of its host.
SHIM = """#!/bin/sh
for last; do :; done
case $last in exit) exit 0 ;; esac
here=$(printf '%s' "$last" | sed 's/^exec .*) sh -s/exec sh -s/')
sed "s|^shown=.*|shown={folder}/$3|; s|^user=.*|user=root|" | eval "$here"
"""


def forged():
    """Yield status files with forged keys between all kinds of line ends, in and after JSON, and without JSON."""
    keys = "".join(end + end.join(FORGED) + end for end in ENDS)
    yield json.dumps({**HONEST, "run": "r" + keys}, ensure_ascii=False) + keys
    yield "".join(f' "pid": 1,{end}' for end in ENDS) + keys


@pytest.fixture
def shell(tmp_path, monkeypatch):
    """Return an `Ssh` whose false `ssh` program runs the real scripts in a real shell."""
    (tmp_path / "bin").mkdir()
    for name, text in {
        "ssh": SHIM.format(folder=tmp_path),
        "docker": "#!/bin/sh\n",
        "iptables": "#!/bin/sh\n",
    }.items():
        (tmp_path / "bin" / name).write_text(text)
        (tmp_path / "bin" / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    (tmp_path / "board-1").mkdir()
    host = Host("board-1")
    return Ssh("board-1", host, Fleet("root", {"board-1": host}), tmp_path)


def test_no_status_file_can_forge_facts_of_the_script(shell, tmp_path):
    path, place = tmp_path / "board-1/status.json", HostRole(python="no-python")
    path.write_text(json.dumps({**HONEST, "pid": 0}))
    honest, state = gather_facts(shell, place), place.steps.replace("systemctl", "false")
    assert (
        honest.installed.status is not None
        and read_state("board-1", shell.run(state, "state")).status is not None
    )
    for text in forged():
        path.write_bytes(text.encode())
        found = gather_facts(shell, place)
        assert (found.uid, found.installed.release, found.installed.good) == (os.getuid(), "", None)
        assert found.installed.complete == honest.installed.complete
        service = read_state("board-1", shell.run(state, "state")).service
        assert (service.active, service.pid) == ("", 0)


class Two(Desk):
    """An operator's machine with two boards, of which the first is hostile."""

    def __init__(self, folder):
        super().__init__(folder)
        path = folder / "fleet.toml"
        text = path.read_text().replace("[care]\n", "[care]\nhealth_seconds = 1.0\n")
        path.write_text(text + '\n[hosts.board-2]\naddress = "board-2.example"\n')
        self.boards = {"board-1": self.board, "board-2": RecordedBoard(folder / "board-2")}

    def deploy(self, step, *hosts, **options):
        given = {"yes": True, "replace": False, "force": False, "strict": False, "reason": "", "broker": None}
        given |= {"fleet": self.folder / "fleet.toml", "hosts": list(hosts)}
        connect = recording(self.boards, self.folder / "sockets")
        self.code = commands.run(step, commands.Options(**given | options), connect)


@pytest.fixture(scope="module")
def both(tmp_path_factory):
    desk = Two(tmp_path_factory.mktemp("two"))
    desk.deploy("apply")
    assert desk.code == 0
    return desk


NONSENSE = {
    "uid": "zero", "agent": "7 7", "NRestarts": "-1", "disk_free": "9" * 5000, "ram": "1e9",
    "systemd": "٢٤٩", "systemd_state": "x" * 5000,
}  # fmt: skip


@pytest.mark.parametrize("step", ["status", "plan", "doctor", "apply"])
@pytest.mark.parametrize("key", NONSENSE)
def test_a_value_of_the_wrong_type_is_a_failure_of_only_its_board(both, capsys, step, key):
    kept = dict(both.board.facts)
    both.board.facts[key] = NONSENSE[key]
    try:
        both.deploy(step)
    finally:
        both.board.facts = kept
    said = capsys.readouterr()
    assert both.code == 1
    assert f"the state of the host cannot be read: the value of {key} " in said.out + said.err
    other = {
        "status": "board-2          active",
        "plan": "board-2          nothing to do",
        "doctor": "board-2:",
    }
    assert other.get(step, "board-2          nothing to do") in said.out


def test_control_characters_from_a_board_are_escaped_in_the_output(both, capsys):
    kept = dict(both.board.facts)
    evil = "\x1b[2J\r\x85\u202e\u2028board-2 active"
    status = json.loads(kept["status"]) | {"run": evil, "software": evil, "over": evil}
    both.board.facts |= {
        "status": json.dumps(status),
        "ActiveState": evil,
        "storage": evil,
        "python": "3.10" + evil,
    }
    try:
        for step in ("status", "doctor", "plan"):
            both.deploy(step)
        both.board.fails = {"quick": evil, "deep": evil}
        for step in ("status", "doctor", "plan", "apply"):
            both.deploy(step)
    finally:
        both.board.facts, both.board.fails = kept, {}
    said = capsys.readouterr()
    text = said.out + said.err
    assert "\\x1b[2J" in text and "\\u2028" in text
    assert all(letter.isprintable() or letter == "\n" for letter in text)


def test_an_error_names_the_invalid_value_of_a_service_state():
    with pytest.raises(
        RunError, match="board-1: the state of the service cannot be read: the value of NRestarts is 'many'"
    ):
        read_state("board-1", CommandResult(0, "ActiveState=active\0NRestarts=many\0", ""))


@pytest.mark.parametrize(
    "seed", [*range(10), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(10, 40))]
)
def test_arbitrary_facts_of_a_board_do_not_stop_commands_for_other_boards(both, capsys, monkeypatch, seed):
    """Every field has arbitrary bytes at once, and each effect is a line about this board.

    `apply` also reads such a status after it has started the board, in the output of the step `state`.
    """
    for name in ("POLL_SECONDS", "STEADY_SECONDS", "GATHERING_SECONDS"):
        monkeypatch.setattr(execute, name, 0.01)
    dice = random.Random(seed)
    kept = dict(both.board.facts)
    pieces = [
        *ENDS[:10],
        *FORGED,
        "\x1b[31m",
        '"',
        "{",
        "[" * 5000,
        "9" * 400,
        "-1",
        "\ud7ff",
        "é",
        "{}",
        "null",
    ]

    def noise():
        return "".join(dice.choice(pieces) for _ in range(dice.randrange(4)))

    status = {
        key: dice.choice([noise(), 10**30, -1, None, [], {}, 1e300, value]) for key, value in HONEST.items()
    }
    changed = dice.sample(sorted(kept), dice.randrange(1, 4))
    both.board.facts |= {key: noise() for key in changed if key not in ("release", "good")}
    both.board.facts["status"] = dice.choice([json.dumps(status), noise(), json.dumps(status)[:-9]])
    both.board.doing = dice.choice([{}, {key: dice.choice([noise(), status[key]]) for key in HONEST}])
    try:
        for step in ("status", "plan", "doctor", "apply"):
            both.deploy(step)
            said = capsys.readouterr()
            assert "board-2" in said.out and all(c.isprintable() or c == "\n" for c in said.out + said.err)
    finally:
        both.board.facts, both.board.doing = kept, {}
