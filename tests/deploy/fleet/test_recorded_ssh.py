"""The exact command lines and stdin of a deployment, as `Ssh` gives them to ssh and rsync."""

import argparse
import json
import shlex
from dataclasses import asdict

import pytest

from protofleet.deploy.fleet import commands, execute
from protofleet.deploy.fleet.settings import Fleet, Host
from protofleet.deploy.fleet.ssh import AS_ROOT, CommandResult, Ssh
from protofleet.edge_client.host.status_file import Status
from protofleet.federation.enrol.authority import Authority, make_authority
from protofleet.federation.enrol.local_federation import enrol
from protofleet.protocol.settings.reader import SettingsError, write_toml
from tests.deploy.fleet.recorded import RecordedBoard, recording

BOARD = "board-1.example"
TOP = f"{BOARD}:/opt/protofleet"
LOOK = "facts.sh quick"
STATE = "remote.sh state"
SERVED = [STATE, STATE, STATE, STATE]  # The states before and after, for health and for soak.


class Desk:
    """An operator's machine with some boards, of which most tests have one."""

    def __init__(self, folder, *names):
        self.folder = folder
        self.boards = {name: RecordedBoard(folder / name) for name in names or ("board-1",)}
        self.authority = make_authority(folder / "root", "lab", 1, durable=False)
        enrol(self.authority, folder / "coordinator", "coordinator", 30)
        for name in ("wheels", "sockets"):
            (folder / name).mkdir()
        (folder / "wheels/protofleet-0-py3-none-any.whl").write_bytes(b"a wheel")
        self.write()

    def write(self, **device):
        table = {
            "root": "root", "software": {"wheels": "wheels", "dependencies": "system"},
            "care": {"drain_seconds": 30.0},
            "device": {"data": {"source": "digits", "domain": "mnist"}, "broker": {"host": "broker"}, **device},
            "hosts": {name: {"address": f"{name}.example"} for name in self.boards},
        }  # fmt: skip
        (self.folder / "fleet.toml").write_text(write_toml(table))

    @property
    def board(self):
        return self.boards["board-1"]

    @board.setter
    def board(self, other):
        self.boards["board-1"] = other

    def deploy(self, step, *hosts, **options):
        """Run one step of the deployment and return the lines that this step alone sent to board-1."""
        given = {"yes": True, "replace": False, "force": False, "strict": False, "reason": "", "broker": None}
        given |= {"set": [], "hours": 1.0, "fleet": self.folder / "fleet.toml", "hosts": list(hosts)}
        before = len(self.board.lines)
        connect = recording(self.boards, self.folder / "sockets")
        self.code = commands.run(step, argparse.Namespace(**given | options), connect)
        return self.board.lines[before:]

    @property
    def release(self):
        return self.board.facts["release"]

    def logged(self):
        rows = [json.loads(line) for line in (self.folder / "deploy.log").read_text().splitlines()]
        return [(row["step"], row["result"]) for row in rows]


@pytest.fixture
def desk(tmp_path):
    return Desk(tmp_path)


@pytest.fixture
def deployed(desk, capsys):
    desk.deploy("apply")
    assert desk.code == 0, capsys.readouterr()
    capsys.readouterr()
    return desk


def record_of(line):
    step, words = line.split(" ", 2)[1:]
    assert step == "record"
    return json.loads(*shlex.split(words))


def test_ssh_and_rsync_are_called_with_exactly_these_arguments(tmp_path):
    called = []

    def run(command, stdin, seconds):
        called.append((list(command), stdin, seconds))
        return CommandResult(0, "", "")

    host = Host(BOARD, user="root", port=2222)
    ssh = Ssh("board-1", host, Fleet("root", {"board-1": host}), tmp_path, run)
    ssh.run("echo $1", "two words", "$(reboot)", seconds=5.0)
    ssh.send(tmp_path / "wheels", "/opt/protofleet/wheels/1")
    ssh.close()
    config = f"{tmp_path}/board-1.conf"
    as_root = '$([ "$(id -u)" = 0 ] || echo sudo -n)'
    assert as_root == AS_ROOT
    assert called == [
        (
            ["ssh", "-F", config, BOARD, f"exec {as_root} sh -s -- 'two words' '$(reboot)'"],
            "echo $1",
            5.0,
        ),
        (
            ["rsync", "-rtcL", "--chmod=D0755,F0644", "--partial-dir=.rsync-partial", "--delay-updates", "--delete",
             "-e", f"ssh -F {config}", f"--rsync-path={as_root} rsync", f"{tmp_path}/wheels/",
             f"{TOP}/wheels/1/"],
            "",
            3600.0,
        ),
        (["ssh", "-F", config, "-O", "exit", BOARD], "", 10.0),
    ]  # fmt: skip
    lines = (tmp_path / "board-1.conf").read_text().splitlines()
    assert {"BatchMode yes", "StrictHostKeyChecking yes", "User root", "Port 2222"} <= set(lines)


def test_plan_only_reads_the_facts_of_a_host(desk, capsys):
    assert desk.deploy("plan") == [LOOK] and desk.code == 0
    *steps, last = capsys.readouterr().out.splitlines()
    assert last == "1 host: 1 to be changed, 0 with nothing to do, 0 cannot be deployed"
    assert [line.split()[1].rstrip(":") for line in steps] == [
        "prepare", "ship", "build", "enrol", "configure", "switch", "start", "health", "soak", "record",
    ]  # fmt: skip
    assert not (desk.folder / "deploy.log").exists()


def test_plan_fails_and_names_the_hosts_that_cannot_be_deployed(desk, capsys):
    desk.board.facts["python"] = "3.8.1"
    assert desk.deploy("plan") == [LOOK] and desk.code == 1
    *_, last = capsys.readouterr().out.splitlines()
    assert last == "1 host: 0 to be changed, 0 with nothing to do, 1 cannot be deployed: board-1"


def test_soak_does_not_wait_for_a_round_of_a_run_that_waits_for_devices(desk, capsys, monkeypatch):
    monkeypatch.setattr(execute, "GATHERING_SECONDS", 0.1)
    path = desk.folder / "fleet.toml"
    path.write_text(path.read_text().replace("[care]\n", "[care]\nsoak_seconds = 3.0\n"))
    desk.board.doing = {"accepted": 0, "gathering": True}
    desk.deploy("apply")
    assert desk.code == 0 and ("soak", "done") in desk.logged()
    assert "the run waits for more devices, so no round was served" in capsys.readouterr().out


def test_a_failed_step_without_output_is_reported_with_host_status_and_advice(desk, capsys):
    desk.board.fails = {"build": ""}
    desk.deploy("apply")
    said = capsys.readouterr().err
    assert "the step 'build' on board-1 (board-1.example) ended with exit status 1 and no output" in said
    assert "`ssh board-1.example`, then `journalctl -n 50`" in said


def test_a_new_board_is_deployed_by_exactly_these_commands(desk):
    lines = desk.deploy("apply")
    assert desk.code == 0
    release, fingerprint = desk.release, shlex.quote(desk.authority.fingerprint)
    *first, record, allow = lines
    assert first == [
        LOOK,  # a host that needs nothing is left alone
        LOOK,
        "remote.sh prepare",
        "remote.sh settle",
        f"rsync allowed_signers,allowed_signers.sig,roots {TOP}/incoming/",
        "remote.sh pin",
        f"rsync how,manifest,manifest.sig,protofleet-0-py3-none-any.whl {TOP}/wheels/{release}/",
        f"remote.sh build {release} python3 system",
        f"remote.sh request {release} board-1 lab",
        "remote.sh settle",
        f"rsync approval {TOP}/incoming/",
        f"remote.sh enrol {release} {fingerprint}",
        "remote.sh settle",
        f"rsync manifest,manifest.sig,settings,unit {TOP}/incoming/",
        f"remote.sh check {release} board-1",
        f"remote.sh switch {release} board-1",
        "remote.sh start",
        *SERVED,
    ]
    known = record_of(record)
    assert (known["release"], known["unit"]) == (release, desk.board.facts["unit"])
    assert allow == f"remote.sh allow {release}-{known['settings']}"
    assert [step for step, result in desk.logged() if result == "done"][-1] == "record"
    names = [e.name for e in Authority(desk.folder / "root").register.entries]
    assert names == ["coordinator", "coordinator.standby", "board-1"]


def test_a_second_deployment_only_reads_facts(deployed, capsys):
    assert deployed.deploy("apply") == [LOOK] and deployed.code == 0
    assert "nothing to do" in capsys.readouterr().out


def test_changed_settings_are_deployed_by_exactly_these_commands(deployed):
    deployed.write(threads=2)
    release = deployed.release
    assert deployed.deploy("apply")[:-2] == [
        LOOK,
        LOOK,
        "remote.sh settle",
        f"rsync manifest,manifest.sig,settings,unit {TOP}/incoming/",
        f"remote.sh check {release} board-1",
        f"remote.sh switch {release} board-1",
        "remote.sh drain 30",
        "remote.sh start",
        *SERVED,
    ]


def test_a_failed_build_is_reported_and_ends_the_deployment(desk, capsys):
    desk.board.fails = {"build": "pip cannot install the shipped packages: ERROR: no matching wheel"}
    lines = desk.deploy("apply")
    assert desk.code == 1 and lines[-1].startswith("remote.sh build ")
    assert "board-1: build: pip cannot install the shipped packages" in capsys.readouterr().err
    assert desk.logged()[-1][0] == "deploy"


@pytest.mark.parametrize("step", ["build", "start"])
def test_a_rollout_to_three_boards_counts_the_failed_board_only_once(tmp_path, capsys, step):
    """The board that fails has executed some steps before, and is not counted as changed."""
    desk = Desk(tmp_path, "board-1", "board-2", "board-3")
    desk.boards["board-3"].fails = {step: "no room on its disk"}
    desk.deploy("apply")
    said = capsys.readouterr()
    assert desk.code == 1 and "3 hosts: 2 changed, 1 failed" in said.out.splitlines()[-1]
    assert "board-3" in said.err and "no room on its disk" in said.err
    assert [line.split()[1] for line in desk.boards["board-3"].lines][:3] == ["quick", "quick", "prepare"]
    assert [name for name, board in desk.boards.items() if "good" in board.facts] == ["board-1", "board-2"]


def test_a_failure_after_the_switch_starts_a_rollback(deployed, capsys):
    before, release = dict(deployed.board.facts), deployed.release
    deployed.write(threads=2)
    deployed.board.fails = {"drain": "it hangs"}
    lines = deployed.deploy("apply")
    assert deployed.code == 1
    at = lines.index("remote.sh drain 30")
    block, *rest = lines[at + 2 :]  # after the facts
    assert lines[at + 1] == LOOK and block.startswith(f"remote.sh block {release}-")
    assert rest[:6] == [
        LOOK,
        "remote.sh settle",
        f"rsync manifest,manifest.sig,settings {TOP}/incoming/",
        "remote.sh restore_unit good",
        f"remote.sh check {release} board-1",
        f"remote.sh switch {release} board-1",
    ]
    assert deployed.board.facts["good"] == before["good"]
    assert "the host could not be rolled back: it hangs" in capsys.readouterr().err, "drain fails again"


def test_status_reads_the_facts_of_each_device_once(deployed, capsys):
    assert deployed.deploy("status") == [LOOK] and deployed.code == 0
    line = capsys.readouterr().out.splitlines()[1]
    assert line.split()[:3] == ["board-1", "active", deployed.release] and "waits for work" in line


def test_status_shows_the_model_version_that_each_device_serves(deployed, capsys):
    def told(*lines):
        deployed.board.facts["served"] = "\n".join(lines)
        deployed.deploy("status")
        text = capsys.readouterr().out.splitlines()[1]
        deployed.deploy("status", json=True)
        return text, json.loads(capsys.readouterr().out)["hosts"]["board-1"]

    text, found = told()
    assert " -  " in text and found["models"] == {} and found["serves"] is None
    text, found = told("current v000017 16", "champion v000012 11", "pinned v000017 16")
    assert "v000017 pinned, champion v000012" in text
    assert found["serves"] == "v000017 pinned, champion v000012"
    assert found["models"]["current"] == found["models"]["pinned"] == {"version": "v000017", "round": 16}
    assert found["models"]["champion"] == {"version": "v000012", "round": 11}
    text, _ = told("current v000003 2", "champion v000003 2")
    assert "v000003 champion " in text
    text, found = told("current ../../etc/shadow 16", "pinned v000017 \x1b[2J", "other v000001 1")
    assert found["models"] == {}, "invalid output of a device is ignored"


@pytest.mark.parametrize("step", ["plan", "status", "doctor"])
def test_json_prints_one_object_and_quiet_prints_only_problems(deployed, capsys, step):
    deployed.deploy(step, json=True)
    found = json.loads(capsys.readouterr().out)["hosts"]["board-1"]
    told = {
        "plan": lambda: found["steps"],
        "status": lambda: found["release"],
        "doctor": lambda: found[0]["name"],
    }
    assert told[step]() == {"plan": [], "status": deployed.release, "doctor": "ssh"}[step]
    code = deployed.code
    deployed.deploy(step, quiet=True)
    said = capsys.readouterr()
    assert said.out == "" and deployed.code == code and bool(said.err) == bool(code)
    deployed.board.fails |= {"quick": "it is away", "deep": "it is away"}
    deployed.deploy(step, quiet=True)
    said = capsys.readouterr()
    assert said.out == "" and deployed.code == 1 and "board-1" in said.err


def test_doctor_requests_deep_facts_with_the_address_of_the_broker(deployed, capsys):
    assert deployed.deploy("doctor") == ["facts.sh deep '' broker 1883"]
    assert "PASS  ssh" in capsys.readouterr().out


def test_a_drain_stops_the_service(deployed, capsys):
    assert deployed.deploy("drain") == ["remote.sh stop 30"] and deployed.code == 0
    assert "stopped, no work was in progress" in capsys.readouterr().out and deployed.logged()[-1] == (
        "drain",
        "done",
    )


def test_a_rollback_blocks_the_present_release_and_restores_the_earlier_one(deployed):
    release, first = deployed.release, json.loads(deployed.board.facts["good"])
    deployed.write(threads=2)
    deployed.deploy("apply")
    second = json.loads(deployed.board.facts["good"])
    assert second["settings"] != first["settings"]
    *lines, record, allow = deployed.deploy("rollback")
    assert deployed.code == 0
    assert lines == [
        LOOK,
        f"remote.sh block {release}-{second['settings']} 'by hand'",
        LOOK,
        "remote.sh settle",
        f"rsync manifest,manifest.sig,settings {TOP}/incoming/",
        "remote.sh restore_unit previous",
        f"remote.sh check {release} board-1",
        f"remote.sh switch {release} board-1",
        "remote.sh drain 30",
        "remote.sh start",
        STATE,
        STATE,
    ]
    assert record_of(record)["settings"] == first["settings"]
    assert allow == f"remote.sh allow {release}-{first['settings']}"


def test_plan_reports_an_earlier_rollback_by_hand(deployed, capsys):
    deployed.write(threads=2)
    deployed.deploy("apply")
    deployed.deploy("rollback")
    capsys.readouterr()
    deployed.deploy("plan")
    said = capsys.readouterr().out
    assert deployed.code == 1 and "was rolled back by hand" in said and "has failed" not in said


class Refused(RecordedBoard):
    """A board whose data has other classes than the run.

    The coordinator refuses it, it ends with the reason, and systemd starts it again.
    """

    def _answer(self, step, arguments):
        if step == "state":
            self.facts["NRestarts"] = str(self.asked // 4)
            up = self.asked % 4 in (1, 2)
            self.facts |= {"SubState": "running" if up else "auto-restart", "agent": "9" if up else "0"}
            self.facts["status"] = self.said("" if self.asked % 4 == 1 else OTHER_CLASSES)
            self.asked += 1
        return super()._answer(step, arguments)

    asked = 0

    def said(self, over):
        return json.dumps(asdict(Status(9, 1, 0, "0.1.0", 1, connected=True, heard=True, over=over)))


OTHER_CLASSES = "the coordinator refuses this device: its classes are others"


@pytest.mark.slow
@pytest.mark.parametrize("asked", range(4))
def test_a_refused_board_that_restarts_repeatedly_is_never_healthy(desk, capsys, monkeypatch, asked):
    monkeypatch.setattr(execute, "STEADY_SECONDS", 1.0)
    desk.board = Refused(desk.folder / "board-1")
    desk.board.asked = asked
    desk.deploy("apply")
    said = capsys.readouterr()
    assert desk.code == 1 and f"the service does not keep running: {OTHER_CLASSES}" in said.err
    assert ("record", "done") not in desk.logged()
    assert "1 host: 0 changed, 1 failed" in said.out


def test_tuning_is_sent_signed_and_then_applied(deployed):
    lines = ["remote.sh settle", f"rsync tuning {TOP}/incoming/", "remote.sh tune"]
    assert deployed.deploy("tune", set=["paused=true"]) == lines
    assert b"BEGIN PROTOFLEET TUNING" in deployed.board.incoming["tuning"]


def test_revoke_revokes_the_certificate_and_then_destroys_the_keys(deployed, capsys):
    with pytest.raises(SettingsError, match="give the names of the hosts to revoke"):
        deployed.deploy("revoke")
    deployed.board.fails = {"erase_keys": "no such user"}
    assert deployed.deploy("revoke", "board-1", reason="sold") == ["remote.sh erase_keys"]
    register = Authority(deployed.folder / "root").register
    assert register.latest("board-1").reason == "sold"
    assert "its keys could not be destroyed: no such user" in capsys.readouterr().out
    deployed.board.fails = {}
    assert deployed.deploy("revoke", "board-1") == ["remote.sh erase_keys"] and deployed.code == 0
    said = capsys.readouterr().out
    assert "was revoked already" in said and "stopped, and its keys are destroyed" in said
