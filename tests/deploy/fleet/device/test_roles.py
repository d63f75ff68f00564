"""One program deploys the broker, the coordinator and the devices of a fleet, in this order."""

import argparse
import itertools
import json
import os
import shutil
import subprocess
import tarfile
from dataclasses import replace
from pathlib import Path

import pytest
from cryptography import x509

from protofleet.cli.main import main
from protofleet.coordinator.devices.domains import assign_domain
from protofleet.deploy.fleet import commands
from protofleet.deploy.fleet.checks import Workload, run_checks
from protofleet.deploy.fleet.device.facts import KnownGood, Service
from protofleet.deploy.fleet.device.roles import DEVICE, ROLES
from protofleet.deploy.fleet.device.unit import service_unit, unit_of
from protofleet.deploy.fleet.plan import InstalledSettings, name_of, plan
from protofleet.deploy.fleet.settings import (
    Fleet,
    Host,
    Software,
    broker_conf,
    coordinator_settings,
    device_settings,
    read_fleet,
)
from protofleet.deploy.fleet.setup.daily_bytes import MB, bytes_of_round, most_rounds_a_day
from protofleet.deploy.fleet.ssh import CommandResult, Ssh, UnreachableError
from protofleet.edge_client.data.catalog import find
from protofleet.edge_client.data.shard import Shards
from protofleet.edge_client.serving.settings import ModelSettings
from protofleet.federation.enrol.authority import Authority
from protofleet.federation.enrol.certificates import host_names
from protofleet.protocol.settings.reader import SettingsError, decode, tomllib
from protofleet.runtime.command.errors import RunError
from tests.deploy.fleet.boards import NOW, RELEASE, SETTINGS, UNIT, WANTED, deployed, jetson
from tests.deploy.fleet.recorded import FIT, RecordedBoard, recording

INIT = (
    "init",
    "fleet",
    "--broker",
    "root@127.0.0.10",
    "--coordinator",
    "root@127.0.0.10",
    "--device",
    "board-1=root@127.0.0.11",
    "--device",
    "board-2=pi@[fd00::12]:2222",
)


@pytest.fixture
def written(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(INIT) == 0
    return tmp_path / "fleet"


def test_the_settings_of_a_new_fleet_fit_together(written):
    fleet = read_fleet(written / "fleet.toml")
    federation = Authority(written / "root").federation
    own = coordinator_settings(fleet, federation)
    for name in ("board-1", "board-2"):
        device = device_settings(fleet, federation, name)
        assert (
            (device.broker.host, device.broker.port)
            == (own.broker.host, own.broker.port)
            == ("127.0.0.10", 8883)
        )
        assert device.federation == own.federation == federation
        assert device.data.size == own.size
    assert "listener 8883" in broker_conf(fleet) and "/etc/protofleet-broker/keys/current/acl" in broker_conf(
        fleet
    )
    assert "# Queues for 16 devices." in broker_conf(fleet) and "# Queues for 32 devices." in broker_conf(
        fleet, 17
    )
    small = replace(fleet, mosquitto=replace(fleet.mosquitto, memory_bytes=200 << 20))
    assert not fleet.doubts() and "so the queues of devices that never read could stop" in small.doubts()[0]
    hosts = fleet.hosts
    assert (hosts["board-2"].address, hosts["board-2"].port, hosts["board-2"].user) == (
        "fd00::12",
        2222,
        "pi",
    )
    assert {name: host.role for name, host in hosts.items()} == {
        "broker": "broker", "coordinator": "coordinator", "board-1": "device", "board-2": "device",
    }  # fmt: skip
    targets = {
        row["labels"].get("device", "coordinator"): row
        for row in json.loads((written / "targets.json").read_text())
    }
    assert (
        targets["board-2"]["targets"] == ["[fd00::12]:9101"]
        and targets["board-1"]["labels"]["job"] == "devices"
    )
    assert targets["coordinator"] == {"targets": ["127.0.0.10:9100"], "labels": {"job": "coordinator"}}


def boards_of(folder):
    fleet, federation = read_fleet(folder / "fleet.toml"), Authority(folder / "root").federation
    return [device_settings(fleet, federation, name) for name in fleet.hosts if name.startswith("board")]


def init_with(devices):
    words = [
        word for i in range(devices) for word in ("--device", f"board-{i}=10.0.{1 + i // 200}.{i % 200}")
    ]
    assert main([*INIT[:6], *words]) == 0


def test_no_two_boards_of_a_new_fleet_have_the_same_picture(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    init_with(2)
    for number in range(2, 8):  # Add the boards one by one.
        assert main(["init", "fleet", "--device", f"board-{number}=10.0.1.{number}"]) == 0
    data = [board.data for board in boards_of(tmp_path / "fleet")]
    assert [own.domain for own in data] == [*find("digits").domains, "mnist", "optdigits"]
    shards = Shards()
    for one, other in ((data[0], data[6]), (data[1], data[7])):
        first, second = (shards.load(own).train.x.flatten(1).tolist() for own in (one, other))
        assert min(len(first), len(second)) >= 300
        assert not set(map(tuple, first)) & set(map(tuple, second))


@pytest.mark.parametrize("devices", [1, 2, 3, 30, 300])
def test_a_new_fleet_waits_for_all_boards_at_first_and_has_half_of_them_as_quorum(
    tmp_path, monkeypatch, devices
):
    monkeypatch.chdir(tmp_path)
    init_with(devices)
    own = coordinator_settings(read_fleet(tmp_path / "fleet/fleet.toml"), "protofleet")
    assert own.policy.gather == devices and own.policy.quorum == -(-devices // 2)
    days = own.rounds / most_rounds_a_day(own.policy)
    assert 7 < days < 30 and own.policy.stop.patience == 20, "the run ends"
    assert most_rounds_a_day(own.policy) * bytes_of_round(own).flash <= 100 * MB
    shares = [
        (board.data.domain, board.data.part, board.data.parts) for board in boards_of(tmp_path / "fleet")
    ]
    assert len(set(shares)) == min(devices, 240)


@pytest.mark.parametrize("step", ["plan", "doctor"])
def test_plan_and_doctor_print_the_bytes_of_a_board_and_day(tmp_path, monkeypatch, capsys, step):
    monkeypatch.chdir(tmp_path)
    init_with(2)
    ssh = tmp_path / "bin/ssh"
    ssh.parent.mkdir()
    ssh.write_text("#!/bin/sh\nexit 255\n")
    ssh.chmod(0o755)
    monkeypatch.setenv("PATH", str(ssh.parent), prepend=os.pathsep)
    capsys.readouterr()
    main(["deploy", step, "--fleet", "fleet/fleet.toml"])
    said = capsys.readouterr().out
    parts = "24.7 MB sent, 24.7 MB received, 98.3 MB written to its disk"
    words = f"bytes of a board: at most {parts} a day, in 90 rounds"
    assert words in said.splitlines(), said
    main(["deploy", step, "--fleet", "fleet/fleet.toml", "--json"])
    assert json.loads(capsys.readouterr().out)["bytes"] == words


def test_the_boards_of_a_new_fleet_may_use_their_domains(tmp_path, monkeypatch, caplog):
    monkeypatch.chdir(tmp_path)
    init_with(8)
    limits, known = coordinator_settings(read_fleet(tmp_path / "fleet/fleet.toml"), "protofleet").limits, {}
    for board in boards_of(tmp_path / "fleet"):
        assign_domain(board.name, board.data.domain, known, limits.domains)
    assert caplog.records == [] and set(known.values()) == set(find("digits").domains)


def test_an_added_board_gets_no_digits_if_the_fleet_has_its_own_data(written):
    path = written / "fleet.toml"
    text = path.read_text().replace('source = "digits"', 'source = "folder"\nroot = "/data"')
    path.write_text(text)
    assert main(["init", "fleet", "--device", "board-3=127.0.0.13"]) == 0
    assert read_fleet(path).hosts["board-3"].device == {}


def test_the_service_of_a_board_may_write_to_its_model_folder(written):
    settings = device_settings(
        read_fleet(written / "fleet.toml"), Authority(written / "root").federation, "board-1"
    )
    host, software = Host("127.0.0.11"), Software()
    assert settings.models == ModelSettings() and settings.models.serves
    assert "ReadWritePaths" not in unit_of(jetson(), host, settings, software)
    elsewhere = replace(settings, models=ModelSettings("/srv/models", template="/etc/protofleet/template"))
    assert "\nReadWritePaths=-/srv/models\n" in unit_of(jetson(), host, elsewhere, software)
    inside = unit_of(jetson(), host, elsewhere, Software("container", image="board@sha256:" + "ab" * 32))
    assert "--volume /srv/models:/srv/models " in inside
    assert "--volume /etc/protofleet/template:/etc/protofleet/template:ro" in inside
    for wrong in (ModelSettings("/srv/my models"), ModelSettings("/srv/%h")):
        with pytest.raises(SettingsError, match=r"models.folder is '/srv/.*a path without spaces"):
            unit_of(jetson(), host, replace(settings, models=wrong), software)


def test_a_unit_counts_a_stop_by_systemd_as_success_and_restarts_after_other_stops(written):
    """tests/hostile/test_signals.py has the exit codes of real processes that end by a signal."""
    settings = boards_of(written)[0]
    coordinator = service_unit(ROLES["coordinator"], jetson(), Host("127.0.0.10"))
    devices = [
        unit_of(jetson(), Host("127.0.0.11"), settings, software)
        for software in (Software(), Software("container", image="board@sha256:" + "ab" * 32))
    ]
    for unit in devices:
        assert {"SuccessExitStatus=143", "Restart=always"} <= set(
            unit.splitlines()
        ) and "KillSignal" not in unit
    # The unit stays active after a success, so only a real success may count as one.
    assert {"RemainAfterExit=yes", "Restart=on-failure"} <= set(coordinator.splitlines())
    assert {"KillSignal=SIGINT", "SuccessExitStatus=130"} <= set(coordinator.splitlines())


def test_init_adds_a_device_and_keeps_the_rest_of_the_fleet_file(written, capsys):
    path = written / "fleet.toml"
    path.write_text("# mine\n" + path.read_text())
    assert main(["init", "fleet", "--device", "board.3=127.0.0.13"]) == 0
    assert (
        path.read_text().startswith("# mine\n") and read_fleet(path).hosts["board.3"].address == "127.0.0.13"
    )
    assert "board.3" in (written / "targets.json").read_text()
    before = path.read_text()
    for wrong, words in {
        "board-1=127.0.0.99": "has a host board-1 already",
        "board-9=127.0.0.11": "have the same address",
        "board-9": "must be NAME=USER@ADDRESS",
        "board-9=a b": "must be a host's name or address",
        "board-9=@": "is not a host",
    }.items():
        capsys.readouterr()
        assert main(["init", "fleet", "--device", wrong]) == 2
        said = capsys.readouterr().err
        assert words in said and len(said.splitlines()) == 1, said
        assert path.read_text() == before


def test_init_does_not_overwrite_an_existing_fleet(written, capsys):
    before = (written / "fleet.toml").read_bytes()
    assert main(INIT) == 2 and "fleet.toml exists" in capsys.readouterr().err
    assert (written / "fleet.toml").read_bytes() == before
    assert main(["init", "other", "--device", "a=127.0.0.1"]) == 2
    assert "needs --broker and --coordinator" in capsys.readouterr().err
    assert main(["init", "other", "--broker", "a", "--coordinator", "a", "--device", "broker=b"]) == 2
    assert (
        "because the host with this name has another role" in capsys.readouterr().err
        and not (written.parent / "other").exists()
    )


def test_git_ignores_the_private_keys_of_a_new_fleet(written):
    folder = written.parent
    subprocess.run(["git", "init", "-q", "."], cwd=folder, check=True)
    shown = ["git", "status", "--porcelain", "--untracked-files=all"]
    files = subprocess.run(shown, cwd=folder, check=True, capture_output=True, text=True).stdout
    assert "fleet/fleet.toml" in files and "root" not in files and ".key" not in files


def test_a_missing_ssh_key_is_reported_at_once_and_when_a_host_refuses_the_login(written, capsys):
    assert main([*INIT[:1], "other", *INIT[2:], "--key", "nowhere"]) == 2
    assert "--key is nowhere, but this file does not exist; give the path" in capsys.readouterr().err
    host = Host("127.0.0.10", key="/nowhere/key")
    refused = CommandResult(255, "", "Permission denied (publickey).")
    ssh = Ssh("hub", host, read_fleet(written / "fleet.toml"), written, lambda *_: refused)
    with pytest.raises(UnreachableError, match="there is no file /nowhere/key, which hosts.hub.key names"):
        ssh.run("true")


def test_a_fleet_reports_a_doubt_if_devices_use_another_broker_address(written):
    path = written / "fleet.toml"
    assert read_fleet(path).doubts() == []
    path.write_text(path.read_text().replace('host = "127.0.0.10"', 'host = "127.0.0.99"'))
    (note,) = read_fleet(path).doubts()
    assert "at 127.0.0.99" in note and "broker, is at 127.0.0.10" in note


@pytest.mark.parametrize(
    ("table", "words"),
    [
        (
            {"hosts": {"hub": {"address": "a", "role": "coordinator"}}},
            r"the coordinator's host must be .hosts.coordinator.",
        ),
        ({"hosts": {"coordinator": {"address": "a"}}}, "host must be .hosts.coordinator., and no other"),
        ({"hosts": {"a": {"address": "a", "role": "boss"}}}, "must be one of broker, coordinator, device"),
        ({"hosts": {"a": {"address": "a", "role": "broker"}}}, "name the folder for its keys"),
        (
            {"broker": "b", "hosts": {n: {"address": n, "role": "broker"} for n in "ab"}},
            "a and b have the role broker",
        ),
        (
            {
                "software": {"kind": "container", "archive": "x.tar"},
                "hosts": {"coordinator": {"address": "a", "role": "coordinator"}},
            },
            'add software = { kind = "venv" }',
        ),
    ],
)
def test_a_fleet_with_invalid_roles_is_refused_with_a_fix(table, words):
    with pytest.raises((SettingsError, ValueError), match=words):
        decode(Fleet, {"root": "root", **table})


def test_one_machine_may_be_broker_coordinator_and_device():
    hosts = {
        "broker": Host("hub", role="broker"),
        "coordinator": Host("hub", role="coordinator"),
        "d": Host("hub"),
    }
    fleet = Fleet("root", hosts, broker="broker")
    assert fleet.of_role("broker") == ["broker"]
    places = [{role.top, role.etc, role.home, role.shown, role.user, role.service} for role in ROLES.values()]
    assert not places[0] & places[1] and not places[1] & places[2], "the roles share no path, user or service"


def test_a_host_may_have_its_own_software():
    hosts = {"a": Host("a"), "b": Host("b", software={"dependencies": "index"})}
    fleet = Fleet("root", hosts, software=Software(dependencies="system", python="python3.12"))
    assert fleet.software_of("a") is fleet.software
    assert fleet.software_of("b") == Software(dependencies="index", python="python3.12")


COORDINATOR = replace(WANTED, role=ROLES["coordinator"], lists="lists", revoked="revoked", targets="targets")
BROKER = replace(WANTED, role=ROLES["broker"], release="0", lists="lists")
PRESENT = InstalledSettings(SETTINGS, 5)
RUNNING = {"lists": "lists", "revoked": "revoked", "status": None, "answers": "ok"}
BROKER_GOOD = KnownGood("0", SETTINGS, UNIT, "eve@desk", NOW)


def steps(wanted, present=PRESENT, prometheus=False, **here):
    found = plan(jetson(installed=deployed(**RUNNING | here), prometheus=prometheus), wanted, [], present)
    return [name_of(step) for step in found]


def test_a_broker_has_no_build_step_and_a_coordinator_no_soak_step():
    new = jetson()
    fresh = ["configure", "switch", "start", "health", "record"]
    found = [name_of(step) for step in plan(new, BROKER, [], InstalledSettings())]
    assert found == ["prepare", "enrol", *fresh]
    found = [name_of(step) for step in plan(new, COORDINATOR, [], InstalledSettings())]
    assert found == ["prepare", "ship", "build", "enrol", "admit", *fresh]


def test_a_plan_has_no_steps_for_a_host_in_the_desired_state():
    service = Service("active", "running", True, 77, 0, "0", WANTED.unit_mark)
    assert steps(BROKER, good=BROKER_GOOD, release="0", service=service) == []
    assert steps(COORDINATOR) == []
    assert steps(COORDINATOR, service=Service("active", "exited", True), answers="") == [], "its run is over"
    assert steps(COORDINATOR, service=Service("active", "exited", True), answers="", good=None) == [
        "start", "health", "record",
    ]  # fmt: skip


def test_changes_of_lists_and_targets_need_no_restart():
    service = Service("active", "running", True, 77, 0, "0", WANTED.unit_mark)
    assert steps(BROKER, good=BROKER_GOOD, release="0", service=service, lists="old") == ["enrol"]
    assert steps(COORDINATOR, lists="old") == ["admit"] and steps(COORDINATOR, revoked="old") == ["enrol"]
    assert steps(COORDINATOR, prometheus=True) == ["targets"]
    assert steps(COORDINATOR, answers="broker: there is no session") == ["health"]


def test_the_host_of_a_broker_needs_mosquitto_and_no_torch():
    fit = jetson(
        tools=frozenset({"rsync", "python3", "mosquitto", "ssh-keygen"}),
        mosquitto="2.0.11",
        venv=False,
        probe=None,
    )
    assert not [
        check
        for check in run_checks(fit, Workload("broker"), NOW)
        if check.verdict != "PASS" and check.name != "L4T"
    ]
    bare = run_checks(replace(fit, tools=fit.tools - {"mosquitto"}, mosquitto=""), Workload("broker"), NOW)
    assert [c.fix for c in bare if c.verdict == "FAIL"] == ["apt-get install mosquitto"]
    old = run_checks(replace(fit, mosquitto="1.6.12"), Workload("broker"), NOW)
    assert [c.reason for c in old if c.verdict == "FAIL"] == ["1.6.12 is too old"]


class Desk:
    """An operator's machine with a fleet of three recorded hosts."""

    def __init__(self, folder):
        self.folder, self.boards = folder, {}
        for name in ("mqtt", "coordinator", "board-1"):
            facts = {
                **FIT,
                "tool": "rsync\npython3\nmosquitto\nssh-keygen",
                "mosquitto": "2.0.11",
                "answers": "ok",
            }
            facts["answers"] = "" if name == "board-1" else "ok"
            self.boards[name] = RecordedBoard(folder / name, facts)
        (folder / "sockets").mkdir()
        (folder / "fleet/wheels").mkdir()
        (folder / "fleet/wheels/protofleet-0-py3-none-any.whl").write_bytes(b"a wheel")
        path = folder / "fleet/fleet.toml"
        path.write_text(
            path.read_text()
            .replace("[hosts.broker]", "[hosts.mqtt]")
            .replace('"index"', '"system"\nwheels = "wheels"')
            .partition("\n[hosts.board-2]")[0]
        )

    def deploy(self, step, *hosts, **more):
        given = {"yes": True, "replace": False, "force": False, "strict": False, "reason": "", "broker": None}
        given |= {"fleet": self.folder / "fleet/fleet.toml", "hosts": list(hosts), **more}
        before = {name: len(board.lines) for name, board in self.boards.items()}
        self.code = commands.run(
            step, argparse.Namespace(**given), recording(self.boards, self.folder / "sockets")
        )
        return {name: board.lines[before[name] :] for name, board in self.boards.items()}


@pytest.fixture
def desk(written, tmp_path):
    return Desk(tmp_path)


def test_apply_deploys_the_broker_then_the_coordinator_then_the_devices(desk, capsys):
    said = desk.deploy("apply")
    assert desk.code == 0, capsys.readouterr()
    history = [json.loads(line) for line in (desk.folder / "fleet/deploy.log").read_text().splitlines()]
    order = list(dict.fromkeys(row["host"] for row in history))
    assert order == ["mqtt", "coordinator", "board-1"]
    keys = next(line for line in said["mqtt"] if "tls.key" in line)
    sent = "acl,ca.crt,crl.pem,manifest,manifest.sig,roots,tls.crt,tls.key"
    assert keys == f"rsync {sent} 127.0.0.10:/opt/protofleet-broker/incoming/"
    command = next(
        c for c in desk.boards["mqtt"].commands if c[0] == "rsync" and c[-1].endswith("broker/incoming/")
    )
    private = [c for c in desk.boards["mqtt"].commands if "--chmod=D0700,F0600" in c]
    assert command and len(private) == 1, "only the keys are sent with modes that no other user can read"
    assert (
        "rsync board-1.record,coordinator.record 127.0.0.10:/etc/protofleet-coordinator/records/"
        in said["coordinator"]
    )
    assert desk.deploy("apply") == {name: ["facts.sh quick"] for name in desk.boards}, (
        "a second deployment changes nothing"
    )


@pytest.mark.parametrize(("step", "host", "more", "words"), [
    ("backup", "board-1", {}, "board-1 is not the coordinator, and backup works only on the coordinator's"),
    ("restore", "mqtt", {}, "mqtt is not the coordinator, and restore works only on the coordinator's"),
    ("restore", "coordinator", {}, "nowhere is no folder; name the folder of a backup with --from; `protofleet"),
    ("tune", "board-1", {"set": ["paused"]}, "--set is 'paused', which is not of the form KEY=VALUE, such as paused"),
])  # fmt: skip
def test_an_error_names_the_argument_that_the_operator_typed(desk, step, host, more, words):
    given = {
        "to": Path("nowhere"),
        "source": Path("nowhere"),
        "from_round": None,
        "hours": 1.0,
        "set": [],
        **more,
    }
    with pytest.raises(SettingsError) as told:
        desk.deploy(step, host, **given)
    assert str(told.value).startswith(words)


@pytest.mark.parametrize("step", ["plan", "status", "doctor"])
def test_hosts_are_listed_in_the_order_in_which_they_are_deployed(desk, capsys, step):
    desk.deploy(step)
    named = [line.split()[0].rstrip(":") for line in capsys.readouterr().out.splitlines()]
    assert list(dict.fromkeys(name for name in named if name in desk.boards)) == [
        "mqtt",
        "coordinator",
        "board-1",
    ]
    desk.deploy(step, json=True)
    assert list(json.loads(capsys.readouterr().out)["hosts"]) == ["mqtt", "coordinator", "board-1"]


def test_devices_are_deployed_in_the_order_of_the_fleet_file():
    roles = {"zebra": "device", "coordinator": "coordinator", "apple": "device", "mqtt": "broker"}
    hosts = {name: Host(f"10.0.0.{i}", role=role) for i, (name, role) in enumerate(roles.items())}
    fleet = Fleet("root", hosts, broker="broker")
    assert list(fleet.selected([])) == ["mqtt", "coordinator", "zebra", "apple"]
    assert list(fleet.selected(["apple", "zebra"])) == ["zebra", "apple"]


def test_a_broker_with_a_new_address_gets_a_certificate_for_both_with_its_old_key(desk, capsys):
    desk.deploy("apply")
    root, own = desk.folder / "fleet/root/certs/mqtt.crt", desk.folder / "fleet/broker/current/tls.key"
    key, path = own.read_bytes(), desk.folder / "fleet/fleet.toml"
    before = names_in(root)
    path.write_text(path.read_text().replace(f'host = "{before[0]}"', 'host = "mqtt.lab"'))
    said = desk.deploy("apply")
    assert desk.code == 0, capsys.readouterr()
    assert names_in(root) == ["mqtt.lab", *before] and own.read_bytes() == key
    assert any("tls.crt" in line for line in said["mqtt"]), "the host gets the certificate too"
    assert desk.deploy("apply")["mqtt"] == ["facts.sh quick"], "once"


def names_in(path):
    return host_names(x509.load_pem_x509_certificate(path.read_bytes()))


def test_a_revocation_reaches_broker_coordinator_and_board_and_replace_undoes_it(desk, capsys):
    desk.deploy("apply")
    capsys.readouterr()
    said = desk.deploy("revoke", "board-1")
    assert "remote.sh install_keys mqtt" in said["mqtt"] and "remote.sh switch" not in " ".join(said["mqtt"])
    assert any(line.startswith("rsync coordinator.record ") for line in said["coordinator"])
    assert said["board-1"] == ["remote.sh erase_keys"]
    acl = desk.boards["mqtt"].incoming["acl"].decode()
    assert "user board-1\ntopic deny" in acl
    capsys.readouterr()
    desk.deploy("status")
    assert "revoked 20" in capsys.readouterr().out and desk.code == 1
    assert desk.deploy("apply", "board-1")["board-1"] == ["facts.sh quick"] and desk.code == 1
    assert "was revoked" in (said := capsys.readouterr().err) and "use --replace to enrol it again" in said
    assert desk.deploy("apply", "board-1", replace=True)["mqtt"][-1] == "remote.sh install_keys mqtt", (
        "the broker gets the list after a new enrolment too"
    )
    assert "user board-1" not in desk.boards["mqtt"].incoming["acl"].decode() and desk.code == 0
    for step in ("revoke", "tune", "rollback"):
        with pytest.raises(SettingsError, match="mqtt is not a device"):
            desk.deploy(step, "mqtt") if step != "tune" else commands.run(
                step,
                argparse.Namespace(fleet=desk.folder / "fleet/fleet.toml", hosts=["mqtt"], set=[], hours=1.0),
                recording(desk.boards, desk.folder / "sockets"),
            )


@pytest.fixture
def copied(desk, capsys):
    """Restore the root from a copy that is older than the revocation of board-1, which the hosts know."""
    desk.deploy("apply")
    root, copy = desk.folder / "fleet/root", desk.folder / "copy"
    shutil.copytree(root, copy)
    desk.deploy("revoke", "board-1", reason="sold")
    version = Authority(root).register.version
    shutil.rmtree(root)
    copy.rename(root)
    capsys.readouterr()
    desk.versions = (Authority(root).register.version, version)
    return desk


def test_a_root_older_than_a_revocation_is_refused_if_one_host_holds_a_newer_list(copied):
    held = {name: dict(copied.boards[name].facts) for name in ("coordinator", "mqtt")}
    kept, here, there = copied.folder / "fleet/broker/current/revoked", *copied.versions
    ours, register = kept.read_bytes(), copied.folder / "fleet/root/register.json"
    before = register.read_bytes()
    for step, told_by in itertools.product(("plan", "apply"), ("coordinator", "mqtt", "fleet/broker")):
        for name, facts in held.items():
            silent = {} if name == told_by else {"held_revoked": "", "held_crl": ""}
            copied.boards[name].facts = facts | silent
        kept.write_bytes(ours) if told_by == "fleet/broker" else kept.unlink(missing_ok=True)
        with pytest.raises(RunError) as refused:
            copied.deploy(step, "board-1")
        said = str(refused.value)
        assert f"root is older than what the hosts hold: its list of revoked names is {here} (20" in said
        assert f"{told_by} holds {there} (20" in said and "revoked on hosts but valid here: board-1" in said
        assert "restore a newer copy of the root, or revoke again: `protofleet deploy revoke board-1`" in said
        assert "docs/day-2.md, Lose the root" in said and "\n" not in said
    assert register.read_bytes() == before


@pytest.mark.parametrize("step", ["status", "doctor"])
def test_status_and_doctor_report_an_older_root_in_one_line(copied, capsys, step):
    kept = copied.folder / "fleet/broker/current/revoked"
    kept.unlink(missing_ok=True)
    copied.deploy(step, "coordinator")
    (line,) = (
        line for line in capsys.readouterr().out.splitlines() if "older than what the hosts hold" in line
    )
    assert f"coordinator holds {copied.versions[1]} (20" in line and "docs/day-2.md, Lose the root" in line
    assert copied.code == 1
    copied.deploy(step, "coordinator", json=True)
    assert json.loads(capsys.readouterr().out)["root"] == line
    copied.boards["coordinator"].facts |= {"held_revoked": "", "held_crl": ""}
    copied.deploy(step, "coordinator", json=True)
    assert json.loads(capsys.readouterr().out)["root"] == ""


def test_rollback_refuses_a_coordinator_and_contacts_no_host(desk):
    desk.deploy("apply")
    asked = {name: list(board.lines) for name, board in desk.boards.items()}
    with pytest.raises(
        SettingsError, match="coordinator is not a device, .*: change the fleet's file back and dep"
    ):
        desk.deploy("rollback", "coordinator")
    assert {name: board.lines for name, board in desk.boards.items()} == asked


def test_a_second_revocation_with_an_older_root_makes_it_the_newest(copied, capsys):
    said = copied.deploy("revoke", "board-1")
    assert "remote.sh install_keys mqtt" in said["mqtt"], capsys.readouterr()
    assert "user board-1\ntopic deny" in copied.boards["mqtt"].incoming["acl"].decode()
    look = ["facts.sh quick"]
    assert copied.deploy("plan", "mqtt") == {"mqtt": look, "coordinator": look, "board-1": []}, "once each"
    assert copied.code == 0, capsys.readouterr()


def test_the_error_for_a_lost_root_advises_a_restore_and_no_new_root(written, capsys):
    """No deployment is needed to know that a root existed, as `init` has made one."""
    fleet = ["--fleet", "fleet/fleet.toml"]
    key, kept, root = written / "root/roots/1/root.key", written / "kept", written / "root"
    key.rename(kept)
    assert main(["deploy", "plan", *fleet]) == 2
    said = capsys.readouterr().err
    assert (
        f"{key.relative_to(written.parent)} is missing: restore your copy of fleet/root (docs/day-2.md, Lose"
        in said
    )
    kept.rename(key)
    (root / "register.json").rename(kept)
    assert main(["enrol", "list", "--root", "fleet/root"]) == 2
    assert "register.json is missing: restore your copy of fleet/root" in capsys.readouterr().err
    shutil.rmtree(root)
    for command in (["deploy", "plan", *fleet], ["init", "fleet", "--device", "board-9=127.0.0.19"]):
        assert main(command) == 2
        said = capsys.readouterr().err
        assert "fleet/root is missing: restore your copy" in said and "enrol root" not in said, said
    (written / "targets.json").unlink()
    assert main(["deploy", "plan", *fleet]) == 2, "no file shows that there was a root"
    assert "for a new federation, `protofleet enrol root fleet/root` makes a root" in capsys.readouterr().err


MISTAKES = {
    "coordinator.foo is not a setting": ("[coordinator]\n", "[coordinator]\nfoo = 1\n"),
    "no method 'fedagv'; did you mean fedavg?": ('"fedavg"', '"fedagv"'),
    "coordinator.network": ('"cnn23"', '"cnn32"'),
    "device (board-1).threads": ("[device]\n", '[device]\nthreads = "two"\n'),
    "device (board-2).foo": ("[hosts.board-2.device]\n", "[hosts.board-2.device]\nfoo = 1\n"),
    "device.federation of board-1": ("[device]\n", '[device]\nfederation = "other"\n'),
    "broker.port": ("port = 8883", "port = 0"),
    "data.source is 'digit'": ('"digits"', '"digit"'),
    "hosts.board-2.software.kind": ("[hosts.board-2]\n", "[hosts.board-2]\nsoftware = { kind = 1 }\n"),
    "care.canary": ("[coordinator]\n", "[care]\ncanary = 0\n[coordinator]\n"),
    "mosquitto.foo": ("[coordinator]\n", "[mosquitto]\nfoo = 0\n[coordinator]\n"),
    "set metrics_host": ('address = "127.0.0.11"', 'address = "board-1"'),
    "broker.password": ("port = 8883", 'port = 8883\npassword = "x"'),
    "nowhere.py": ("[coordinator]\n", '[coordinator]\nplugins = { files = ["nowhere.py"] }\n'),
    "is not TOML": ("[coordinator]\n", "[coordinator\n"),
}


@pytest.mark.parametrize("words", MISTAKES)
def test_a_mistake_in_the_fleet_file_is_reported_in_one_line_that_names_the_file_once(
    one_written, capsys, words
):
    path, good = one_written / "fleet.toml", (one_written / "good.toml").read_text()
    path.write_text(good.replace(*MISTAKES[words]))
    assert path.read_text() != good
    assert main(["deploy", "plan", "--fleet", str(path)]) == 2
    said = capsys.readouterr().err
    assert len(said.splitlines()) == 1 and words in said, said
    assert said.startswith(f"protofleet: {path}") and said.count(str(path)) == 1, said


@pytest.fixture(scope="module")
def one_written(tmp_path_factory):
    """Return a folder that `deploy init` has written, which the tests of all mistakes share."""
    folder = tmp_path_factory.mktemp("one") / "fleet"
    assert main([INIT[0], str(folder), *INIT[2:]]) == 0
    shutil.copy(folder / "fleet.toml", folder / "good.toml")
    return folder


def test_an_error_about_wheels_or_a_unit_names_the_fleet_file_too(desk):
    path = desk.folder / "fleet/fleet.toml"
    good = path.read_text()
    for words, change in {
        "software.wheels is": ('wheels = "wheels"', 'wheels = "none"'),
        "models.folder is": ('serve = "auto"', 'folder = "/srv/my models"'),
    }.items():
        path.write_text(good.replace(*change))
        with pytest.raises(SettingsError) as refused:
            desk.deploy("plan")
        assert str(refused.value).startswith(f"{path}: ") and words in str(refused.value)


def copy_of(folder, *runs):
    folder.mkdir()
    with tarfile.open(folder / "runs.tar", "w") as copy:
        for run in runs:
            copy.addfile(tarfile.TarInfo(f"runs/{run}/coordinator/spool.sqlite"))
    return folder


def test_a_restore_from_an_unusable_copy_contacts_no_host(desk, tmp_path):
    desk.deploy("apply")
    before = [list(board.lines) for board in desk.boards.values()]
    (tmp_path / "torn").mkdir()
    (tmp_path / "torn/runs.tar").write_bytes(b"half a copy")
    for source, words in {
        copy_of(
            tmp_path / "older", "winter"
        ): "holds winter, but coordinator.name in the fleet's file is first",
        tmp_path / "torn": "cannot be read",
        tmp_path / "nowhere": "is no folder; name the folder of a backup",
        tmp_path: "has no runs.tar; name the folder of a backup",
    }.items():
        with pytest.raises(SettingsError, match=words):
            desk.deploy("restore", "coordinator", source=source, from_round=None)
    assert [list(board.lines) for board in desk.boards.values()] == before


def test_a_failed_restore_keeps_the_earlier_runs_and_starts_them(desk, tmp_path, capsys):
    desk.deploy("apply")
    desk.boards["coordinator"].fails = {"go_on": "round 5000 is below the copy's"}
    source = copy_of(tmp_path / "copy", "first")
    said = desk.deploy("restore", "coordinator", source=source, from_round=5000)["coordinator"]
    assert desk.code == 1 and said[-2:] == ["remote.sh put_before_back", "remote.sh start"]
    assert "the earlier runs are in place again" in capsys.readouterr().out
    desk.boards["coordinator"].fails = {}
    assert "go_on" in " ".join(
        desk.deploy("restore", "coordinator", source=source, from_round=5000)["coordinator"]
    )
    assert desk.code == 0 and "the earlier runs are kept as runs.before" in capsys.readouterr().out


def test_hosts_without_a_role_are_devices():
    table = tomllib.loads('root = "root"\n[hosts.a]\naddress = "b"\n')
    assert (
        decode(Fleet, table).hosts["a"].role == DEVICE.name and decode(Fleet, table).of_role("broker") == []
    )
    assert RELEASE
