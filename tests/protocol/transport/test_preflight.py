"""Tests of the reasons why a broker cannot be used; the preflight and a running transport report the same reasons."""

import os
import queue
import socket
import tempfile
import threading
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from protofleet.federation.brokers.ports import free_port
from protofleet.protocol.transport import mqtt as over_mqtt
from protofleet.protocol.transport.address import (
    FINAL_REASONS,
    BrokerAddress,
    BrokerError,
    TlsFiles,
)
from protofleet.protocol.transport.address import preflight as preflight_within
from protofleet.protocol.transport.base import Disconnected
from protofleet.protocol.transport.mqtt import Mqtt
from protofleet.protocol.transport.tls import tls_context
from tests.conftest import PATIENCE
from tests.support.certificates import DAY, NOW, Authority
from tests.support.scripted_broker import WELCOME, ScriptedBroker, connack

preflight = partial(preflight_within, seconds=PATIENCE)  # On a busy machine the broker may stop for a while.


@pytest.fixture(autouse=True)
def time_to_connect(monkeypatch):
    """Give a connection attempt the same time that a preflight has here."""
    monkeypatch.setattr(over_mqtt, "CONNECT_SECONDS", PATIENCE)


@pytest.fixture(scope="module")
def authority(tmp_path_factory):
    return Authority(tmp_path_factory.mktemp("ca"))


@pytest.fixture(scope="module")
def tls(authority, start_mosquitto):
    """Start a Mosquitto that requires client certificates; return its address with an accepted certificate."""
    port = free_port()
    server, device = authority.issue("server", "127.0.0.1"), authority.issue("d1")
    start_mosquitto(
        f"listener {port} 127.0.0.1",
        f"cafile {authority.ca}",
        f"certfile {server.cert}",
        f"keyfile {server.key}",
        "require_certificate true",
        "use_identity_as_username true",
    )
    return BrokerAddress(port=port, tls=TlsFiles(authority.ca, device.cert, device.key))


@pytest.fixture
def listener():
    """Return a function that starts a server that answers any input with `words` and closes the connection."""
    servers, lines = [], []

    def start(words: bytes, hang_up: bool = True) -> BrokerAddress:
        servers.append(socket.create_server(("127.0.0.1", 0)))

        def serve() -> None:
            line, _ = servers[-1].accept()
            lines.append(line)
            line.recv(4096)
            line.sendall(words)
            if hang_up:
                line.close()

        threading.Thread(target=serve, daemon=True).start()
        return BrokerAddress(port=servers[-1].getsockname()[1])

    yield start
    for sock in (*servers, *lines):
        sock.close()


def reason_of_a_transport(address: BrokerAddress, name: str = "d1") -> str:
    inbox = queue.SimpleQueue()
    mqtt = Mqtt(name, address, inbox)
    mqtt.connect()
    try:
        item = inbox.get(timeout=PATIENCE)
    finally:
        mqtt.close()
    assert isinstance(item, Disconnected)
    return item.reason


def assert_both_report(address: BrokerAddress, *parts: str) -> None:
    for sentence in (preflight(address), reason_of_a_transport(address)):
        assert sentence is not None and "\n" not in sentence
        for part in (str(address), *parts):
            assert part in sentence


def test_the_preflight_reports_no_problem_with_a_working_broker(any_broker):
    assert preflight(any_broker.address) is None


def test_a_port_without_a_server_is_reported():
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))  # The socket stays bound, so no other process listens there.
        address = BrokerAddress(port=silent.getsockname()[1])
        assert_both_report(address, "nothing listens there", "start a broker, or correct host and port")


def test_an_unknown_host_is_reported():
    assert_both_report(BrokerAddress("no-such-host.invalid"), "the host name no-such-host.invalid is unknown")


def test_an_answer_that_is_not_mqtt_is_reported(listener):
    sentence = preflight(listener(b"HTTP/1.1 400 Bad Request\r\n\r\n"))
    assert "no MQTT broker (it said b'HTTP/1." in sentence


def test_a_server_that_closes_the_connection_is_reported(listener):
    assert "it is no MQTT broker, or it wants TLS" in preflight(listener(b""))
    assert "it is no MQTT broker, or it wants TLS" in reason_of_a_transport(listener(b""))


def test_a_server_that_does_not_answer_is_reported(listener):
    assert "no answer (timed out)" in preflight(listener(b"", hang_up=False), seconds=0.2)


def test_an_incomplete_answer_is_reported_as_no_mqtt_broker(listener):
    for words in (b"\x20", b"\x20\x03\x00", b"\x20\x83\x80\x80\x80"):
        assert "no MQTT broker" in preflight(listener(words))


def test_an_answer_with_many_properties_is_understood(listener):
    properties = b"\xc6\x01" + b"\x26\x00\x01k\x00\xc0" + bytes(192)  # The length field has two bytes.
    assert preflight(listener(b"\x20\xca\x01\x00\x00" + properties)) is None
    assert "(CONNACK 137)" in preflight(listener(b"\x20\xca\x01\x00\x89" + properties))


@pytest.mark.parametrize("code", [132, 133, 134, 135, 138, 140, 149, 154, 155, 156, 157])
def test_each_refusal_code_is_reported_in_words(code):
    broker = ScriptedBroker([connack(code)])
    assert_both_report(broker.address, FINAL_REASONS[code], str(code))
    broker.close()


def test_a_broker_that_supports_only_mqtt_3_is_reported(listener):
    assert "it does not speak MQTT 5" in preflight(listener(b"\x20\x02\x00\x01"))


def test_a_wrong_password_is_reported_and_never_shown(tmp_path, start_mosquitto):
    (tmp_path / "passwords").write_text("")
    broker = start_mosquitto(f"password_file {tmp_path / 'passwords'}")
    address = replace(broker.address, username="anna", password="secret")
    assert_both_report(address, "check user name and password")
    assert "secret" not in f"{address!r}{address}{preflight(address)}"


def test_credentials_reach_the_broker_unchanged():
    broker = ScriptedBroker([WELCOME])
    name = "n" * 200  # So the length field of the packet has two bytes.
    assert preflight(replace(broker.address, username=name, password="p\u00e4ss"), client_id="d1") is None
    body = broker.expect(1)
    assert body.startswith(b"\x00\x04MQTT\x05\xc2") and body.endswith(b"\x00\x05p\xc3\xa4ss")
    assert b"\x00\x02d1\x00\xc8" + name.encode() in body
    broker.close()


def test_frames_pass_over_tls_in_both_directions(tls, peer, federation):
    device = peer("d1", tls, subscriptions=[federation]).ready()
    frames = [bytes([n]) * 60_000 for n in range(50)]
    for frame in frames:
        device.mqtt.publish(federation, frame)
    assert preflight(tls, client_id="another") is None
    assert [device.frame(federation) for _ in frames] == frames


def test_a_missing_client_certificate_is_reported(tls, authority):
    assert_both_report(replace(tls, tls=TlsFiles(authority.ca)), "it wants a client certificate")


def test_a_certificate_of_another_authority_is_reported(tls, authority, tmp_path):
    stranger = Authority(tmp_path / "evil").issue("d1")
    files = TlsFiles(authority.ca, stranger.cert, stranger.key)
    assert_both_report(replace(tls, tls=files), "it does not know who signed our certificate")


def test_an_expired_certificate_is_reported(tls, authority):
    old = authority.issue("old", until=NOW - DAY)
    assert_both_report(replace(tls, tls=TlsFiles(authority.ca, old.cert, old.key)), "has expired")


def test_a_broker_of_another_authority_is_not_trusted(tls, tmp_path):
    files = TlsFiles(Authority(tmp_path, "other CA").ca)
    assert_both_report(replace(tls, tls=files), "its certificate is not trusted", "compare tls.ca")


def test_a_broker_with_a_certificate_for_another_name_is_not_trusted(tls):
    assert_both_report(replace(tls, host="localhost"), "not made out to localhost")


def test_tls_to_a_plain_port_is_reported(broker, tls):
    assert_both_report(replace(broker.address, tls=tls.tls), "does not speak TLS on this port")


def test_a_plain_connection_to_a_tls_port_is_reported(tls):
    assert "TLS" in preflight(replace(tls, tls=None))
    assert "TLS" in reason_of_a_transport(replace(tls, tls=None))


def test_missing_tls_files_are_named(tls, tmp_path):
    gone = replace(tls, tls=TlsFiles(str(tmp_path / "ca.pem")))
    for ask in (preflight, reason_of_a_transport):
        try:
            sentence = ask(gone)
        except BrokerError as error:
            sentence = str(error)
        assert sentence == f"the file {tmp_path / 'ca.pem'} in tls.ca does not exist"


def test_files_that_are_no_certificates_are_named(tls, tmp_path):
    (tmp_path / "ca.pem").write_text("hello")
    assert str(tmp_path / "ca.pem") in preflight(replace(tls, tls=TlsFiles(str(tmp_path / "ca.pem"))))


@pytest.mark.parametrize(
    ("field", "value"), [("port", 0), ("port", 65_536), ("host", ""), ("host", "x" * 64), ("host", "a..b")]
)
def test_an_impossible_address_is_refused(field, value):
    with pytest.raises(ValueError, match=field):
        replace(BrokerAddress(), **{field: value})


def test_a_certificate_without_its_key_is_refused():
    with pytest.raises(ValueError, match=r"tls\.cert and tls\.key belong together"):
        TlsFiles("ca", cert="c")


def test_certificate_and_key_come_from_one_set_although_a_renewal_moves_the_link(
    authority, tmp_path, monkeypatch
):
    for number, name in ((1, "old"), (2, "new")):
        pair, place = authority.issue(name), tmp_path / f"set{number}"
        place.mkdir()
        (place / "tls.crt").write_bytes(Path(pair.cert).read_bytes())
        (place / "tls.key").write_bytes(Path(pair.key).read_bytes())
        (place / "tls.key").chmod(0o600)
    link, followed = tmp_path / "current", os.path.realpath
    link.symlink_to("set1")

    def moving(path):
        found = followed(path)
        if path.endswith("tls.crt") and link.readlink() == Path("set1"):
            link.unlink()
            link.symlink_to("set2")
        return found

    monkeypatch.setattr(os.path, "realpath", moving)
    tls_context(TlsFiles(authority.ca, str(link / "tls.crt"), str(link / "tls.key")))


def test_an_unreadable_key_is_named_with_the_reason(authority):
    pair = authority.issue("shut")
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        Path(folder).chmod(0o755)
        files = TlsFiles(*(str(Path(folder) / name) for name in ("ca", "cert", "key")))
        for source, target in ((authority.ca, files.ca), (pair.cert, files.cert), (pair.key, files.key)):
            Path(target).write_bytes(Path(source).read_bytes())
            Path(target).chmod(0o644)
        Path(files.key).chmod(0)
        me = os.geteuid()
        try:
            if me == 0:
                os.seteuid(65_534)  # The user nobody, because root can read everything.
            with pytest.raises(BrokerError, match=rf"{files.key}.*cannot be read \(Permission denied\)"):
                tls_context(files)
        finally:
            os.seteuid(me)
