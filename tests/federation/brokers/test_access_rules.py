"""A real Mosquitto allows each identity exactly the topics and the directions in the table of topics."""

import time

import pytest
from paho.mqtt.client import CallbackAPIVersion, Client, MQTTProtocolVersion

from protofleet.federation.brokers.mosquitto import access_rules
from protofleet.protocol.transport.address import BrokerError
from protofleet.protocol.transport.base import Arrived, Connected
from protofleet.protocol.transport.tls import tls_context
from protofleet.protocol.wire.topics import TOPIC_RULES, Topics
from tests.conftest import PATIENCE, Peer, missing
from tests.support.secured_broker import start_enrolled

IDENTITIES = ("coordinator", "coordinator.standby", "d1", "d2")
DIGEST = "ab" * 32
ALIKE = ("probe", "coord", "state", "coordinatorXstandby")
TAKEN = {0, 16}  # 16 means that the topic has no subscriber


@pytest.fixture(scope="module")
def secured(tmp_path_factory):
    try:
        made = start_enrolled(tmp_path_factory.mktemp("fleet"), "d1", "d2", *ALIKE)
    except BrokerError as error:
        missing(error)
    yield made
    made.broker.stop()


def topics_of(federation):
    """Yield each topic with its sender and its receivers.

    They are every topic of the table for two devices, and some topics that are in no table.
    """
    t = Topics(federation)
    yield t.coord_state, "coordinator", {"d1", "d2", "coordinator.standby"}
    yield t.coord_probe, "coordinator.standby", {"coordinator"}
    yield t.round, "coordinator", {"d1", "d2"}
    yield t.broadcast(DIGEST), "coordinator", {"d1", "d2"}
    yield t.broadcast_now, "coordinator", {"d1", "d2"}
    for device in ("d1", "d2"):
        yield t.up(device), device, {"coordinator"}
        yield t.device_state(device), device, {"coordinator"}
        yield t.down(device), "coordinator", {device}
        # Mosquitto's patterns hold for devices and operators. The coordinator knows which of both a name belongs to.
        yield t.commands_of(device), device, {"coordinator"}
        yield t.results_of(device), "coordinator", {device}
    p = t.prefix
    for nowhere in (
        p + "up/coordinator", p + "down/coordinator", p + "dev/coordinator/state", p + "up/d1/more", p + "up",
        p + "op/up/coordinator", p + "op/down/coordinator", p + "up/coordinator.standby",
        p + "dev/coordinator.standby/state", p + "op/up/coordinator.standby", p + "coord/probe/d1",
        p + "coord", p + "dev/d1", p + "bcast",
        p + f"bcast/{DIGEST}/0", p + "else", "protofleet/1/other/round",
        "protofleet/2/" + federation + "/round", "up/d1", "d1",
    ):  # fmt: skip
        yield nowhere, None, set()


def test_the_topics_of_these_tests_cover_all_rows_of_the_topic_table():
    named = {topic for topic, writer, _ in topics_of("f") if writer}
    t = Topics("f")
    assert {t.parse(topic).kind for topic in named} == {row.kind for row in TOPIC_RULES}


def puback(secured, name, topic, frame=b"x"):
    """Return the reason code with which the broker answers one publish.

    Each call makes a new connection, as Mosquitto 2.0.11 closes a connection after it has denied a publish.
    """
    answered = []
    client = Client(CallbackAPIVersion.VERSION2, "x", protocol=MQTTProtocolVersion.MQTTv5)
    client.tls_set_context(tls_context(secured.address(name).tls))
    client.on_connect = lambda *told: client.publish(topic, frame, qos=1)
    client.on_publish = lambda _client, _data, _mid, code, _properties: answered.append(code.value)
    client.connect("127.0.0.1", secured.broker.address.port)
    deadline = time.monotonic() + PATIENCE
    while not answered:
        assert time.monotonic() < deadline, f"no answer to {name} on {topic}"
        client.loop(0.1)
    client.disconnect()
    return answered[0]


@pytest.mark.parametrize("name", IDENTITIES)
def test_each_identity_can_publish_exactly_to_its_topics_in_the_table(secured, name):
    for topic, writer, _ in topics_of(secured.federation):
        assert (puback(secured, name, topic) in TAKEN) == (writer == name), topic


@pytest.mark.parametrize("name", IDENTITIES)
def test_each_identity_receives_exactly_its_topics_in_the_table(secured, name):
    """Each identity subscribes to all topics. Mosquitto grants that, and delivers what the rules allow.

    Beyond the table, patterns hold for every name, so the coordinator may receive what it sends to all devices.
    """
    topics = [t for t in topics_of(secured.federation) if t[1]]
    hearer = Peer(name, secured.address(name), subscriptions=["#", "$SYS/#"])
    try:
        hearer.next(Connected)
        for topic in (topic for topic, writer, _ in topics if writer == name):
            hearer.mqtt.publish(topic, b"x")
        assert hearer.mqtt.flush(PATIENCE)  # then the broker has taken them
        for topic, writer, _ in topics:
            if writer != name:
                assert puback(secured, writer, topic) in TAKEN
        last, by = next((t, w) for t, w, readers in topics if name in readers)
        puback(secured, by, last, b"last")
        heard = set(topics_until(hearer, b"last"))
    finally:
        hearer.mqtt.close()
    own_words = {t for t, _, readers in topics if name == "coordinator" and {"d1", "d2"} <= readers}
    assert heard == {t for t, _, readers in topics if name in readers} | own_words


@pytest.mark.parametrize("name", ALIKE)
def test_a_device_with_any_name_cannot_publish_probes_or_the_coordinators_state(secured, name):
    topics = Topics(secured.federation)
    assert puback(secured, name, topics.up(name)) in TAKEN
    assert puback(secured, name, topics.coord_probe) not in TAKEN
    assert puback(secured, name, topics.coord_state) not in TAKEN


def topics_until(hearer, frame):
    while True:
        item = hearer.inbox.get(timeout=PATIENCE)
        if isinstance(item, Arrived):
            yield item.topic
            if item.frame == frame:
                return


def test_the_access_rules_contain_only_the_rows_of_the_topic_table():
    lines = [line.split() for line in access_rules("north").splitlines() if line and line[0] != "#"]
    granted = [
        (words[1], words[2]) for words in lines if words[0] in ("topic", "pattern") and words[1] != "deny"
    ]
    of_the_standby = 2
    # Each row has a rule for the coordinator and one for all other names, except the row that a standby writes.
    assert len(granted) == 2 * len(TOPIC_RULES) - 1 + of_the_standby
    assert all(topic.startswith("protofleet/1/north/") for _, topic in granted)
    assert not any("#" in topic for _, topic in granted)


def test_a_revocation_denies_all_topics_to_the_revoked_name_only():
    rules = access_rules("north", ["d1"])
    assert rules.splitlines()[1:3] == ["user d1", "topic deny protofleet/1/north/#"]
    assert rules.endswith(access_rules("north").split("\n", 1)[1])
    assert "user coordinator\ntopic write" not in access_rules("north", ["coordinator"])


def test_the_standby_has_two_topics_and_loses_them_with_the_coordinator():
    rules = access_rules("north").split("user coordinator.standby\n")[1].split("\n\n")[0].splitlines()
    t = Topics("north")
    assert [line for line in rules if not line.startswith("topic deny ")] == [
        f"topic read {t.coord_state}", f"topic write {t.coord_probe}",
    ]  # fmt: skip
    denied = {line.removeprefix("topic deny ") for line in rules}
    patterns = {line.split()[2] for line in access_rules("north").splitlines() if line.startswith("pattern")}
    assert {pattern.replace("%u", "+") for pattern in patterns} <= {*denied, t.coord_state}
    revoked = access_rules("north", ["coordinator"])
    assert (
        "user coordinator.standby\ntopic deny protofleet/1/north/#\n" in revoked
        and t.coord_probe not in revoked
    )
