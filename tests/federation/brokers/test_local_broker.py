"""The brokers of `make demo` and of the tests start, serve and stop."""

import importlib.util
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import pytest

from protofleet.federation.brokers.local import LocalBroker, find_broker
from protofleet.protocol.transport import address as addresses
from protofleet.protocol.transport.address import BrokerAddress, BrokerError
from tests.conftest import PATIENCE

REPOSITORY = Path(__file__).parents[3]
preflight = partial(addresses.preflight, seconds=PATIENCE)  # even if the machine stops for some time


def until(happened, seconds=20.0):
    deadline = time.monotonic() + seconds
    while not happened():
        assert time.monotonic() < deadline, "it never happened"
        time.sleep(0.01)


def kind_of(broker: LocalBroker) -> str:
    return broker.describe().split()[0]


def listens(address: BrokerAddress) -> bool:
    with socket.socket() as sock:
        return sock.connect_ex((address.host, address.port)) == 0


def test_a_started_broker_answers_mqtt_on_the_loopback_and_states_its_version(any_broker):
    assert any_broker.address.host == "127.0.0.1"
    assert preflight(any_broker.address) is None
    name, version = any_broker.describe().split()[:2]
    assert name in ("mosquitto", "embedded") and version
    assert any_broker.log.read_text()


def test_a_broker_stops_at_the_end_of_its_with_block_and_keeps_its_port(tmp_path, any_broker):
    with LocalBroker(tmp_path, kind_of(any_broker)) as broker:
        first = broker.address
        assert listens(first)
    assert not listens(first)
    with broker:
        assert broker.address == first and listens(first)
    assert not listens(first)


def test_a_broker_listens_on_the_loopback_address_only(any_broker):
    assert not listens(BrokerAddress("127.0.0.2", any_broker.address.port))


@pytest.mark.parametrize("kind", ["mosquitto", "embedded"])
def test_a_broker_for_other_machines_must_use_tls(tmp_path, any_broker, kind):
    with pytest.raises(BrokerError, match=r'on 127\.0\.0\.2 must use TLS, .*broker\.tls = "on"'):
        LocalBroker(tmp_path, kind, host="127.0.0.2")


def test_a_crashed_broker_can_be_started_again(start_mosquitto):
    broker = start_mosquitto()
    broker.kill()
    assert not listens(broker.address)
    broker.start()
    assert preflight(broker.address) is None


def test_the_error_for_a_taken_port_names_the_port_and_a_fix(tmp_path, broker):
    port = broker.address.port
    with pytest.raises(BrokerError, match=f"port {port} on 127.0.0.1 is taken; .*0 means any free port"):
        LocalBroker(tmp_path, "mosquitto", port=port).start()


def test_the_error_for_wrong_mosquitto_settings_contains_the_message_of_mosquitto(tmp_path, broker):
    with pytest.raises(BrokerError, match=r"did not start: .*nonsense.*; see .*broker\.log"):
        LocalBroker(tmp_path, "mosquitto", extra_lines=["nonsense true"]).start()


def test_the_embedded_broker_refuses_mosquitto_settings(tmp_path, embedded):
    with pytest.raises(BrokerError, match="only Mosquitto supports"):
        LocalBroker(tmp_path, "embedded", extra_lines=["acl_file x"])


def test_the_error_for_a_missing_broker_names_two_ways_to_install_one(monkeypatch):
    monkeypatch.setattr(shutil, "which", lambda *place, **path: None)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    for kind in ("auto", "mosquitto", "embedded"):
        with pytest.raises(BrokerError) as error:
            find_broker(kind)
        message = str(error.value)
        assert message.startswith(f"there is no broker of kind {kind} ") and "\n" not in message
        assert "apt-get install mosquitto" in message and "pip install" in message


def test_the_embedded_broker_is_chosen_if_mosquitto_is_missing(monkeypatch, embedded):
    monkeypatch.setattr(shutil, "which", lambda *place, **path: None)
    assert find_broker("auto").kind == "embedded"


def test_mosquitto_is_found_outside_the_path(monkeypatch, broker):
    monkeypatch.setenv("PATH", "/nowhere")
    assert find_broker("auto").kind == "mosquitto"


def test_an_unknown_kind_is_refused_with_the_known_ones():
    with pytest.raises(BrokerError, match="'mosqito'.*auto, mosquitto, embedded"):
        find_broker("mosqito")


PARENT = """
import sys, time
from pathlib import Path
from protofleet.federation.brokers.local import LocalBroker
with LocalBroker(Path(sys.argv[1]), sys.argv[2]) as broker:
    print(broker.address.port, flush=True)
    time.sleep(600)
"""


@pytest.mark.parametrize("death", [signal.SIGKILL, signal.SIGINT])
def test_a_broker_dies_with_its_parent(death, tmp_path, any_broker):
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, str(tmp_path), kind_of(any_broker)],
        cwd=REPOSITORY, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
    )  # fmt: skip
    with parent:
        address = BrokerAddress(port=int(parent.stdout.readline()))
        assert listens(address)
        parent.send_signal(death)
        parent.wait()
        until(lambda: not listens(address))


def test_ctrl_c_in_the_terminal_does_not_reach_the_broker(broker):
    assert os.getpgid(broker.process_group) != os.getpgid(0)
    assert os.getsid(broker.process_group) != os.getsid(0)
