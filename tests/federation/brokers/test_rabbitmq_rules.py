"""RabbitMQ's patterns allow each party exactly its topics in the table of topics."""

import itertools
import json
import re

import pytest

from protofleet.federation.brokers.mosquitto import MOST_QUEUE
from protofleet.federation.brokers.rabbitmq import definitions, settings
from protofleet.protocol.wire.names import COORDINATOR, STANDBY
from protofleet.protocol.wire.topics import TOPIC_RULES

DEVICES = ("d1", "d1.lab", "d10")
OPERATORS = ("alice", "alice.lab")
DIGEST = "ab" * 32


def key(row, device):
    """Return the routing key that RabbitMQ makes of a topic."""
    return "protofleet/1/lab/".replace("/", ".") + row.pattern.format(device=device, digest=DIGEST).replace(
        "/", "."
    )


@pytest.fixture(scope="module")
def rules():
    table = json.loads(definitions("lab", DEVICES, OPERATORS))
    return {entry["user"]: entry for entry in table["topic_permissions"]}


@pytest.mark.parametrize(("row", "verb"), [*itertools.product(TOPIC_RULES, ("write", "read"))], ids=str)
def test_a_device_and_an_operator_can_use_only_their_own_topics(rules, row, verb):
    for party, names in (("device", DEVICES), ("operator", OPERATORS)):
        for me, other in itertools.product(names, (*DEVICES, *OPERATORS)):
            role = row.writer if verb == "write" else row.reader
            allowed = role == party and ("{device}" not in row.pattern or me == other)
            assert bool(re.search(rules[me][verb], key(row, other))) == allowed, (me, other)


@pytest.mark.parametrize(("row", "verb"), [*itertools.product(TOPIC_RULES, ("write", "read"))], ids=str)
def test_the_coordinator_can_use_the_topics_in_the_reverse_direction(rules, row, verb):
    allowed = "coordinator" in ([row.writer] if verb == "write" else [row.reader, row.echoes and row.writer])
    for device in (*DEVICES, "*"):  # a subscription's `+` is `*` here
        if device != "*" or verb == "read":
            assert bool(re.search(rules[COORDINATOR][verb], key(row, device))) == allowed


@pytest.mark.parametrize("row", TOPIC_RULES, ids=str)
def test_the_standby_reads_the_state_of_the_coordinator_and_writes_its_own_topic_only(rules, row):
    for device in (*DEVICES, STANDBY, "*"):
        assert bool(re.search(rules[STANDBY]["read"], key(row, device))) == (row.kind == "coord_state")
        assert bool(re.search(rules[STANDBY]["write"], key(row, device))) == (row.kind == "coord_probe")


def test_no_user_can_use_topics_of_other_federations(rules):
    for row, user, verb in itertools.product(TOPIC_RULES, rules, ("write", "read")):
        for device in DEVICES:
            for strange in (".lab.", ".1."):
                changed = key(row, device).replace(strange, strange.replace("a", "x").replace("1", "2"), 1)
                assert not re.search(rules[user][verb], changed), (user, changed)
            if user != COORDINATOR:  # for the coordinator, d1.more is one more device
                assert not re.search(rules[user][verb], key(row, device) + ".more")


def test_no_user_has_a_password_and_no_port_is_open_without_tls(tmp_path):
    table = json.loads(definitions("lab", DEVICES))
    assert {user["password_hash"] for user in table["users"]} == {""} and "guest" not in str(table)
    text = settings(tmp_path, tmp_path / "d.json", ("a", "b"), 8883)
    assert (
        "listeners.tcp = none" in text
        and "mqtt.listeners.tcp = none" in text
        and "allow_anonymous = false" in text
    )
    assert "nodes.2 = rabbit@b" in text


def test_the_connections_and_queue_bytes_of_each_name_are_limited():
    table = json.loads(definitions("lab", DEVICES))
    assert all(2 <= user["limits"]["max-connections"] <= 10 for user in table["users"])
    (policy,) = table["policies"]
    assert re.match(policy["pattern"], "mqtt-subscription-lab.d1qos1")
    assert policy["definition"]["max-length-bytes"] == MOST_QUEUE
