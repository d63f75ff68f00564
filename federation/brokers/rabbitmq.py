"""Write the settings of a RabbitMQ cluster and its access rules.

The rules are generated from the table in protocol/wire/topics.py. As with Mosquitto, clients need a
certificate, and its common name is the user. RabbitMQ's rules are patterns of routing keys. In a
routing key, `.` replaces MQTT's `/`. RabbitMQ has no user for a revoked name, so the name cannot connect again.
`rabbitmqctl close_all_user_connections` closes the open connections of a revoked name.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

from protofleet.protocol.wire.names import COORDINATOR, STANDBY, TopicParty
from protofleet.protocol.wire.topics import TOPIC_RULES, TopicRule, Topics

VHOST: Final = "/"
EXCHANGE: Final = "amq.topic"
DIGEST: Final = "[0-9a-f]+"
# A device's name may contain dots, although a dot also separates topics.
ANY_DEVICE: Final = "[A-Za-z0-9_.-]+"

# Largest number of connections of one user. With a limit of 1, a client could reconnect only after the broker has
# noticed that the old connection is dead.
CONNECTIONS: Final = 4
# Largest queue of one session in bytes, as for Mosquitto. If a queue is full, the oldest messages are dropped.
QUEUED_BYTES: Final = 536_870_912

# Quorum queues survive the loss of a node. The protocol does not need retained messages, so each retained message is
# stored on one node only.
SETTINGS: Final = """\
listeners.tcp = none
mqtt.listeners.tcp = none
mqtt.listeners.ssl.default = {port}
mqtt.allow_anonymous = false
mqtt.ssl_cert_login = true
mqtt.durable_queue_type = quorum
mqtt.max_session_expiry_interval_seconds = 86400
mqtt.max_packet_size_authenticated = 2097152
ssl_cert_login_from = common_name
ssl_options.cacertfile = {current}/ca.crt
ssl_options.certfile = {current}/tls.crt
ssl_options.keyfile = {current}/tls.key
ssl_options.verify = verify_peer
ssl_options.fail_if_no_peer_cert = true
ssl_options.versions.1 = tlsv1.3
load_definitions = {definitions}
cluster_formation.peer_discovery_backend = classic_config
{nodes}
log.console = true
log.console.level = warning
log.file = false
"""


def settings(current: Path, definitions: Path, hosts: Iterable[str], port: int) -> str:
    """Return rabbitmq.conf, which is the same for every node."""
    nodes = "\n".join(
        f"cluster_formation.classic_config.nodes.{i} = rabbit@{h}" for i, h in enumerate(hosts, 1)
    )
    return SETTINGS.format(port=port, current=current, definitions=definitions, nodes=nodes)


def definitions(federation: str, devices: Iterable[str], operators: Iterable[str] = ()) -> str:
    """Return the definitions: users without passwords, the topics that each user may use, and limits."""
    parties: dict[str, TopicParty] = {COORDINATOR: "coordinator"}
    parties.update((name, "device") for name in devices)
    parties.update((name, "operator") for name in operators)
    parties[STANDBY] = "standby"
    table: dict[str, Any] = {
        "vhosts": [{"name": VHOST}],
        "policies": [_session_policy()],
        "users": [_user(name) for name in parties],
        "permissions": [_permission(name) for name in parties],
        "topic_permissions": [_topic_permission(federation, name, party) for name, party in parties.items()],
    }
    return json.dumps(table, indent=2) + "\n"


def _user(name: str) -> dict[str, Any]:
    return {
        "name": name,
        "password_hash": "",
        "hashing_algorithm": "rabbit_password_hashing_sha256",
        "tags": [],
        "limits": {"max-connections": CONNECTIONS},
    }


def _session_policy() -> dict[str, Any]:
    limits = {"max-length-bytes": QUEUED_BYTES, "overflow": "drop-head"}
    return {
        "vhost": VHOST,
        "name": "sessions",
        "pattern": "^mqtt-subscription-",
        "apply-to": "queues",
        "definition": limits,
    }


def _permission(name: str) -> dict[str, Any]:
    """Return a user's permission for its own queues and for the exchange of the MQTT plugin."""
    own = r"^mqtt-(subscription|will)-.*"
    both = rf"({own}|^{re.escape(EXCHANGE)}$)"
    return {"user": name, "vhost": VHOST, "configure": own, "write": both, "read": both}


def _topic_permission(federation: str, name: str, party: TopicParty) -> dict[str, Any]:
    patterns_by_access = {
        access: [
            _routing_keys(federation, row, name) for row in TOPIC_RULES if _is_allowed(row, access, party)
        ]
        for access in ("write", "read")
    }
    return {"user": name, "vhost": VHOST, "exchange": EXCHANGE} | {
        access: f"^({'|'.join(patterns)})$" for access, patterns in patterns_by_access.items()
    }


def _is_allowed(row: TopicRule, access: str, party: TopicParty) -> bool:
    if access == "write":
        return party == row.writer
    return party in (row.reader, *row.more_readers) or (row.echoes and party == row.writer)


def _routing_keys(federation: str, row: TopicRule, name: str) -> str:
    """Return the pattern of the routing keys that this name may use.

    A device or an operator gets its own topics. The coordinator gets the topics of all devices and wildcards.
    """
    device = ANY_DEVICE if name == COORDINATOR else re.escape(name)
    pattern = row.pattern.replace("/", r"\.").format(
        device=rf"({device}|\*)" if name == COORDINATOR else device, digest=DIGEST
    )
    return re.escape(Topics(federation).prefix.replace("/", ".")) + pattern
