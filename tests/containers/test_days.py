"""The pages of the first and the second day, executed: real SSH, real systemd, the host's own Mosquitto.

Each test continues with the state that the previous test has left, as an operator does.
"""

import os

import pytest

from tests.containers.desk import Desk, commands_of
from tests.containers.devices import bench_on
from tests.support.installed import installed_in, own_environment, wheel_in

pytestmark = [pytest.mark.containers, pytest.mark.timeout(1800)]


@pytest.fixture(scope="module")
def desk(engine, tmp_path_factory):
    with bench_on(engine, tmp_path_factory.mktemp("bench")) as bench:
        made = Desk(tmp_path_factory.mktemp("desk"), bench)
        made.hosts["10.0.0.10"] = bench.start(image=bench.with_mosquitto(), known=False)
        for address in ("10.0.0.11", "10.0.0.12"):
            made.hosts[address] = bench.start(known=False)
        for host in made.hosts.values():
            host.booted()
        yield made


def pid_of(host, role):
    return host.do("systemctl", "show", "-p", "MainPID", "--value", f"protofleet-{role}.service")


def hurry(fleet):
    """Remove the pauses and the early end from a new fleet's run, because each test waits for rounds."""
    text = fleet.read_text()
    for written, wanted in (
        ("pause_seconds = 960.0", "pause_seconds = 0.0"),
        ("patience = 20\n", "patience = 100000\n"),
    ):
        assert written in text, text
        text = text.replace(written, wanted)
    fleet.write_text(text)


def lose(host, role, label=""):
    """Delete all files of this role on the host, so that the host is like one with a new disk."""
    label = label or f"protofleet-{role}"
    host.sh(
        f"systemctl stop protofleet-{role}; rm -rf /opt/{label} /var/lib/{label} /etc/{label}"
        f" /etc/systemd/system/protofleet-{role}.service; systemctl daemon-reload"
    )


def test_the_five_commands_of_day_0_lead_to_the_first_round(desk):
    lines = [line for section in commands_of("day-0.md").values() for line in section]
    assert len(lines) <= 5, lines
    init, *others = lines
    said = [desk.say(init)]
    hurry(desk.folder / "fleet/fleet.toml")
    said += [desk.say(line) for line in others]
    assert "4 hosts: 4 to be changed, 0 with nothing to do, 0 cannot be deployed" in said[2]
    assert "4 hosts: 4 changed, 0 failed" in said[3]
    assert "answers" in said[4] and "board-2" in said[4]
    first = desk.wait(desk.rounds)[0]
    assert first["participants"] == ["board-1", "board-2"], "the run begins with all boards"
    log = desk.hub.do("journalctl", "-u", "protofleet-coordinator", "-o", "cat")
    assert "which belongs to other devices" not in log, log


def test_a_second_deployment_changes_nothing_and_private_files_are_protected(desk):
    before = {role: pid_of(desk.hub, role) for role in ("broker", "coordinator")}
    said = desk.say("make deploy HOSTS=fleet/fleet.toml")
    assert "4 hosts: 0 changed, 0 failed" in said and said.count("nothing to do") == 4
    assert {role: pid_of(desk.hub, role) for role in before} == before
    for role in ("broker", "coordinator"):
        service = f"protofleet-{role}.service"
        assert desk.hub.do("systemd-analyze", "verify", f"/etc/systemd/system/{service}") == ""
        security = desk.hub.do("systemd-analyze", "security", "--no-pager", service)
        assert float(security.splitlines()[-1].split(":")[1].split()[0]) <= 3.0, security
        assert desk.hub.sh(f"stat -c %U /proc/{before[role]}") == f"protofleet-{role}"
    private = "find /etc /opt /var/lib -path '*protofleet*' -perm /077 '(' -name '*.key' -o -name acl ')'"
    assert desk.hub.sh(private) == ""
    targets = (desk.folder / "fleet/targets.json").read_text().strip()
    assert desk.hub.do("cat", "/etc/prometheus/protofleet/targets.json") == targets


def test_broker_and_coordinator_are_rolled_back_to_the_good_release(desk):
    path = desk.folder / "fleet/fleet.toml"
    before = path.read_text()
    path.write_text(before + "\n[mosquitto]\nconnections = 500\n")
    assert "1 changed" in desk.say("make deploy HOST=broker HOSTS=fleet/fleet.toml")
    conf = desk.hub.do("cat", "/etc/protofleet-broker/mosquitto.conf")
    assert "max_connections 500" in conf
    assert "rolled back to release 0" in desk.say("make rollback HOST=broker HOSTS=fleet/fleet.toml")
    assert "max_connections 2000" in desk.hub.do("cat", "/etc/protofleet-broker/mosquitto.conf")
    good = desk.hub.do("readlink", "/opt/protofleet-coordinator/current")
    wrong = "[coordinator]\npatience_seconds = 2.0\nbroker = { port = 1 }\n"
    path.write_text(before.replace("[coordinator]\n", wrong) + "\n[care]\nhealth_seconds = 20.0\n")
    said = desk.say("make deploy HOST=coordinator HOSTS=fleet/fleet.toml", check=False)
    assert "the host was rolled back to release" in said and "which is healthy" in said, said
    assert desk.hub.do("readlink", "/opt/protofleet-coordinator/current") == good
    path.write_text(before)
    assert "4 hosts: 0 changed" in desk.say("make deploy HOSTS=fleet/fleet.toml ARGS=--force")


def test_an_installed_protofleet_deploys_without_a_checkout(desk, tmp_path, monkeypatch):
    programs = installed_in(tmp_path / "venv", wheel_in(tmp_path / "wheel"))
    home = {"HOME": str(tmp_path / "home"), "PATH": f"{programs}:{os.environ['PATH']}"}
    monkeypatch.setattr(desk, "environment", own_environment() | home)
    said = desk.say("protofleet deploy apply board-1 --fleet fleet/fleet.toml --force")
    assert "1 host: 1 changed, 0 failed" in said, said
    current = desk.hosts["10.0.0.11"].sh(
        "/opt/protofleet/current/bin/python -c 'import protofleet; print(*protofleet.__path__)'"
    )
    assert current.startswith("/opt/protofleet/")
    newest = len(desk.rounds())
    desk.wait(lambda: any("board-1" in row["participants"] for row in desk.rounds()[newest:]))


DAY_2 = commands_of("day-2.md")


def test_a_board_is_added_without_a_restart_of_other_hosts(desk):
    desk.hosts["10.0.0.13"] = desk.bench.start(known=False).booted()
    others = [(desk.hub, "broker"), (desk.hub, "coordinator"), (desk.hosts["10.0.0.11"], "device")]
    before = [pid_of(*other) for other in others]
    for line in DAY_2["Add a board"]:
        said = desk.say(line)
    assert "5 hosts: 2 changed, 0 failed" in said and "coordinator      targets: " in said
    desk.wait(lambda: "board-3" in desk.rounds()[-1]["participants"])
    assert [pid_of(*other) for other in others] == before, "no other service is started again"


def test_a_revoked_board_is_disconnected_and_can_be_enrolled_again(desk):
    said = desk.say("make revoke HOST=board-3 HOSTS=fleet/fleet.toml")
    assert "is disconnected from" in said and "its keys are destroyed" in said, said
    assert "user board-3" in desk.hub.do("cat", "/etc/protofleet-broker/keys/current/acl")
    assert "board-3.record" not in desk.hub.do("ls", "/etc/protofleet-coordinator/records")
    assert "use --replace" in desk.say("make deploy HOST=board-3 HOSTS=fleet/fleet.toml", check=False)
    said = desk.say("make deploy HOST=board-3 HOSTS=fleet/fleet.toml ARGS=--replace")
    assert "the broker gets new rules that accept the name again" in said and "1 changed, 0 failed" in said
    assert "user board-3" not in desk.hub.do("cat", "/etc/protofleet-broker/keys/current/acl")


def test_a_dead_board_is_replaced_under_the_same_name(desk):
    dead = desk.hosts["10.0.0.12"]
    lose(dead, "device", "protofleet")
    dead.sh("rm /etc/ssh/ssh_host_*; ssh-keygen -q -t ed25519 -N '' -f /etc/ssh/ssh_host_ed25519_key")
    dead.sh("systemctl restart ssh")
    first, second = DAY_2["Replace a dead board under its name"]
    assert "the known key is another key" in desk.say(first)
    assert "1 changed, 0 failed" in desk.say(second)
    since = len(desk.rounds())
    desk.wait(lambda: any("board-2" in row["participants"] for row in desk.rounds()[since:]))


def test_an_upgrade_during_a_run_loses_no_round(desk):
    path = desk.folder / "fleet/fleet.toml"
    path.write_text(path.read_text().replace("[software]\n", '[software]\npython = "/usr/bin/python3"\n'))
    before, release = desk.rounds(), desk.hub.do("readlink", "/opt/protofleet-coordinator/current")
    (line,) = DAY_2["Upgrade while a run is on"]
    assert "5 hosts: 4 changed, 0 failed" in desk.say(line)
    assert desk.hub.do("readlink", "/opt/protofleet-coordinator/current") != release
    desk.wait(lambda: len(desk.rounds()) > len(before) + 1)
    numbers = [row["round"] for row in desk.rounds()]
    assert numbers == list(range(1, len(numbers) + 1)), "no round is lost, and none occurs twice"


def test_the_method_changes_without_a_restart_of_the_devices(desk):
    path = desk.folder / "fleet/fleet.toml"
    text = path.read_text().replace('name = "first"', 'name = "second"')
    path.write_text(text.replace('name = "fedavg"', 'name = "fedprox"'))
    boards = [host for address, host in desk.hosts.items() if address != "10.0.0.10"]
    before = [pid_of(board, "device") for board in boards]
    (line,) = DAY_2["Change the method while devices stay up"]
    assert "1 changed, 0 failed" in desk.say(line)
    desk.wait(lambda: any(len(row["participants"]) == 3 for row in desk.rounds("second")))
    assert [pid_of(board, "device") for board in boards] == before
    assert desk.rounds("first"), "the result of the earlier run still exists"


def test_a_coordinator_is_restored_from_its_backup_on_an_empty_host(desk):
    backup, *rest = DAY_2["Restore a coordinator"]
    began = desk.hub.sh("date +%s")
    desk.say(backup)
    for role in ("broker", "coordinator"):
        log = desk.hub.do("journalctl", "-u", f"protofleet-{role}", "--since", f"@{began}", "-o", "cat")
        assert "Failed with result" not in log and "code=exited, status" not in log, log
    after = len(desk.rounds("second"))
    desk.wait(lambda: len(desk.rounds("second")) > after + 1)
    at = desk.rounds("second")[-1]["round"]
    lose(desk.hub, "coordinator")
    for line in rest:
        desk.say(line.replace("5000", str(at + 2)))
    rows = desk.wait(lambda: [row for row in desk.rounds("second") if row["round"] >= at + 2])
    assert len(rows[0]["participants"]) <= 3
    desk.wait(
        lambda: any(len(row["participants"]) == 3 for row in desk.rounds("second") if row["round"] >= at + 2)
    )


def test_a_broker_that_has_lost_its_disk_is_deployed_again(desk):
    lose(desk.hub, "broker")
    for line in DAY_2["Lose the broker's disk"]:
        said = desk.say(line)
    assert "1 changed, 0 failed" in said
    before = len(desk.rounds("second"))
    desk.wait(lambda: any(len(row["participants"]) == 3 for row in desk.rounds("second")[before:]))


def test_a_lost_root_is_restored_from_its_copy_or_replaced_by_a_new_root(desk):
    copied, again, *anew = DAY_2["Lose the root"]
    (desk.folder / "copy").mkdir()
    (desk.folder / "fleet/root").rename(desk.folder / "copy/root")
    desk.say(copied)
    assert "5 hosts: 0 changed, 0 failed" in desk.say(again)
    for line in anew:
        said = desk.say(line)
    assert "5 hosts: 5 changed, 0 failed" in said
    since = len(desk.rounds("first"))
    desk.wait(lambda: any(len(row["participants"]) == 3 for row in desk.rounds("first")[since:]))


BOARDS = commands_of("tutorial-engineer.md")["On the boards"]


def test_boards_serve_the_models_that_they_learn_and_are_rolled_back(desk, tmp_path):
    """The test begins with an empty folder. The boards were in another federation, whose root they must forget."""
    desk = replaced_in(desk, tmp_path)
    init, *deploy, versions, rollback, unpin = BOARDS
    desk.say(init)
    hurry(desk.folder / "fleet/fleet.toml")
    desk.say("protofleet deploy known-hosts --fleet fleet/fleet.toml")
    desk.say("protofleet deploy forget broker coordinator board-1 board-2 --fleet fleet/fleet.toml")
    for line in deploy:
        said = desk.say(line)
    assert "board-2" in said
    board = desk.hosts["10.0.0.11"]
    models = "/var/lib/protofleet/state/models"
    desk.wait(lambda: int(board.sh(f"ls {models} 2>/dev/null | grep -c '^v0' || true")) >= 2, 300)
    listed = desk.say(versions)
    assert "current" in listed and "previous" in listed and "global" in listed
    assert "(pinned; `protofleet model unpin` serves the newest version again)" in desk.say(rollback)
    pinned = board.sh(f"readlink {models}/current")
    before = len(desk.rounds())
    desk.wait(lambda: len(desk.rounds()) > before + 2)
    assert board.sh(f"readlink {models}/current") == pinned, (
        "the board continues to learn and serves the pinned version"
    )
    assert "the newest" in desk.say(unpin)
    assert board.sh(f"readlink {models}/current") != pinned


def replaced_in(desk, folder):
    """Return a new desk with the same hosts, as for an operator who begins with a new federation."""
    other = Desk(folder, desk.bench)
    other.hosts = desk.hosts
    return other
