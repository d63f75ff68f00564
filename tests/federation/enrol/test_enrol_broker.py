"""Options of an enrolled broker get into its settings, or they are refused before any file is made."""

from __future__ import annotations

import os
import pwd
import subprocess
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import pytest

from protofleet.cli.main import main
from protofleet.federation.brokers.mosquitto import queue_limits, queues_are_full
from protofleet.federation.brokers.ports import free_port
from protofleet.federation.enrol import disconnect
from protofleet.federation.enrol.local_federation import tls_files
from protofleet.protocol.transport.address import BrokerAddress, BrokerError, preflight
from tests.support.enrol import enrol_in


@pytest.fixture
def lab():
    """Yield a folder that every user may enter, with a root and a coordinator."""
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        folder.chmod(0o755)
        enrol_in(folder, "root root --federation lab")
        enrol_in(folder, "coordinator --root root --folder coordinator")
        yield folder


def asked(folder, name="d1", part="device", more=""):
    enrol_in(folder, f"request {name} --federation lab --folder {name} {more}")
    enrol_in(folder, f"approve {name}/pending/request --root root --yes --part {part}")
    return f"install root/approvals/{name}.approval --folder {name} --yes"


def conf(folder, name="broker"):
    return (folder / name / "mosquitto.conf").read_text().splitlines()


def answers(folder, port, broker="broker"):
    """Start Mosquitto with the command that enrol printed, and return why it refuses the coordinator, or None."""
    address = replace(BrokerAddress(), port=port, host="localhost", tls=tls_files(folder / "coordinator"))
    settings = f"{broker}/mosquitto.conf"
    program = subprocess.Popen(["mosquitto", "-c", settings], cwd=folder, stderr=subprocess.PIPE)
    try:
        deadline = time.monotonic() + 30.0
        while (problem := preflight(address)) and program.poll() is None and time.monotonic() < deadline:
            time.sleep(0.05)
        return problem
    finally:
        program.terminate()
        program.communicate()


def test_an_enrolled_broker_starts_with_the_printed_command(lab):
    port = free_port()
    said = enrol_in(lab, f"broker localhost --root root --folder broker --port {port}")
    assert "broker: mosquitto -c broker/mosquitto.conf" in said
    assert answers(lab, port) is None
    if os.geteuid() == 0:
        assert conf(lab)[0] == "user mosquitto" and "who owns broker now" in said


@pytest.mark.slow
def test_a_later_install_adds_the_user_and_the_port_to_the_settings(lab):
    """This happens to a broker that was enrolled before its user existed, or that moves to another port."""
    me, port = pwd.getpwuid(os.geteuid()).pw_name, free_port()
    install = asked(lab, "broker", "broker", "--host localhost")
    enrol_in(lab, install)
    kept = [line for line in conf(lab) if not line.startswith("user")]
    (lab / "broker" / "mosquitto.conf").write_text("\n".join(kept) + "\n")  # as those of earlier versions
    said = enrol_in(lab, f"{install} --port {port} --user {me}")
    assert "restart Mosquitto: a reload does not change its listeners" in said
    assert conf(lab)[0] == f"user {me}" and f"listener {port} 0.0.0.0" in conf(lab)
    assert answers(lab, port) is None
    assert "restart Mosquitto" not in enrol_in(lab, f"{install} --port {port}"), (
        "the settings have this port already"
    )


@pytest.mark.slow
def test_settings_that_were_edited_by_hand_are_not_overwritten(lab):
    install = asked(lab, "broker", "broker", "--host localhost")
    enrol_in(lab, install)
    path = lab / "broker" / "mosquitto.conf"
    path.write_text(path.read_text() + "# ours\n")
    said = enrol_in(lab, f"{install} --listen 10.0.0.2 --plain-port 1884", code=2)
    assert "--listen, --plain-port cannot be put into it: edit the file yourself, or move it away" in said
    enrol_in(lab, install)
    assert conf(lab)[-1] == "# ours"
    path.unlink()
    enrol_in(lab, f"{install} --listen 10.0.0.2 --plain-port 1884")
    assert {"listener 8883 10.0.0.2", "listener 1884 127.0.0.1"} <= set(conf(lab))


@pytest.mark.slow
@pytest.mark.parametrize("options", ["--port 1883", "--plain-port 0 --user root", "--listen 127.0.0.1"])
def test_broker_options_for_a_device_are_refused_before_anything_is_installed(lab, options):
    install = asked(lab)
    said = enrol_in(lab, f"{install} {options}", code=2).splitlines()
    assert len(said) == 1 and said[0].startswith(f"protofleet: {options.split()[0]}")
    assert "d1 is a device; set host and port in the table [broker] of its settings" in said[0]
    assert not (lab / "d1" / "current").exists()
    enrol_in(lab, install)


@pytest.mark.slow
def test_an_unknown_user_is_refused_before_any_file_is_made(lab):
    said = enrol_in(lab, "broker localhost --root root --folder broker --user no-such", code=2)
    assert said == "protofleet: there is no user no-such on this machine\n" and not (lab / "broker").exists()
    enrol_in(lab, "broker localhost --root root --folder broker")


@pytest.mark.slow
def test_a_wrong_fingerprint_is_refused_even_if_the_root_is_known(lab):
    install = asked(lab)
    enrol_in(lab, install)
    assert "has another fingerprint" in enrol_in(lab, install.replace("--yes", "--fingerprint 0123"), code=2)
    right = next(
        line for line in enrol_in(lab, install.replace("--yes", "--fingerprint 0123"), code=2).splitlines()
    )
    enrol_in(lab, install.replace("--yes", f"--fingerprint {right.split(': ')[-1].replace(' ', '')}"))


def test_an_existing_fleet_refuses_another_federation_and_another_host(lab):
    enrol_in(lab, "fleet all d1 --federation lab")
    assert "all is a fleet of lab" in enrol_in(lab, "fleet all d1 --federation other", code=2)
    assert "is only for localhost, 127.0.0.1" in enrol_in(lab, "fleet all d1 --host b.example", code=2)
    assert "2 devices, a coordinator and a broker of lab" in enrol_in(lab, "fleet all d1 d2 --host localhost")


def test_the_option_user_is_refused_if_the_caller_is_not_root(lab, monkeypatch, capsys):
    monkeypatch.setattr(os, "geteuid", lambda: 54_321)
    assert main(["enrol", "fleet", str(lab / "all"), "d1", "--user", "nobody"]) == 2
    told = capsys.readouterr().err
    assert (
        "only root can give the broker's files to this user: run this command as root, or leave out" in told
    )
    assert len(told.splitlines()) == 1 and not (lab / "all").exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files to another user")
def test_a_broker_in_a_folder_closed_to_mosquitto_runs_as_root(lab):
    (lab / "closed").mkdir(mode=0o700)
    port = free_port()
    said = enrol_in(lab, f"broker localhost --root root --folder closed/broker --port {port}")
    assert "broker: mosquitto -c closed/broker/mosquitto.conf" in said
    assert f"keeps running as root, because mosquitto may not enter {lab / 'closed'} (mode 0700)" in said
    assert conf(lab, "closed/broker")[0] == "user root"
    assert answers(lab, port, "closed/broker") is None


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files to another user")
def test_a_named_user_without_access_to_the_folder_is_reported_with_a_fix(lab):
    (lab / "closed").mkdir(mode=0o700)
    said = enrol_in(lab, "broker localhost --root root --folder closed/broker --user mosquitto")
    assert (
        f"mosquitto, who may not enter {lab / 'closed'} (mode 0700): give this permission (chmod o+x" in said
    )


def test_the_error_for_a_reload_as_another_user_names_the_command_for_root(lab, monkeypatch):
    enrol_in(lab, "broker localhost --root root --folder broker")
    (lab / "broker" / "mosquitto.pid").write_text(f"{os.getpid()}\n")
    monkeypatch.setattr(Path, "is_dir", lambda path: False)  # a machine without /proc

    def refused(pid, number):
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "kill", refused)
    with pytest.raises(
        BrokerError, match=rf"as root, let Mosquitto reload the files: kill -HUP {os.getpid()}"
    ):
        disconnect.reload(lab / "broker")


@pytest.mark.slow
def test_the_option_devices_sets_the_queue_limits_of_a_broker(lab):
    enrol_in(lab, "broker localhost --root root --folder broker")
    assert "# Queues for 64 devices." in conf(lab)
    enrol_in(lab, "install root/approvals/broker.approval --folder broker --yes --devices 100 --port 8884")
    limits = queue_limits(2 << 30, 100)
    assert {"# Queues for 128 devices.", f"max_queued_bytes {limits.bytes}", "max_queued_messages 256"} <= {
        *conf(lab)
    }
    assert "listener 8884 0.0.0.0" in conf(lab)
    enrol_in(lab, "install root/approvals/broker.approval --folder broker --yes --port 8885")
    assert "# Queues for 128 devices." in conf(lab), "an earlier number of devices is kept"


def test_queue_limits_change_when_the_number_of_devices_passes_a_power_of_two():
    sizes = [queue_limits(2 << 30, devices).bytes for devices in (16, 17, 64, 65, 128)]
    assert sizes == sorted(sizes, reverse=True) and sizes[3] == sizes[4]
    assert [devices for devices in range(1, 600) if queues_are_full(devices)] == [65, 129, 257, 513]
