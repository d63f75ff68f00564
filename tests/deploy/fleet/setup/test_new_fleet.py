"""`init --queue` writes a coordinator that conducts submitted runs, and the first run as a file to submit."""

import json
import os

import pytest

from protofleet.cli.main import main
from protofleet.coordinator.queue_requests import queue_commands
from protofleet.deploy.fleet.control_plane import ControlPlane
from protofleet.deploy.fleet.device.coordinator_settings import load_settings
from protofleet.deploy.fleet.settings import (
    coordinator_settings,
    device_settings,
    queue_settings,
    read_fleet,
)
from protofleet.deploy.fleet.setup.new_fleet import robust_for
from protofleet.deploy.fleet.software import Releases
from protofleet.edge_client.group.device import runs_of
from protofleet.federation.enrol.authority import Authority
from protofleet.federation.enrol.local_federation import enrol
from protofleet.protocol.settings.reader import read_toml

FEDERATION = "protofleet"


def init(folder, *more, devices=2):
    boards = [word for i in range(devices) for word in ("--device", f"board-{i}=10.0.1.{i}")]
    return main(["init", folder, "--broker", "10.0.0.10", "--coordinator", "10.0.0.10", *boards, *more])


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Return the folder of a new fleet with a queue. The tests write further fleets into the same parent folder."""
    monkeypatch.chdir(tmp_path)
    assert init("fleet", "--queue") == 0
    return tmp_path / "fleet"


def bytes_in(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("devices", [1, 2, 3, 30])
def test_a_queue_with_its_first_run_has_the_settings_of_a_coordinator_of_one_run(
    tmp_path, monkeypatch, devices
):
    monkeypatch.chdir(tmp_path)
    assert init("one", devices=devices) == init("queue", "--queue", devices=devices) == 0
    one, other = (read_toml(tmp_path / name / "fleet.toml") for name in ("one", "queue"))
    assert one.pop("coordinator")["name"] == "first" and other.pop("coordinator").keys() == {
        "slots",
        "limits",
    }
    assert one == other, "the settings of the hosts are the same"
    run = coordinator_settings(read_fleet(tmp_path / "one/fleet.toml"), FEDERATION)
    service = queue_settings(read_fleet(tmp_path / "queue/fleet.toml"), FEDERATION)
    submitted = service.of_run("first", (tmp_path / "queue/first.toml").read_text())
    assert submitted == run and submitted.plan().encode() == run.plan().encode()
    assert not (tmp_path / "one/first.toml").exists()


def test_a_new_coordinator_with_a_queue_accepts_its_settings_and_first_run(folder, tmp_path):
    fleet = read_fleet(folder / "fleet.toml")
    control = ControlPlane(fleet, Releases(fleet, tmp_path / "releases"), lambda name, fingerprint: True)
    signed = control.signer.signed_settings("coordinator", control.desired.text("coordinator"), 0)
    (tmp_path / "coordinator.settings").write_text(signed)
    enrol(Authority(folder / "root"), tmp_path / "keys", "coordinator", 30)
    changes = [f"folder={tmp_path / 'runs'}"]
    service = load_settings(tmp_path / "coordinator.settings", str(tmp_path / "keys"), changes).service
    assert service.queue.slots == 1 and service.own.limits == queue_settings(fleet, FEDERATION).own.limits
    said = []

    def execute(command, submission, refusal):
        said.append((submission, refusal))
        return {"verdict": "done", "words": ""}

    text = (folder / "first.toml").read_text()
    request = {"id": "0" * 32, "verb": "submit", "run": "first", "reason": "", "after": "", "priority": 0}
    queue_commands(service, execute, lambda call: call())("ann", request | {"experiment": text})
    ((submission, refusal),) = said
    assert refusal == "" and (submission.rounds, submission.quorum) == (1000, 1)


@pytest.mark.parametrize(
    ("method", "table"),
    [
        ("fedproto", {"name": "fedproto", "least_samples": 5}),
        ("fedpall", {"name": "fedpall", "least_samples": 5}),
        ("fedavg", {"name": "fedavg", "lr": 0.05}),
        ("fedlsa", {"name": "fedlsa"}),
    ],
)
def test_a_first_run_has_least_samples_if_its_method_sends_class_statistics(
    tmp_path, monkeypatch, method, table
):
    monkeypatch.chdir(tmp_path)
    assert init("fleet", "--method", method) == 0
    settings = coordinator_settings(read_fleet(tmp_path / "fleet/fleet.toml"), FEDERATION)
    assert settings.method == table
    assert (b'"least_samples": 5' in settings.plan().encode()) == ("least_samples" in table)


def test_init_refuses_an_unknown_method_in_one_line(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert init("fleet", "--method", "fedx") == 2
    said = capsys.readouterr().err
    assert "--method: no method 'fedx'; did you mean fedprox?" in said and len(said.splitlines()) == 1
    assert not (tmp_path / "fleet").exists()
    assert init("fleet") == 0 and capsys.readouterr()
    assert main(["init", "fleet", "--method", "fedproto", "--device", "board-9=10.0.1.9"]) == 2
    assert "--method is for a new fleet" in capsys.readouterr().err


def test_a_new_queue_has_as_many_slots_as_a_board_has_runs(folder):
    fleet = read_fleet(folder / "fleet.toml")
    board = device_settings(fleet, FEDERATION, "board-0")
    assert queue_settings(fleet, FEDERATION).queue.slots == runs_of(board) == 1


def test_the_user_of_the_coordinator_can_read_the_file_of_the_first_run(tmp_path, monkeypatch):
    """`scp` gives the copy the mode of the file, and the copy belongs to root."""
    monkeypatch.chdir(tmp_path)
    before = os.umask(0o077)
    try:
        assert init("fleet", "--queue") == 0
    finally:
        os.umask(before)
    assert (tmp_path / "fleet/first.toml").stat().st_mode & 0o777 == 0o644


def test_init_does_not_overwrite_an_existing_fleet_with_a_queue(folder, capsys):
    before = bytes_in(folder)
    for more in (["--queue"], []):
        assert init("fleet", *more) == 2
        said = capsys.readouterr().err
        assert "fleet/fleet.toml exists already" in said and len(said.splitlines()) == 1
    assert main(["init", "fleet", "--queue", "--device", "board-9=10.0.1.9"]) == 2
    said = capsys.readouterr().err
    assert "--queue is for a new fleet, and fleet/fleet.toml exists; leave it out" in said
    assert len(said.splitlines()) == 1 and bytes_in(folder) == before


def test_an_init_that_was_interrupted_after_the_first_run_file_can_be_repeated(folder, capsys):
    before = bytes_in(folder)
    for name in ("fleet.toml", "targets.json"):
        (folder / name).unlink()
    assert init("fleet", "--queue") == 0 and bytes_in(folder) == before
    (folder / "fleet.toml").unlink()
    (folder / "first.toml").write_text("# mine\n")
    capsys.readouterr()
    assert init("fleet", "--queue") == 2
    said = capsys.readouterr().err
    assert "fleet/first.toml exists already; move this file away" in said and len(said.splitlines()) == 1
    assert (folder / "first.toml").read_text() == "# mine\n" and not (folder / "fleet.toml").exists()
    assert init("fleet") == 0, "without the option, a file of this name is the user's own"
    assert (folder / "first.toml").read_text() == "# mine\n"


def test_an_init_with_wrong_addresses_writes_no_file(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for address, words in {"10.0.1.0": "have the same address", "@": "is not a host"}.items():
        assert init("fleet", "--queue", "--device", f"board-9={address}") == 2
        assert words in capsys.readouterr().err
        assert not [path for path in tmp_path.rglob("*.toml") if path.is_file()]
    assert init("fleet", "--queue") == 0


def test_init_adds_a_board_to_a_fleet_with_a_queue(folder):
    run = (folder / "first.toml").read_bytes()
    assert main(["init", "fleet", "--device", "board-9=10.0.1.9"]) == 0
    fleet = read_fleet(folder / "fleet.toml")
    assert fleet.hosts["board-9"].device["data"]["domain"] == "mfeat"
    assert queue_settings(fleet, FEDERATION).queue.slots == 1 and (folder / "first.toml").read_bytes() == run


@pytest.mark.parametrize("step", ["plan", "doctor"])
def test_plan_and_doctor_report_unknown_bytes_for_a_fleet_with_a_queue(
    folder, tmp_path, monkeypatch, capsys, step
):
    ssh = tmp_path / "bin/ssh"
    ssh.parent.mkdir()
    ssh.write_text("#!/bin/sh\nexit 255\n")
    ssh.chmod(0o755)
    monkeypatch.setenv("PATH", str(ssh.parent), prepend=os.pathsep)
    capsys.readouterr()
    main(["deploy", step, "--fleet", "fleet/fleet.toml"])
    words = "bytes of a board: unknown, because they depend on the runs that are submitted to the coordinator"
    (line,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("bytes of a board")]
    assert line == words
    main(["deploy", step, "--fleet", "fleet/fleet.toml", "--json"])
    assert json.loads(capsys.readouterr().out)["bytes"] == words


def test_a_new_fleet_has_the_robust_rules_that_its_method_accepts(folder):
    assert read_toml(folder / "first.toml")["policy"]["robust"] == {"weights": "cap"}
    assert robust_for({"name": "fedproto"}) == {"prototypes": "clip_median"}
    both = {"name": "fedproto", "average_models": True}
    assert robust_for(both) == {"weights": "cap", "prototypes": "clip_median"}
    assert robust_for({"name": "fedplcc"}) == {}
