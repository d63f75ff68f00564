"""Deployments to fake devices: real SSH, real rsync, real systemd, and a real federation."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest

from protofleet.deploy.fleet.settings import Software
from protofleet.deploy.fleet.software import make_release
from tests.containers.devices import NESTED, bench_on
from tests.containers.rig import Rig

STEPS = ["prepare", "ship", "build", "enrol", "configure", "switch", "start", "health", "soak", "record"]
pytestmark = [pytest.mark.containers, pytest.mark.timeout(1200)]
UNIT = "protofleet-device.service"


@pytest.fixture(scope="module")
def bench(engine, tmp_path_factory):
    with bench_on(engine, tmp_path_factory.mktemp("bench")) as made:
        made.start().booted()
        yield made


@pytest.fixture
def rig(bench, tmp_path):
    """Yield a maker of a fleet with this many devices and its broker."""
    made = []

    def make(count, image="", **others):
        devices = {f"board-{i}": bench.start() for i in range(count)}
        devices |= {name: bench.start(*flags, image=image) for name, flags in others.items()}
        for device in devices.values():
            device.booted()
        made.append(Rig(tmp_path, bench, devices))
        made[-1].start_broker()
        return made[-1]

    yield make
    for one in made:
        one.close()
        for device in one.devices.values():
            bench.stop(device)


def note(words):
    """Print a figure for a person who watches."""
    sys.__stderr__.write(f"\n{words}\n")


def show(device, key):
    return device.do("systemctl", "show", "-p", key, "--value", UNIT)


def test_a_fleet_joins_a_run_and_finishes_it_and_a_second_deployment_changes_nothing(rig):
    fleet = rig(3)
    first = fleet.start_coordinator(rounds=10_000)
    began = time.monotonic()
    said = fleet.deploy("apply", "--yes").stdout
    note(f"deployed to three devices in {time.monotonic() - began:.1f} s")
    assert "3 hosts: 3 changed, 0 failed" in said and said.count("fingerprint of its request") == 3

    before = {name: show(device, "MainPID") for name, device in fleet.devices.items()}
    notes, began = len(fleet.history()), time.monotonic()
    again = fleet.deploy("apply").stdout
    note(f"a second time in {time.monotonic() - began:.1f} s")
    assert again.count("nothing to do") == 3 and "3 hosts: 0 changed, 0 failed" in again
    assert {name: show(device, "MainPID") for name, device in fleet.devices.items()} == before
    assert len(fleet.history()) == notes, "a deployment without changes is not in the log"

    status = fleet.deploy("status").stdout
    assert all(f"{name} " in status for name in fleet.devices) and "*" not in status
    first.terminate()
    first.wait(20)
    run = fleet.start_coordinator("whole", rounds=4, quorum=3, gather=3)
    assert run.wait(240) == 0, fleet.log("whole")
    rows = [json.loads(line) for line in (fleet.folder / "runs/whole/rounds.jsonl").read_text().splitlines()]
    assert len([row for row in rows if row["kind"] == "training"]) == 4
    assert all(row["participants"] == sorted(fleet.devices) for row in rows)

    for row in fleet.history():
        assert row["who"] and row["when"] and row["host"] in fleet.devices
    steps = [row["step"] for row in fleet.history() if row["host"] == "board-0"]
    assert steps == STEPS
    for device in fleet.devices.values():  # No secret was sent, and no private file is readable for others.
        assert device.sh("find /var/lib/protofleet/keys -name '*.key' -perm /077") == ""
        assert device.sh("grep -rl 'PRIVATE KEY' /opt/protofleet/incoming /etc/protofleet || true") == ""


def test_each_broken_host_is_reported_with_its_fault_and_the_others_are_deployed(rig, bench):
    fleet = rig(1)
    fleet.start_coordinator(rounds=10_000)
    broken = {
        "no-disk": bench.start("--tmpfs", "/opt/protofleet:size=60m"),
        "wrong-arch": bench.start(),
        "no-clock": bench.start(),
        "no-sshd": bench.start(),
        "stranger": bench.start(known=False),
        "locked": bench.start(),
        "no-rsync": bench.start(),
    }
    for device in broken.values():
        device.booted()
    broken["wrong-arch"].sh(
        "printf '#!/bin/sh\\necho armv7l\\n' >/usr/local/bin/uname; chmod 755 /usr/local/bin/uname"
    )
    broken["no-clock"].sh(
        "printf '#!/bin/sh\\necho 13\\n' >/usr/local/bin/date; chmod 755 /usr/local/bin/date"
    )
    broken["no-sshd"].sh("systemctl stop ssh")
    broken["locked"].sh("rm /root/.ssh/authorized_keys")
    broken["no-rsync"].sh("rm /usr/bin/rsync")
    key = str(bench.key)
    hosts = {name: {"address": d.address, "user": "root", "key": key} for name, d in broken.items()}
    hosts["nowhere"] = {"address": "nowhere.invalid", "user": "root", "key": key}
    fleet.fleet(hosts)

    done = fleet.deploy("apply", "--yes", check=False)
    assert done.returncode == 1 and "9 hosts: 1 changed, 8 failed" in done.stdout
    told = {
        line.split(":")[1].strip(): line
        for line in done.stderr.splitlines()
        if line.startswith("protofleet: ")
    }
    words = {
        "no-disk": "0.1 GB are free; make room",
        "wrong-arch": "architecture: armv7l, for which there is no torch",
        "no-clock": "clock: it is set to 1970",
        "no-sshd": "; is sshd running, is the port right?",
        "stranger": "its host key is not known here",
        "locked": "it does not accept our key",
        "no-rsync": "rsync is not installed; apt-get install rsync",
        "nowhere": "its name cannot be resolved",
    }
    for name, expected in words.items():
        line = next(text for host, text in told.items() if host.startswith(name))
        assert expected in line, line
        if name in broken and name != "no-disk":
            assert broken[name].sh("ls /opt/protofleet 2>/dev/null || true") == "", "the host was not changed"

    fleet.fleet(hosts, software={"kind": "container", "image": f"edge@sha256:{'0' * 64}"})
    done = fleet.deploy("doctor", "no-disk", check=False)
    assert done.returncode == 1 and "FAIL  docker" in done.stdout and "docker is not installed" in done.stdout
    for device in broken.values():
        bench.stop(device)


def test_a_deployment_that_is_killed_in_any_step_can_be_repeated(rig):
    """The test goes once through all steps, and kills the deployment in each of them."""
    fleet = rig(1)
    fleet.start_coordinator(rounds=10_000)
    survived = []
    for step in STEPS:
        command = fleet.command("deploy", "apply", "--yes")
        with subprocess.Popen(
            command,
            cwd=fleet.folder,
            env=fleet.environment(),
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        ) as deployer:
            for line in deployer.stdout:
                if line.split()[1].rstrip(":") == step:
                    os.killpg(deployer.pid, signal.SIGKILL)
                    survived.append(step)
                    break
    assert len(survived) >= 7, survived  # A step may end in spite of the kill.
    assert (
        "1 host: 1 changed, 0 failed" in (said := fleet.deploy("apply", "--yes").stdout)
        or "0 changed" in said
    )
    assert "nothing to do" in fleet.deploy("apply").stdout
    device = fleet.devices["board-0"]
    assert device.sh("ls /opt/protofleet/incoming") == ""
    assert len(device.sh("ls /opt/protofleet/releases").split()) == 1


def test_a_change_that_fails_is_rolled_back_and_blocked(rig):
    fleet = rig(1)
    fleet.start_coordinator(rounds=10_000)
    fleet.deploy("apply", "--yes")
    device = fleet.devices["board-0"]
    good = device.do("readlink", "/opt/protofleet/current")

    fleet.fleet(device={"data": {"root": "/nowhere", "source": "folder"}})
    done = fleet.deploy("apply", check=False)
    assert (
        done.returncode == 1
        and "the service does not keep running" in done.stderr
        and "/nowhere" in done.stderr
    )
    assert "the host was rolled back to release" in done.stderr and "which is healthy" in done.stderr
    assert (
        device.do("readlink", "/opt/protofleet/current") == good and show(device, "ActiveState") == "active"
    )
    status = json.loads(device.do("cat", "/run/protofleet/status.json"))
    assert status["connected"] and status["heard"]
    again = fleet.deploy("apply", check=False)
    assert (
        again.returncode == 1
        and "has failed on this device before" in again.stderr
        and "--force" in again.stderr
    )

    fleet.fleet(device={"threads": 2})
    assert "1 changed, 0 failed" in fleet.deploy("apply").stdout, "another change is deployed"
    back = fleet.deploy("rollback").stdout
    assert "rolled back to release" in back
    settings = device.sh(
        "sed 1d /etc/protofleet/device.settings | base64 -di 2>/dev/null | tr -cd '[:print:]'"
    )
    assert "threads = 1" in settings and "threads = 2" not in settings
    assert show(device, "ActiveState") == "active"


def test_a_device_can_be_drained_restarted_and_revoked(rig):
    fleet = rig(2)
    fleet.start_coordinator(rounds=10_000)
    fleet.deploy("apply", "--yes")
    first, second = fleet.devices.values()
    assert "stopped, no work was in progress" in fleet.deploy("drain", "board-0").stdout
    assert (show(first, "ActiveState"), show(second, "ActiveState")) == ("inactive", "active")
    assert fleet.deploy("status", check=False).returncode == 1
    assert "1 changed" in fleet.deploy("apply").stdout and show(first, "ActiveState") == "active"

    said = fleet.deploy("revoke", "board-1", "--reason", "sold").stdout
    assert "its keys are destroyed" in said
    assert show(second, "ActiveState") == "inactive" and second.sh("ls /var/lib/protofleet") == "state"
    assert "revoked" in fleet.cli("enrol", "list", "--root", "root").stdout
    refused = fleet.deploy("apply", "board-1", "--yes", check=False)
    assert refused.returncode == 1 and "use --replace to enrol it again with new keys" in refused.stderr
    done = fleet.deploy("apply", "board-1", "--yes", "--replace").stdout
    assert "the broker accepts the name again" in done
    assert "enrol: the host has no keys yet" in done and "1 changed, 0 failed" in done, (
        "the board takes part again with new keys"
    )


def test_the_unit_is_valid_confined_and_has_a_watchdog(rig):
    fleet = rig(1)
    fleet.start_coordinator(rounds=10_000)
    fleet.deploy("apply", "--yes")
    device = fleet.devices["board-0"]
    assert device.do("systemd-analyze", "verify", f"/etc/systemd/system/{UNIT}") == ""
    security = device.do("systemd-analyze", "security", "--no-pager", UNIT)
    exposure = float(security.splitlines()[-1].split(":")[1].split()[0])
    note(f"exposure level {exposure}")
    assert exposure <= 2.5, security
    pid = show(device, "MainPID")
    assert device.sh(f"stat -c %U /proc/{pid}") == "protofleet"
    assert device.sh(f"grep CapEff /proc/{pid}/status").split()[1] == "0" * 16
    assert device.sh(f"grep NoNewPrivs /proc/{pid}/status").split()[1] == "1"
    assert " / / ro," in device.sh(f"head -1 /proc/{pid}/mountinfo"), (
        "the system is read-only for the service"
    )

    device.sh(f"mkdir -p /run/systemd/system/{UNIT}.d")
    device.sh(
        f"printf '[Service]\\nWatchdogSec=3s\\nRestartSec=1s\\n' >/run/systemd/system/{UNIT}.d/fast.conf"
    )
    device.sh(f"systemctl daemon-reload; systemctl restart {UNIT}")
    pid = show(device, "MainPID")
    device.do("kill", "-STOP", pid)
    fleet.wait(
        lambda: show(device, "MainPID") not in (pid, "0") and show(device, "ActiveState") == "active", 90
    )
    assert "watchdog" in device.sh(f"journalctl -u {UNIT} --no-pager | tail -n 40").lower()


def test_an_out_of_memory_kill_of_the_training_is_reported_and_the_agent_survives(rig, bench):
    """The training of a large batch needs too much memory. The weights, which the agent also has, are small."""
    fleet = rig(0, small=("-m", "900m", "--memory-swap", "900m"))
    fleet.fleet(device={"data": {"samples": 900}})
    device = fleet.devices["small"]
    modest = fleet.start_coordinator(rounds=10_000)
    fleet.deploy("apply", "--yes")
    agent, child = show(device, "MainPID"), device.do("pgrep", "-f", "trainer.child_process")
    modest.terminate()
    modest.wait(20)
    fleet.start_coordinator("greedy", rounds=5, network="resnet10", batch=800)
    fleet.wait(lambda: "small leaves: out_of_memory: the kernel has ended" in fleet.log("greedy"), 240)
    assert show(device, "MainPID") == agent and show(device, "NRestarts") == "0", "the agent continues to run"
    assert child not in device.do("pgrep", "-f", "trainer.child_process", check=False).split()


def test_a_device_runs_in_a_container_that_was_shipped_as_an_archive(rig, bench, tmp_path):
    """An engine inside the fake device runs the container. The image is sent as an archive, without a registry."""
    wheels = tmp_path / "wheels"
    make_release(Software(dependencies="system"), wheels)
    archive = bench.edge_archive(wheels)
    fleet = rig(0, image=bench.with_engine(), caged=NESTED)
    device = fleet.devices["caged"]
    fleet.start_coordinator(rounds=10_000)
    software = {
        "kind": "container",
        "archive": str(archive),
        "options": ["--volume", "/opt/vendor:/opt/vendor:ro"],
    }
    fleet.fleet(software=software)
    doctor = fleet.deploy("doctor").stdout
    assert "PASS  docker" in doctor

    began = time.monotonic()
    assert "1 changed, 0 failed" in fleet.deploy("apply", "--yes").stdout
    note(f"a container deployed in {time.monotonic() - began:.1f} s")
    assert "nothing to do" in fleet.deploy("apply").stdout
    found = json.loads(device.do("docker", "inspect", "protofleet-device"))[0]
    host = found["HostConfig"]
    assert (
        host["ReadonlyRootfs"]
        and host["CapDrop"] == ["ALL"]
        and host["PidsLimit"] == 256
        and host["Memory"] > 0
    )
    number = device.do("cat", "/opt/protofleet/current/image")
    assert found["Image"] == found["Config"]["Image"] == number, (
        "the container is started by the id of the image, not by a tag"
    )
    assert found["Config"]["User"] == device.sh('echo "$(id -u protofleet):$(id -g protofleet)"')
    assert not any("PRIVATE" in value or "KEY" in value for value in found["Config"]["Env"])
    assert device.do("systemd-analyze", "verify", f"/etc/systemd/system/{UNIT}") == ""
    assert "stopped, no work was in progress" in fleet.deploy("drain").stdout
    assert device.do("docker", "ps", "-q") == "" and "1 changed" in fleet.deploy("apply").stdout
