"""The files of a stack over RabbitMQ give each enrolled party its user and its topics."""

import json
import re

from protofleet.deploy.stack.layout import Stack
from protofleet.deploy.stack.prepare import prepare
from protofleet.federation.enrol.key_folder import make_request
from protofleet.federation.enrol.lifecycle import approve, review_request, revoke
from protofleet.protocol.security.operators import OPERATOR
from protofleet.protocol.wire.names import COORDINATOR, STANDBY
from protofleet.protocol.wire.topics import Topics
from tests.deploy.stack.test_device_names import of_domains


def rules(stack):
    table = json.loads((stack.folder / "enrolled" / "broker" / "definitions.json").read_text())
    users = [user["name"] for user in table["users"]]
    assert len(set(users)) == len(users)
    return users, {entry["user"]: entry for entry in table["topic_permissions"]}


def admit(stack, folder, name):
    authority = stack.federation.authority()
    _, data = make_request(folder / name, authority.federation, name, (), True, durable=False, part=OPERATOR)
    approve(authority, review_request(authority, data, name, OPERATOR), grants=frozenset({"view"}))


def test_rabbitmq_has_a_user_and_topics_for_the_standby_and_each_operator(tmp_path, capsys):
    stack = Stack(tmp_path / "s", of_domains("a"), cluster=True)
    prepare(stack)
    device = stack.devices[0]
    assert rules(stack)[0] == [COORDINATOR, device, STANDBY]
    for name in ("alice", "bob", "carol.lab"):
        admit(stack, tmp_path, name)
    revoke(stack.federation.authority(), "bob", "gone")
    capsys.readouterr()
    prepare(stack)
    users, permissions = rules(stack)
    assert users == [COORDINATOR, device, "alice", STANDBY]
    assert "the operator carol.lab cannot use this broker: RabbitMQ reads a dot" in capsys.readouterr().out
    topics = Topics(stack.federation_name)
    for name, writes, reads in (
        ("alice", topics.commands_of("alice"), topics.results_of("alice")),
        (STANDBY, topics.coord_probe, topics.coord_state),
    ):
        for access, topic in (("write", writes), ("read", reads)):
            assert re.search(permissions[name][access], topic.replace("/", "."))
            assert permissions[name][access].count("protofleet") == 1
