"""A real Mosquitto with the project's settings accepts the right parties, and the others get a useful message."""

import contextlib
import datetime as dt
import queue
import socket
import ssl
import threading
import time
from dataclasses import replace
from functools import partial

import pytest
from cryptography.hazmat.primitives import serialization as s

from protofleet.federation.brokers.mosquitto import ListenerSettings, tls_settings
from protofleet.federation.enrol import disconnect, key_folder, lifecycle
from protofleet.federation.enrol.authority import Authority
from protofleet.federation.enrol.certificates import PEM, issue_certificate, new_key
from protofleet.federation.enrol.local_federation import enrol, enrol_federation, tls_files
from protofleet.protocol.security.keyfiles import write_file, write_private
from protofleet.protocol.transport import address as addresses
from protofleet.protocol.transport import mqtt as transports
from protofleet.protocol.transport.address import BrokerAddress, BrokerError, TlsFiles
from protofleet.protocol.transport.base import Arrived, Connected, Denied, Disconnected
from protofleet.protocol.transport.mqtt import Mqtt
from protofleet.protocol.wire.names import COORDINATOR
from protofleet.protocol.wire.topics import Topics
from tests.conftest import PATIENCE, Peer, missing
from tests.support.secured_broker import start_enrolled

HOUR = dt.timedelta(hours=1)
preflight = partial(addresses.preflight, seconds=PATIENCE)


@pytest.fixture(autouse=True)
def patience(monkeypatch):
    """Make the time limits longer, so that a machine that stands still for some seconds fails no test."""
    monkeypatch.setattr(transports, "CONNECT_SECONDS", PATIENCE)
    monkeypatch.setattr(disconnect, "preflight", preflight)
    monkeypatch.setattr(disconnect, "RELOAD_SECONDS", PATIENCE)


@pytest.fixture
def secured(tmp_path):
    try:
        made = start_enrolled(tmp_path, "d1", "d2")
    except BrokerError as error:
        missing(error)
    yield made
    made.broker.stop()


@pytest.fixture(scope="module")
def standing(tmp_path_factory):
    """Yield an enrolled federation with a broker that no test changes."""
    try:
        made = start_enrolled(tmp_path_factory.mktemp("standing"), "d1", "d2")
    except BrokerError as error:
        missing(error)
    yield made
    made.broker.stop()


@pytest.fixture
def join_as(secured):
    """Return a function that connects a party and returns when the broker knows the party's subscriptions."""
    peers, topics = [], Topics(secured.federation)

    def join(name, **options):
        peers.append(joined := Peer(f"{secured.federation}.{name}", secured.address(name), **options))
        joined.next(Connected)
        # A broker works in order: when it has taken this message, it has taken the subscriptions before it.
        joined.mqtt.publish(topics.down("d2") if name == COORDINATOR else topics.device_state(name), b"here")
        assert joined.mqtt.flush(PATIENCE)
        return joined

    yield join
    for peer in peers:
        peer.mqtt.close()


def heard_by_a_transport(address: BrokerAddress) -> str:
    inbox = queue.SimpleQueue()
    mqtt = Mqtt("d1", address, inbox)
    mqtt.connect()
    try:
        item = inbox.get(timeout=PATIENCE)
    finally:
        mqtt.close()
    assert isinstance(item, Disconnected), item
    return item.reason


def assert_both_say(address: BrokerAddress, *parts: str) -> None:
    for sentence in (preflight(address), heard_by_a_transport(address)):
        assert sentence is not None and "\n" not in sentence
        for part in parts:
            assert part in sentence


def certificate(standing, folder, since, until, authority=None):
    """Return the TLS files of d1 with a certificate of other dates or of another authority."""
    root = (authority or standing.fleet.authority()).roots[0]
    key, now = new_key(), dt.datetime.now(dt.timezone.utc)
    cert = issue_certificate(root.tls_ca, key.public_key(), "d1", (), 5, (now + since, now + until))
    write_private(folder / "key", key)
    write_file(folder / "cert", cert.public_bytes(PEM))
    return replace(standing.fleet.tls("d1"), cert=str(folder / "cert"), key=str(folder / "key"))


def test_the_broker_accepts_all_enrolled_parties(standing):
    for name in (COORDINATOR, "d1", "d2"):
        assert preflight(standing.address(name)) is None


def test_a_client_without_a_certificate_is_refused(standing):
    bare = TlsFiles(standing.fleet.tls("d1").ca)
    assert_both_say(replace(standing.broker.address, tls=bare), "it wants a client certificate; set tls.cert")


def test_a_client_certificate_of_another_root_is_refused(standing, tmp_path):
    other = enrol_federation(tmp_path, standing.federation, ["d1"])
    stranger = replace(other.tls("d1"), ca=standing.fleet.tls("d1").ca)
    assert_both_say(
        replace(standing.broker.address, tls=stranger), "it does not know who signed our certificate (CN=d1"
    )


def test_a_broker_of_another_root_is_not_trusted(standing, tmp_path):
    other = enrol_federation(tmp_path, standing.federation, ["d1"])
    assert_both_say(
        replace(standing.broker.address, tls=other.tls("d1")),
        "its certificate is not trusted", "another federation's broker? compare tls.ca",
    )  # fmt: skip


def test_the_error_for_an_expired_certificate_states_the_expiry(standing, tmp_path):
    files = certificate(standing, tmp_path, -2 * HOUR, -HOUR)
    assert_both_say(replace(standing.broker.address, tls=files), "CN=d1", "has expired on", "; renew it")


def test_the_error_for_a_certificate_of_the_future_states_the_local_time(standing, tmp_path):
    files = certificate(standing, tmp_path, HOUR, 2 * HOUR)
    assert_both_say(replace(standing.broker.address, tls=files), "is valid only from", "this clock says")


@pytest.fixture
def impostor():
    """Return a function that starts a server on the loopback that speaks TLS with the files but no MQTT."""
    servers = []

    def start(files: TlsFiles) -> int:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(files.cert, files.key)
        servers.append(socket.create_server(("127.0.0.1", 0)))

        def serve(server):
            while True:
                try:
                    line, _ = server.accept()
                except OSError:
                    return
                # A client that does not trust the server may be gone before the server reads.
                with contextlib.suppress(OSError), line:
                    context.wrap_socket(line, server_side=True).close()

        threading.Thread(target=serve, args=(servers[-1],), daemon=True).start()
        return servers[-1].getsockname()[1]

    yield start
    for server in servers:
        server.close()


def test_the_certificate_of_a_broker_is_refused_for_a_client(standing):
    assert_both_say(standing.address("broker"), "is not made for clients")


def test_the_certificate_of_a_device_is_refused_for_a_broker(standing, impostor):
    port = impostor(standing.fleet.tls("d2"))
    words = "certificate is not trusted (unsuitable certificate purpose)"
    assert_both_say(replace(standing.address("d1"), port=port), words)


def test_a_broker_whose_certificate_lacks_its_host_name_is_not_trusted(standing, impostor, tmp_path):
    enrol(standing.fleet.authority(), tmp_path / "b2", "b2", 1, ("broker.example",))
    port = impostor(tls_files(tmp_path / "b2"))
    for host in ("127.0.0.1", "localhost"):
        address = replace(standing.address("d1"), port=port, host=host)
        assert_both_say(address, f"not made out to {host}; use a name in the certificate")


def test_a_client_without_tls_is_refused_and_no_plain_port_is_open(standing):
    assert_both_say(replace(standing.broker.address, tls=None), "TLS")
    conf = (standing.fleet.folder_of("broker") / "mosquitto.conf").read_text()
    assert conf.count("\nlistener ") == 1 and "allow_anonymous true" not in conf


def test_the_error_for_tls_to_a_plain_port_names_the_reason(standing, broker):
    assert_both_say(replace(broker.address, tls=standing.fleet.tls("d1")), "does not speak TLS on this port")


def test_a_key_of_another_certificate_is_refused_before_the_connection(standing):
    mixed = replace(standing.fleet.tls("d1"), key=standing.fleet.tls("d2").key)
    address = replace(standing.broker.address, tls=mixed)
    words = "does not belong to the certificate"
    assert words in preflight(address)
    with pytest.raises(BrokerError, match=words):
        Mqtt("d1", address, queue.SimpleQueue())


def test_a_key_that_all_users_can_read_is_refused(standing, tmp_path):
    files = certificate(standing, tmp_path, -HOUR, HOUR)
    (tmp_path / "key").chmod(0o644)
    assert "is open to others (mode 0644); chmod 600" in preflight(
        replace(standing.broker.address, tls=files)
    )
    (tmp_path / "key").chmod(0o640)  # only a group may read it too
    assert preflight(replace(standing.broker.address, tls=files)) is None


def test_a_key_with_a_password_is_refused_without_a_prompt(standing, tmp_path):
    files = certificate(standing, tmp_path, -HOUR, HOUR)
    text = new_key().private_bytes(s.Encoding.PEM, s.PrivateFormat.PKCS8, s.BestAvailableEncryption(b"x"))
    (tmp_path / "key").write_bytes(text)
    assert "without a password" in preflight(replace(standing.broker.address, tls=files))


def test_a_device_cannot_take_over_a_session_by_its_client_id(secured, join_as):
    first = join_as("d1")
    second = Peer(f"{secured.federation}.d1", secured.address("d2"))  # d2's certificate, d1's client id
    second.next(Connected)
    second.mqtt.publish(Topics(secured.federation).up("d1"), b"I am d1")
    assert "Not authorized" in second.next(Denied).reason
    second.mqtt.close()
    assert first.inbox.empty()


def test_a_revoked_device_is_disconnected_and_cannot_publish_or_reconnect(secured, join_as):
    topics = Topics(secured.federation)
    coordinator = join_as(COORDINATOR, subscriptions=topics.coordinator_subscriptions())
    thief, honest = join_as("d1", subscriptions=topics.device_subscriptions("d1")), join_as("d2")
    thief.mqtt.publish(topics.up("d1"), b"before")
    assert coordinator.frame(topics.up("d1")) == b"before"
    said = disconnect.revoke_and_disconnect(
        secured.fleet.authority(), "d1", "stolen", secured.fleet.folder_of("broker")
    )
    assert said.startswith("d1 is revoked (1 certificates) and disconnected from 127.0.0.1:")
    # 2.0.11 disconnects without a reason and refuses the next connection; later versions report another client.
    lost = thief.next(Disconnected, lambda item: item.final or "has been revoked" in item.reason)
    assert "CERTIFICATE_REVOKED" in lost.reason or "another process has connected" in lost.reason
    thief.mqtt.publish(topics.up("d1"), b"after")
    honest.mqtt.publish(topics.up("d2"), b"still here")
    assert coordinator.next(Arrived) == Arrived(topics.up("d2"), b"still here")
    assert_both_say(secured.address("d1"), "has been revoked; enrol again")
    again = secured.fleet.authority()
    # This revocation is within the same second.
    second = disconnect.revoke_and_disconnect(again, "d2", "", secured.fleet.folder_of("broker"))
    assert second.startswith("d2 is revoked")
    assert_both_say(secured.address("d2"), "has been revoked")


def test_approvals_and_revocations_are_valid_after_the_check_certificate_expires(secured):
    """The certificate that checked the broker has expired, and so its revocation is over too."""
    fleet = secured.fleet

    def take_next_approvals(authority):
        for name in (COORDINATOR, "broker", "d2"):
            lifecycle.renew(authority, name)
            data = key_folder.read_approval_file(fleet.root / "approvals" / f"{name}.approval")
            key_folder.install(
                fleet.folder_of(name), data, lambda seen: False, authority.now(), durable=False
            )

    disconnect.revoke_and_disconnect(fleet.authority(), "d1", "stolen", fleet.folder_of("broker"))
    take_next_approvals(fleet.authority())
    later = Authority(fleet.root, durable=False, clock=lambda: time.time() + disconnect.CHECK_SECONDS + 1)
    take_next_approvals(later)
    disconnect.reload(fleet.folder_of("broker"))
    assert_both_say(secured.address("d1"), "has been revoked; enrol again")
    assert preflight(secured.address("d2")) is None


def test_the_access_rules_alone_block_a_revoked_device_that_is_still_connected(secured, join_as):
    """Between the reload and the cut, Mosquitto 2.0.11 would otherwise leave a connected device its access."""
    topics, broker = Topics(secured.federation), secured.fleet.folder_of("broker")
    coordinator = join_as(COORDINATOR)
    thief = join_as("d1", subscriptions=topics.device_subscriptions("d1"))
    authority = secured.fleet.authority()
    with disconnect.temporary_certificate(authority, "check") as (serial, test_client):
        lifecycle.revoke(authority, "d1", "", also=[serial])
        disconnect.install_broker(authority, broker)
        disconnect.reload(broker)
        disconnect.wait_until_refused(replace(secured.broker.address, tls=test_client))
    coordinator.mqtt.publish(topics.down("d1"), b"secret")
    coordinator.mqtt.publish(topics.round, b"secret")
    coordinator.mqtt.close()
    thief.mqtt.publish(topics.up("d1"), b"x")
    assert "Not authorized" in thief.next(Denied).reason  # and earlier messages have not arrived
    assert thief.inbox.empty() or not isinstance(thief.inbox.get(), Arrived)


def test_a_renewed_certificate_is_used_at_the_next_connection(secured, join_as):
    topics, fleet = Topics(secured.federation), secured.fleet
    device = join_as("d1", subscriptions=[topics.round])
    old = key_folder.current_serial(fleet.folder_of("d1"))
    authority = fleet.authority()
    key_folder.make_request(fleet.folder_of("d1"), secured.federation, "d1", (), new_keys=True, durable=False)
    asked = lifecycle.review_request(
        authority, key_folder.read_armoured("request", fleet.folder_of("d1") / "pending/request")
    )
    data = lifecycle.approve(authority, asked, replace=True)
    key_folder.install(fleet.folder_of("d1"), data, lambda seen: False, authority.now(), durable=False)
    coordinator = join_as(COORDINATOR)
    coordinator.mqtt.publish(topics.round, b"go on")
    assert device.frame(topics.round) == b"go on"  # on the old connection
    authority.revoke({old}, "replaced")  # so that it cannot come back with the old one
    lifecycle.reissue_approvals(authority, "broker")
    disconnect.install_broker(authority, fleet.folder_of("broker"))
    secured.broker.kill()
    secured.broker.start()
    device.next(Disconnected)
    device.next(Connected)


def test_a_reader_gets_a_matching_key_and_certificate_during_renewals(secured):
    """A reader in the middle of a renewal gets a key and a certificate that belong together."""
    fleet, stop, reads, problems = secured.fleet, threading.Event(), threading.Event(), []

    def read():
        while not stop.is_set():
            problems.append(preflight(secured.address("d1")))
            reads.set()

    reader = threading.Thread(target=read)
    reader.start()
    assert reads.wait(PATIENCE)
    authority = fleet.authority()
    for _ in range(8):
        key_folder.make_request(
            fleet.folder_of("d1"), secured.federation, "d1", (), new_keys=True, durable=False
        )
        data = key_folder.read_armoured("request", fleet.folder_of("d1") / "pending/request")
        approval = lifecycle.approve(authority, lifecycle.review_request(authority, data), replace=True)
        key_folder.install(
            fleet.folder_of("d1"), approval, lambda seen: False, authority.now(), durable=False
        )
    stop.set()
    reader.join()
    assert problems and set(problems) == {None}


def test_both_roots_are_valid_during_a_rotation_and_only_the_new_one_after_it(secured):
    fleet = secured.fleet

    def hand_out(*names):
        for name in names:
            data = key_folder.read_approval_file(fleet.root / "approvals" / f"{name}.approval")
            key_folder.install(
                fleet.folder_of(name), data, lambda seen: False, authority.now(), durable=False
            )

    def restart():
        secured.broker.stop()
        secured.broker.start()

    authority = lifecycle.begin_rotation(fleet.authority(), years=1)
    hand_out("broker", COORDINATOR)
    restart()
    lifecycle.renew(authority, "d1")
    hand_out("d1")
    for name in (COORDINATOR, "d1", "d2"):  # d1 by the new root, d2 by the old one
        assert preflight(secured.address(name)) is None
    for name in ("d2", COORDINATOR, "broker"):
        lifecycle.renew(authority, name)
        hand_out(name)
    authority = lifecycle.finish_rotation(Authority(fleet.root, durable=False), force=False)
    kept = (fleet.folder_of("d2") / "set1").rename(fleet.folder / "kept")
    hand_out("broker", COORDINATOR, "d1", "d2")
    restart()
    for name in (COORDINATOR, "d1", "d2"):
        assert preflight(secured.address(name)) is None
    stale = replace(fleet.tls("d2"), cert=str(kept / "tls.crt"), key=str(kept / "tls.key"))
    assert "does not know who signed" in preflight(replace(secured.broker.address, tls=stale))


def test_the_broker_accepts_a_device_that_was_enrolled_after_its_start(secured):
    enrol(secured.fleet.authority(), secured.fleet.folder_of("d3"), "d3", 1)
    assert preflight(secured.address("d3")) is None


def test_a_plain_port_is_opened_only_on_request_and_only_on_the_loopback(tmp_path):
    assert "anonymous true" not in tls_settings(tmp_path, ListenerSettings())
    asked = tls_settings(tmp_path, ListenerSettings(plain_port=1883))
    assert "listener 1883 127.0.0.1\nallow_anonymous true" in asked and "per_listener_settings true" in asked


def test_a_reload_of_a_broker_that_does_not_run_is_refused(tmp_path):
    fleet = enrol_federation(tmp_path, "lab", ["d1"])
    with pytest.raises(BrokerError, match="no Mosquitto has the process id in"):
        disconnect.reload(fleet.folder_of("broker"))
    (fleet.folder_of("broker") / "mosquitto.pid").write_text("1")  # of another authority
    with pytest.raises(BrokerError, match="no Mosquitto has the process id in"):
        disconnect.reload(fleet.folder_of("broker"))
