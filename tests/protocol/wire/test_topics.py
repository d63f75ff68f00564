import pytest

from protofleet.protocol.wire.names import valid_name
from protofleet.protocol.wire.topics import LONGEST, PREFIX, TOPIC_RULES, ParsedTopic, Topics

TOPICS = Topics("north")
DIGEST = "0123456789abcdef" * 4

NAMES = ["a", "7", "plant-3.arm_2", "x" * 64]
NO_NAMES = ["", "x" * 65, ".", "..", "-a", "_a", "a b", "a/b", "a+", "#", "$SYS", "é", "a\n", "\x00", "*"]


def matches(pattern: str, topic: str) -> bool:
    """Return whether an MQTT pattern with + matches a topic."""
    wanted, given = pattern.split("/"), topic.split("/")
    return len(wanted) == len(given) and all(w in ("+", g) for w, g in zip(wanted, given))


def topic_of(row, device="d1") -> str:
    return f"{PREFIX}/north/" + row.pattern.replace("{device}", device).replace("{digest}", DIGEST)


def test_each_topic_has_its_documented_name():
    assert TOPICS.coord_state == "protofleet/1/north/coord/state"
    assert TOPICS.device_state("d1") == "protofleet/1/north/dev/d1/state"
    assert TOPICS.round == "protofleet/1/north/round"
    assert TOPICS.down("d1") == "protofleet/1/north/down/d1"
    assert TOPICS.up("d1") == "protofleet/1/north/up/d1"
    assert TOPICS.commands_of("alice") == "protofleet/1/north/op/up/alice"
    assert TOPICS.results_of("alice") == "protofleet/1/north/op/down/alice"
    assert TOPICS.coord_probe == "protofleet/1/north/coord/probe"
    assert TOPICS.broadcast(DIGEST) == f"protofleet/1/north/bcast/{DIGEST}"


@pytest.mark.parametrize("name", NAMES)
def test_a_valid_name_is_returned_unchanged(name):
    assert valid_name(name) == name


@pytest.mark.parametrize("name", NO_NAMES)
def test_a_bad_name_is_refused_with_the_name_and_the_rule(name):
    with pytest.raises(ValueError, match="1 to 64 of the characters A-Z a-z 0-9") as error:
        valid_name(name)
    assert repr(name) in str(error.value)
    for use in (Topics, TOPICS.up, TOPICS.down, TOPICS.device_state, TOPICS.device_subscriptions):
        with pytest.raises(ValueError, match="1 to 64 of the characters A-Z a-z 0-9"):
            use(name)


def test_the_name_of_the_coordinator_is_refused_for_a_device():
    with pytest.raises(ValueError, match="the coordinator's"):
        TOPICS.up("coordinator")
    assert TOPICS.parse("protofleet/1/north/up/coordinator") is None


@pytest.mark.parametrize("name", ["", "0123", "G" * 64, "A" * 64, "a" * 65, "+", DIGEST + "/x"])
def test_a_broadcast_topic_without_a_valid_hash_is_refused(name):
    with pytest.raises(ValueError, match="0-9 a-f"):
        TOPICS.broadcast(name)
    assert TOPICS.parse(f"protofleet/1/north/bcast/{name}") is None


@pytest.mark.parametrize("row", TOPIC_RULES, ids=lambda row: row.kind)
def test_every_topic_of_the_table_is_parsed_back(row):
    device = "d1" if "{device}" in row.pattern else ""
    digest = DIGEST if "{digest}" in row.pattern else ""
    assert TOPICS.parse(topic_of(row)) == ParsedTopic(row.kind, device, digest)


@pytest.mark.parametrize("row", TOPIC_RULES, ids=lambda row: row.kind)
def test_a_party_subscribes_only_to_the_topics_that_it_reads(row):
    device_hears = any(matches(s, topic_of(row)) for s in TOPICS.device_subscriptions("d1"))
    coordinator_hears = any(matches(s, topic_of(row)) for s in TOPICS.coordinator_subscriptions())
    # The coordinator also subscribes to its own state, to notice another one of its name. Only a coordinator of a
    # queue subscribes to commands too.
    assert coordinator_hears == (
        row.reader == "coordinator" and row.kind != "op_up" or row.kind == "coord_state"
    )
    assert matches(TOPICS.all_commands, topic_of(row)) == (row.kind == "op_up")
    # A device subscribes to a broadcast by its own name while it fetches it; only older devices use retired topics.
    assert device_hears == (row.reader == "device" and row.kind != "bcast" and not row.retired)
    assert row.writer != row.reader


def test_a_standby_subscribes_to_the_state_of_the_coordinator_only():
    assert TOPICS.standby_subscriptions() == (TOPICS.coord_state,)


@pytest.mark.parametrize("row", TOPIC_RULES, ids=lambda row: row.kind)
def test_a_device_subscribes_to_no_topic_of_another_device(row):
    if "{device}" in row.pattern:
        heard = TOPICS.device_subscriptions("d1")
        assert not any(matches(s, topic_of(row, device="d2")) for s in heard)


@pytest.mark.parametrize(
    "topic",
    [
        "",
        "protofleet/1/north",
        "protofleet/1/north/",
        "protofleet/1/south/up/d1",  # Another federation.
        "protofleet/1/northern/up/d1",
        "protofleet/2/north/up/d1",  # Another version.
        "/protofleet/1/north/up/d1",
        "protofleet/1/north/up",
        "protofleet/1/north/up/",
        "protofleet/1/north/up/d1/",
        "protofleet/1/north/up/d1\n",
        "protofleet/1/north/up/a b",
        "protofleet/1/north/UP/d1",
        "protofleet/1/north/coord/state/x",
        "protofleet/1/north/dev/state",
        "$SYS/broker/uptime",
    ],
)
def test_a_topic_outside_the_table_is_not_parsed(topic):
    assert TOPICS.parse(topic) is None


def test_no_topic_is_longer_than_the_limit_of_the_parser():
    longest = max(len(topic_of(row, "x" * 64)) for row in TOPIC_RULES) - len(f"{PREFIX}/north/")
    assert longest <= LONGEST and TOPICS.parse(TOPICS.device_state("x" * 64)).device == "x" * 64
    assert TOPICS.parse(TOPICS.up("x" * 64) + "/" + "x" * LONGEST) is None
