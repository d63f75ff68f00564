"""A cluster of two real ejabberd nodes: a whole run over it, the loss of a node, and what its rules refuse."""

import json
import os
import queue
import re
import shutil
import socket
import ssl
import subprocess
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path

import paho.mqtt.client as paho
import pytest
from paho.mqtt.enums import CallbackAPIVersion

from protofleet.cli.main import main
from protofleet.federation.brokers.ports import free_port
from protofleet.federation.enrol.local_federation import LocalFederation, enrol_federation
from protofleet.protocol.transport.address import BrokerAddress, TlsFiles, preflight
from protofleet.protocol.transport.mqtt import KEEPALIVE_SECONDS
from protofleet.protocol.wire.names import COORDINATOR
from protofleet.protocol.wire.topics import Topics
from tests.conftest import PATIENCE
from tests.engines.ejabberd import Cluster, cluster
from tests.lab.local.test_resume import bits

pytestmark = [pytest.mark.engines, pytest.mark.timeout(1800)]
TOPICS = Topics("lab")
DEVICES = tuple(f"optdigits-{i + 1}" for i in range(6))
ROUNDS = 12
RUN = f"""
name = "six"
rounds = {ROUNDS}
method = {{ name = "fedavg", epochs = 20 }}
data = {{ source = "digits", samples = 200, size = 8 }}
devices = {{ clients = {{ optdigits = {len(DEVICES)} }}, processes = 3 }}
network = {{ name = "mlp" }}
"""
LIMIT = 600.0
NOT_AUTHORIZED = 135
REFUSALS = (NOT_AUTHORIZED, 143, 144)  # ejabberd also says that the filter or the topic is invalid.


@dataclass
class Pair:
    cluster: Cluster
    fleet: LocalFederation

    def address(self, name, place=0):
        port = self.cluster.nodes[place].port
        return BrokerAddress("localhost", port, self.fleet.tls(name), username="certificate")


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    """Start two nodes with the files that `enrol broker --kind ejabberd` writes for them."""
    folder = tmp_path_factory.mktemp("ejabberd")
    with cluster(folder / "cluster") as found:
        fleet = enrol_federation(folder / "fleet", "lab", [*DEVICES, "spare"])
        for i in range(2):
            own, port = folder / f"node-{i}", free_port()
            words = [
                "--name",
                f"node-{i}",
                "--folder",
                str(own),
                "--kind",
                "ejabberd",
                "--listen",
                "127.0.0.1",
            ]
            words += ["--port", str(port), "--root", str(fleet.root)]
            assert main(["enrol", "broker", "localhost", *words]) == 0
            found.start(own, port)
        yield Pair(found, fleet)


class Client:
    """A client that may use a certificate in other ways than our own programs."""

    def __init__(self, pair, certificate, user, client_id):
        files = pair.fleet.tls(certificate)
        context = ssl.create_default_context(cafile=files.ca)
        context.load_cert_chain(files.cert, files.key)
        self.said = queue.SimpleQueue()
        self.paho = paho.Client(CallbackAPIVersion.VERSION2, client_id=client_id, protocol=paho.MQTTv5)
        self.paho.tls_set_context(context)
        if user is not None:
            self.paho.username_pw_set(user)
        self.paho.on_connect = lambda _c, _d, _f, code, _p: self.said.put(code.value)
        self.paho.on_subscribe = lambda _c, _d, _m, codes, _p: self.said.put(codes[0].value)
        self.paho.on_publish = lambda _c, _d, _m, code, _p: self.said.put(code.value)
        self.paho.on_disconnect = lambda _c, _d, _f, code, _p: self.said.put(code.value)
        self.paho.connect("localhost", pair.cluster.nodes[0].port)
        self.paho.loop_start()

    def answer(self):
        return self.said.get(timeout=PATIENCE)

    def close(self):
        self.paho.disconnect()
        self.paho.loop_stop()


@pytest.fixture
def client(pair):
    made = []

    def start(certificate, user, client_id):
        made.append(Client(pair, certificate, user, client_id))
        return made[-1]

    yield start
    for one in made:
        one.close()


ONE, OTHER = DEVICES[:2]


@pytest.mark.parametrize(
    ("user", "client_id"),
    [
        (None, f"lab.{ONE}"),
        (None, OTHER),
        (OTHER, "x"),
        (COORDINATOR, "x"),
        (OTHER, f"lab.{OTHER}"),
        ("nobody", "x"),
    ],
)
def test_a_certificate_is_refused_without_its_own_user_name(client, user, client_id):
    assert client(ONE, user, client_id).answer() == NOT_AUTHORIZED


def test_a_client_with_the_client_id_of_another_does_not_end_its_session(client):
    own = client(ONE, ONE, f"lab.{ONE}")
    assert own.answer() == 0
    other = client(OTHER, OTHER, f"lab.{ONE}")
    assert other.answer() == 0
    own.paho.subscribe(f"{TOPICS.prefix}down/{ONE}", qos=1)
    assert own.answer() in (0, 1), "the session of the owner was ended"


ALLOWED = [("publish", f"up/{ONE}"), ("publish", f"dev/{ONE}/state"), ("subscribe", f"down/{ONE}")]
REFUSED = [
    ("publish", f"up/{OTHER}"), ("publish", f"dev/{OTHER}/state"), ("publish", f"down/{ONE}"),
    ("publish", "coord/state"), ("publish", "bcast/now"), ("publish", "coord/probe"), ("publish", "../../x"),
    ("subscribe", f"down/{OTHER}"), ("subscribe", f"up/{OTHER}"), ("subscribe", "up/+"), ("subscribe", "down/+"),
    ("subscribe", "dev/+/state"), ("subscribe", "#"), ("subscribe", "../../#"),
]  # fmt: skip


@pytest.mark.parametrize(("access", "topic"), [*ALLOWED, *REFUSED])
def test_a_device_can_use_only_its_own_topics(client, access, topic):
    one = client(ONE, ONE, f"lab.{ONE}")
    assert one.answer() == 0
    full = topic.removeprefix("../../") if topic.startswith("../../") else TOPICS.prefix + topic
    if access == "publish":
        one.paho.publish(full, b"x", qos=1)
    else:
        one.paho.subscribe(full, qos=1)
    code = one.answer()
    if (access, topic) in ALLOWED:
        assert code < 128
    else:
        assert code in REFUSALS


def test_the_listener_accepts_tls_1_3_and_tls_1_2(pair):
    """Our parties use only TLS 1.3. The listener of ejabberd has no setting that refuses 1.2 to other clients."""
    for version, newest in (("TLSv1.3", ssl.TLSVersion.TLSv1_3), ("TLSv1.2", ssl.TLSVersion.TLSv1_2)):
        context = ssl.create_default_context(cafile=pair.fleet.tls(ONE).ca)
        context.load_cert_chain(pair.fleet.tls(ONE).cert, pair.fleet.tls(ONE).key)
        context.maximum_version = newest
        with socket.create_connection(("localhost", pair.cluster.nodes[0].port)) as line:
            assert context.wrap_socket(line, server_hostname="localhost").version() == version


def test_a_client_without_a_certificate_cannot_connect(pair):
    address = replace(pair.address(ONE), tls=TlsFiles(pair.fleet.tls(ONE).ca), username=ONE)
    assert preflight(address) is not None


def test_a_revoked_device_has_no_topic_after_the_rules_are_written_again(pair, client):
    node, root = pair.cluster.nodes[0], str(pair.fleet.root)
    before = client("spare", "spare", "lab.spare")
    assert before.answer() == 0
    before.paho.publish(f"{TOPICS.prefix}up/spare", b"x", qos=1)
    assert before.answer() < 128
    assert main(["enrol", "revoke", "spare", "--root", root]) == 0
    assert preflight(pair.address("spare"), "lab.spare") is None, (
        "ejabberd reads a list after all: change the page"
    )
    words = ["--name", "node-0", "--folder", str(node.settings), "--kind", "ejabberd", "--root", root]
    assert main(["enrol", "broker", "localhost", *words]) == 0
    node.ctl("reload_config")
    after = client("spare", "spare", "lab.spare-again")
    assert after.answer() == 0
    after.paho.publish(f"{TOPICS.prefix}up/spare", b"x", qos=1)
    assert after.answer() in REFUSALS


def start_run(folder, *changes):
    folder.mkdir()
    (folder / "six.toml").write_text(RUN)
    words = [word for change in changes for word in ("--set", change)]
    with (folder / "log").open("wb") as log:
        return subprocess.Popen(
            [sys.executable, "-m", "protofleet", "run", "six.toml", *words],
            cwd=folder, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
            env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
        )  # fmt: skip


def wait_until(holds, process, folder):
    deadline = time.monotonic() + LIMIT
    while not (found := holds()):
        assert time.monotonic() < deadline and process.poll() is None, (folder / "log").read_text()[-3000:]
        time.sleep(0.05)
    return found


def nodes_of(folder):
    """Return the ports that each party has been connected to, in order, from the logs of the run."""
    found = {}
    for log in sorted((folder / "runs" / "six" / "logs").glob("*.log")):
        for name, port in re.findall(
            r"lab\.(\S+) is connected to the broker at localhost:(\d+)", log.read_text()
        ):
            found.setdefault(name, []).append(int(port))
    return found


def test_a_run_survives_the_loss_of_a_node_with_the_same_bits_as_at_mosquitto(
    pair, tmp_path, record_property
):
    kept, lost = pair.cluster.nodes
    if lost.process is None:
        pytest.fail("the node was killed before this test")
    folder = tmp_path / "cluster"
    hosts = json.dumps([f"localhost:{node.port}" for node in (kept, lost)])
    process = start_run(
        folder, "broker.kind=external", f"broker.enrolled={pair.fleet.folder}",
        f"broker.address.hosts={hosts}", "broker.address.username=certificate",
    )  # fmt: skip
    rounds, summary = folder / "runs/six/rounds.jsonl", folder / "runs/six/summary.json"
    try:
        wait_until(lambda: rounds.exists() and rounds.read_text().count("\n") >= 3, process, folder)
        before = nodes_of(folder)
        moving = [name for name, ports in before.items() if ports[-1] == lost.port]
        staying = [name for name, ports in before.items() if ports[-1] == kept.port]
        assert {*DEVICES} & {*moving} and {*DEVICES} & {*staying}, before
        lost.kill()
        began = time.monotonic()
        assert not summary.exists()
        wait_until(lambda: all(nodes_of(folder)[name][-1] == kept.port for name in moving), process, folder)
        seconds = time.monotonic() - began
        assert process.wait(LIMIT) == 0, (folder / "log").read_text()[-3000:]
    finally:
        if process.poll() is None:
            process.terminate()
            process.wait(PATIENCE)
    assert seconds < 2 * KEEPALIVE_SECONDS
    own = start_run(tmp_path / "own", "broker.kind=mosquitto")
    assert own.wait(LIMIT) == 0, (tmp_path / "own" / "log").read_text()[-3000:]
    assert bits(folder / "runs" / "six") == bits(tmp_path / "own" / "runs" / "six")
    assert rounds.read_text().count("\n") >= ROUNDS
    shutil.rmtree(tmp_path / "own")
