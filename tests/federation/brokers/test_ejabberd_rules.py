"""The files of an ejabberd node: what its rules allow, by a plain reading of them, and what is refused."""

import re
from pathlib import Path

import pytest

from protofleet.federation.brokers.ejabberd import access_rules, demand_lower_case, settings
from protofleet.protocol.settings.reader import SettingsError
from protofleet.protocol.wire.names import COORDINATOR, STANDBY
from protofleet.protocol.wire.topics import Topics

TOPICS = Topics("lab")
NAMES = ("board-1", "board-2", "alice", COORDINATOR, STANDBY)


class Rules:
    """A plain reading of the rules: the first entry that fits decides, and one pattern has to allow a name."""

    def __init__(self, text):
        self.groups = {
            name: re.findall(r'"([^"]+)@localhost"', users)
            for name, users in re.findall(r"^  (\w+):\n    user: \[(.*)\]$", text, re.MULTILINE)
        }
        halves = re.split(r"^  MAY_(\w+):$", text, flags=re.MULTILINE)
        self.patterns = {
            halves[i].lower(): re.findall(r'^    "([^"]+)": \[(.*)\]$', halves[i + 1], re.MULTILINE)
            for i in (1, 3)
        }

    def allow(self, name, access, topic):
        return any(
            self.first(name, entries)
            for pattern, entries in self.patterns[access]
            if fits(pattern.replace("%u", name), topic)
        )

    def first(self, name, entries):
        for entry in re.findall(r"[^,{}]+", entries.replace(", ", ",")):
            verb, _, group = entry.partition(": ")
            if not group or name in self.groups[group]:
                return verb == "allow"
        raise AssertionError(f"no entry of {entries} fits {name}")


def fits(pattern, topic):
    if pattern == "#":
        return True
    parts, found = pattern.split("/"), topic.split("/")
    return len(parts) == len(found) and all(one in (other, "+") for one, other in zip(parts, found))


def allowed(text):
    """Return what each name may do with each topic that is of interest."""
    rules, prefix = Rules(text), TOPICS.prefix
    topics = [
        "coord/state", "coord/probe", "bcast/now", "bcast/0123456789abcdef", "round", "#", "up/+", "dev/+/state",
        *(f"{kind}/{name}" for kind in ("up", "down", "op/up", "op/down") for name in NAMES),
        *(f"dev/{name}/state" for name in NAMES),
    ]  # fmt: skip
    return {
        (name, access, topic)
        for name in NAMES for access in ("publish", "subscribe") for topic in topics
        if rules.allow(name, access, prefix + topic)
    }  # fmt: skip


def of_one_name(name):
    """Return what a device or an operator may do, written out by hand."""
    written = (f"up/{name}", f"dev/{name}/state", f"op/up/{name}")
    heard = (f"down/{name}", f"op/down/{name}", "coord/state", "bcast/now", "bcast/0123456789abcdef", "round")
    return {(name, "publish", one) for one in written} | {(name, "subscribe", one) for one in heard}


def test_each_name_has_its_own_topics_and_the_coordinator_has_the_topics_of_all():
    given = allowed(access_rules("lab"))
    for name in ("board-1", "board-2", "alice"):
        assert {one for one in given if one[0] == name} == of_one_name(name)
    coordinator = {one[1:] for one in given if one[0] == COORDINATOR}
    assert {topic for access, topic in coordinator if access == "publish"} == {
        "coord/state", "bcast/now", "bcast/0123456789abcdef", "round",
        *(f"{kind}/{name}" for kind in ("down", "op/down") for name in NAMES),
    }  # fmt: skip
    assert {topic for access, topic in coordinator if access == "subscribe"} == {
        "coord/state", "coord/probe", "up/+", "dev/+/state",
        *(f"{kind}/{name}" for kind in ("up", "op/up") for name in NAMES),
        *(f"dev/{name}/state" for name in NAMES),
    }  # fmt: skip
    standby = {one[1:] for one in given if one[0] == STANDBY}
    assert standby == {("publish", "coord/probe"), ("subscribe", "coord/state")}


def test_the_rules_allow_the_subscriptions_of_each_party():
    rules = Rules(access_rules("lab"))
    wanted = {
        "board-1": TOPICS.device_subscriptions("board-1"),
        COORDINATOR: (*TOPICS.coordinator_subscriptions(), TOPICS.all_commands),
        STANDBY: TOPICS.standby_subscriptions(),
    }
    for name, topics in wanted.items():
        assert all(rules.allow(name, "subscribe", topic) for topic in topics), name


@pytest.mark.parametrize(
    ("revoked", "gone"), [("board-2", {"board-2"}), (COORDINATOR, {COORDINATOR, STANDBY})]
)
def test_a_revoked_name_has_no_topic_and_the_others_keep_theirs(revoked, gone):
    before, after = allowed(access_rules("lab")), allowed(access_rules("lab", [revoked]))
    assert after == {one for one in before if one[0] not in gone} != before


def test_the_settings_name_the_enrolled_files_and_the_rules_with_absolute_paths(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    text = settings(Path("node"), 8883, "::")
    for name in ("current/tls.crt", "current/tls.key", "current/ca.crt", "ejabberd-rules.yml"):
        assert f'"{tmp_path}/node/{name}"' in text
    assert 'ip: "::"' in text and "port: 8883" in text and "tls_verify: true" in text


def test_the_error_lists_the_names_with_capital_letters():
    demand_lower_case(["board-1", "b_2.x"])
    words = "Board-7, a-B: ejabberd makes all letters of a name small, so no name may have a capital letter"
    with pytest.raises(SettingsError, match=re.escape(words)):
        demand_lower_case(["b", "a-B", "Board-7"])
    with pytest.raises(SettingsError, match="A0, A1, A2 and 7 more: "):
        demand_lower_case(f"A{i}" for i in range(10))
