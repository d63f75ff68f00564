"""A run at an external broker that requires certificates uses the parties of a fleet, each with its own files."""

import queue
import re
import socket
import ssl
import threading
from dataclasses import replace

import pytest

from protofleet.cli.main import main
from protofleet.edge_client.config import DeviceSettings
from protofleet.federation.enrol.local_federation import enrol_federation
from protofleet.federation.enrol.register import load_register
from protofleet.lab.local.experiment import Experiment, read_experiment
from protofleet.lab.local.run import broker_of_run
from protofleet.protocol.settings.reader import SettingsError, decode, encode, read_toml
from protofleet.protocol.transport.address import BrokerAddress, BrokerError, preflight
from protofleet.protocol.wire.names import COORDINATOR
from tests.conftest import PATIENCE
from tests.lab.local.test_resume import bits
from tests.support.secured_broker import start_enrolled
from tests.support.small_experiment import TWO

DEVICES = ("optdigits-1", "optdigits-2")


@pytest.fixture(scope="module")
def secured(tmp_path_factory):
    found = start_enrolled(tmp_path_factory.mktemp("secured"), *DEVICES)
    yield found
    found.broker.stop()


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "two.toml"
    path.write_text(TWO)
    return path


def words_for(secured, fleet, *more):
    changes = [
        "broker.kind=external", f"broker.address.host={secured.broker.address.host}",
        f"broker.address.port={secured.broker.port}", f"broker.enrolled={fleet}", *more,
    ]  # fmt: skip
    return [word for change in changes for word in ("--set", change)]


@pytest.mark.slow
def test_each_party_uses_its_own_files_and_the_bits_are_those_of_a_run_with_its_broker(
    secured, file, tmp_path
):
    runs, own = tmp_path / "runs", tmp_path / "own"
    assert main(["run", str(file), "--runs", str(runs), *words_for(secured, secured.fleet.folder)]) == 0
    assert main(["run", str(file), "--runs", str(own)]) == 0
    assert bits(runs / "two") == bits(own / "two")
    assert not (runs / "two" / "enrolled").exists(), "the run has made a root of its own"
    for name in (COORDINATOR, *DEVICES):
        path = "coordinator.toml" if name == COORDINATOR else f"devices/{name}/device.toml"
        settings = read_toml(runs / "two" / path)
        assert settings["federation"] == secured.federation
        assert settings["enrolled"] == str(secured.fleet.folder_of(name))
        assert settings["broker"]["tls"]["cert"] == secured.fleet.tls(name).cert


def test_the_path_of_the_fleet_folder_is_relative_to_the_experiment_file(tmp_path):
    (tmp_path / "two.toml").write_text(f'{TWO}\nbroker = {{ kind = "external", enrolled = "fleet" }}')
    assert read_experiment(tmp_path / "two.toml", []).broker.enrolled == str(tmp_path / "fleet")


def external(**broker):
    table = {"name": "two", "rounds": 1, "method": {"name": "fedavg"}, "devices": {"clients": {"mnist": 2}}}
    return {**table, "broker": {"kind": "external", **broker}}


@pytest.mark.parametrize(
    ("broker", "words"),
    [
        ({"enrolled": ""}, "broker.enrolled is empty; name the folder that `protofleet enrol fleet` has filled"),
        ({"enrolled": "f", "kind": "auto"}, "the run starts a broker of kind auto and enrols its parties itself"),
        ({"enrolled": "f", "address": {"tls": {"ca": "x"}}}, "set beside address.tls, but it gives each party"),
        ({"enrolled": "f", "tls": "off"}, "broker.enrolled is set beside tls, but"),
        ({"address": {"username": "certificate"}}, "no party has a certificate that an external broker knows"),
        (
            {"address": {"username": "certificate", "password": "x"}},
            "broker.address.username is \"certificate\", which means the name in tls.cert, but a password is set",
        ),
    ],
)  # fmt: skip
def test_wrong_settings_for_the_folder_of_a_fleet_are_refused_in_one_line(broker, words):
    with pytest.raises(SettingsError, match=re.escape(words)) as caught:
        decode(Experiment, external(**broker))
    assert "\n" not in str(caught.value)


def test_a_fleet_without_all_parties_of_the_run_is_refused_with_their_names(tmp_path, secured, file, capsys):
    other = enrol_federation(tmp_path / "other", "other", ["optdigits-1"]).folder
    for fleet, words in (
        (tmp_path / "none", "which has no root of a fleet; `protofleet enrol fleet"),
        (other, "where optdigits-2 of this run are not enrolled; `protofleet enrol fleet"),
    ):
        assert main(["run", str(file), "--runs", str(tmp_path / "runs"), *words_for(secured, fleet)]) == 2
        said = capsys.readouterr().err
        assert words in said and str(fleet) in said and "Traceback" not in said
    assert not (tmp_path / "runs" / "two").exists()


def test_a_fleet_that_the_broker_does_not_know_is_refused(tmp_path, secured, file, capsys):
    other = enrol_federation(tmp_path / "other", "other", DEVICES).folder
    assert main(["run", str(file), "--runs", str(tmp_path / "runs"), *words_for(secured, other)]) == 1
    assert "is it another federation's broker?" in capsys.readouterr().err


def test_the_error_of_a_broker_that_requires_certificates_names_the_setting_enrolled(
    tmp_path, secured, file, capsys
):
    ca = f'broker.address.tls={{ ca = "{secured.fleet.tls(COORDINATOR).ca}" }}'
    words = [word for word in words_for(secured, "", ca) if not word.startswith("broker.enrolled")]
    words = [w for i, w in enumerate(words) if not (w == "--set" and words[i + 1 : i + 2] in ([], ["--set"]))]
    assert main(["run", str(file), "--runs", str(tmp_path / "runs"), *words]) == 1
    assert "for a party's own files set broker.enrolled" in capsys.readouterr().err


def test_an_external_broker_without_a_fleet_has_the_same_address_for_all_parties(tmp_path, broker):
    experiment = decode(Experiment, external(address={"port": broker.port}))
    assert "enrolled" not in encode(experiment)["broker"]
    with broker_of_run(experiment, tmp_path) as running:
        assert running.address_for("mnist-1") == running.address_for(COORDINATOR) == running.address
    assert load_register(tmp_path / "enrolled" / "root").federation == "two"


@pytest.fixture
def reader(secured):
    """Return the port of a server that takes the fleet's certificates, and a queue of its CONNECT packets."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=secured.fleet.tls("broker").ca)
    context.load_cert_chain(secured.fleet.tls("broker").cert, secured.fleet.tls("broker").key)
    context.verify_mode = ssl.CERT_REQUIRED
    packets = queue.SimpleQueue()
    server = socket.create_server(("127.0.0.1", 0))

    def serve():
        while True:
            try:
                line, _ = server.accept()
                with context.wrap_socket(line, server_side=True) as secure:
                    packets.put(secure.recv(4096))
            except OSError:
                if server.fileno() == -1:
                    return

    threading.Thread(target=serve, daemon=True).start()
    yield server.getsockname()[1], packets
    server.close()


def user_in(packet):
    """Return the last text of a CONNECT packet, which is the user name if there is no password."""
    return next(packet[-n:] for n in range(1, 80) if packet[-n - 2 : -n] == n.to_bytes(2, "big"))


@pytest.mark.parametrize("name", [COORDINATOR, "optdigits-1"])
def test_the_user_name_certificate_sends_the_name_in_the_certificate(secured, reader, peer, name):
    port, packets = reader
    address = replace(secured.address(name), username="certificate", port=port)
    preflight(address, seconds=PATIENCE)
    assert user_in(packets.get(timeout=PATIENCE)) == name.encode()
    peer("client", address)
    assert user_in(packets.get(timeout=PATIENCE)) == name.encode()
    peer("client", replace(address, username="another"))
    while (user := user_in(packets.get(timeout=PATIENCE))) == name.encode():
        pass
    assert user == b"another"


def test_the_user_name_certificate_is_refused_if_there_is_no_certificate(tmp_path, secured):
    words = 'username is "certificate", but there is no certificate; set tls.cert and tls.key'
    assert words in (preflight(BrokerAddress(username="certificate")) or "")
    with pytest.raises(BrokerError, match="no certificate with a common name"):
        (tmp_path / "not.crt").write_text("nothing")
        tls = replace(secured.fleet.tls(COORDINATOR), cert=str(tmp_path / "not.crt"))
        assert replace(secured.broker.address, tls=tls, username="certificate").user_name


def test_a_device_may_set_the_user_name_certificate_before_its_certificate_is_known():
    assert decode(DeviceSettings, {"name": "d", "broker": {"username": "certificate"}}).broker.tls is None
