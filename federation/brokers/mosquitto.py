"""Write Mosquitto's settings and its access rules.

The rules are generated from the table of topics in protocol/wire/topics.py, so they cannot differ from the
protocol.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from protofleet.protocol.wire.blocks import DEFAULT_BLOCK
from protofleet.protocol.wire.names import COORDINATOR, STANDBY
from protofleet.protocol.wire.topics import TOPIC_RULES, TopicRule, Topics

CONF_FILE: Final = "mosquitto.conf"
ACL_FILE: Final = "acl"
CRL_FILE: Final = "crl.pem"
PID_FILE: Final = "mosquitto.pid"
DATA_FOLDER: Final = "data"

# 20 blocks of 64 KiB in flight are enough for a line of 200 Mbit/s with a round trip of 50 ms. If a queue is full,
# Mosquitto drops messages but acknowledges them, and the receiver requests the dropped blocks again. By default,
# version 2.1 accepts packets of up to 2 MB, and version 2.0 accepts packets of any size. With max_packet_size, both
# versions accept the same packets.
LIMITS: Final = """\
max_packet_size 2097152
max_inflight_messages 20
max_queued_messages {messages}
max_queued_bytes {queue}
set_tcp_nodelay true
max_keepalive 120
"""

MOST_QUEUE: Final = 512 << 20  # Largest queue of a session in bytes.
# Smallest queue of a session in bytes. All blocks of one request of a device must fit into this queue.
LEAST_QUEUE: Final = 4 << 20
# Smallest limit on the number of messages in a queue. At most this number of blocks is on the way to a coordinator.
LEAST_MESSAGES: Final = 256
PACKET: Final = 2 << 20  # Bytes of the largest packet, equal to the setting max_packet_size.
# Number of further packets of each device: its retained state, its will, and a packet that is being received.
OTHER_PACKETS: Final = 3
FEWEST_DEVICES: Final = 16
DEFAULT_DEVICES: Final = 64  # The number of devices if the real number is not known.


@dataclass(frozen=True, slots=True)
class QueueLimits:
    """The limits of one session's queue.

    With these limits, the queues of all devices fit into three quarters of the memory. The last quarter is for
    the coordinator. Mosquitto has the same limits for all sessions. It limits messages of QoS 1 by their bytes
    and messages of QoS 0 by their number, so both limits are set.
    """

    devices: int
    bytes: int
    messages: int

    @property
    def memory_needed(self) -> int:
        """Return the smallest memory_limit in bytes with which the queues of all devices fit into the memory."""
        return (self.devices * (self.bytes + OTHER_PACKETS * PACKET) + self.bytes) * 4 // 3


def queue_limits(memory: int, devices: int) -> QueueLimits:
    """Compute the limits of a session's queue. The limits change only when the number of devices doubles.

    `devices` is the number of enrolled devices.
    """
    sessions = max(FEWEST_DEVICES, 1 << (devices - 1).bit_length())
    room = memory * 3 // 4 - sessions * OTHER_PACKETS * PACKET
    size = max(LEAST_QUEUE, min(MOST_QUEUE, room // (sessions + 1)))
    return QueueLimits(sessions, size, max(LEAST_MESSAGES, size // DEFAULT_BLOCK))


def queues_are_full(devices: int) -> bool:
    """Return whether the limits must change when the number of devices grows to this number."""
    return (
        devices > DEFAULT_DEVICES and queue_limits(0, devices).devices > queue_limits(0, devices - 1).devices
    )


UNBOUNDED: Final = LIMITS.format(messages=0, queue=MOST_QUEUE)

# These settings are for local clients only: any client on the loopback may connect, and the broker does not
# store messages on the disk.
PLAIN_SETTINGS: Final = (
    "listener {port} {host}\nallow_anonymous true\n"
    + UNBOUNDED
    + """\
persistence false
sys_interval {sys_seconds}
log_dest stderr
log_timestamp_format %Y-%m-%dT%H:%M:%S
"""
)

# Without use_username_as_clientid, a device could use the client id of another device and take over its session. With
# memory_limit, the broker refuses new messages before the machine runs out of memory.
TLS_SETTINGS: Final = (
    """\
per_listener_settings {split}

listener {port} {host}
allow_anonymous false
acl_file {current}/acl
cafile {current}/ca.crt
certfile {current}/tls.crt
keyfile {current}/tls.key
crlfile {current}/crl.pem
tls_version tlsv1.3
require_certificate true
use_identity_as_username true
use_username_as_clientid true
max_connections {connections}

# Queues for {devices} devices.
"""
    + LIMITS
    + """\
memory_limit {memory}
persistent_client_expiration 1d
persistence {persistence}
persistence_location {data}/
autosave_interval 60
sys_interval {sys_seconds}
pid_file {pid}
log_dest stderr
log_timestamp_format %Y-%m-%dT%H:%M:%S
"""
)


@dataclass(frozen=True, slots=True)
class ListenerSettings:
    """The listener of a broker with TLS, and the broker's limits."""

    port: int = 8883
    host: str = "0.0.0.0"
    plain_port: int = 0  # A port on the loopback without TLS and access rules; 0 means no such port.
    user: str = ""  # The user to which Mosquitto changes if root starts it.
    connections: int = 2000
    memory: int = 2 << 30
    devices: int = DEFAULT_DEVICES  # The number of enrolled devices, whose queues share the memory.
    persistence: bool = True
    sys_seconds: int = 10


def tls_settings(folder: Path, listener: ListenerSettings, state: Path | None = None) -> str:
    """Return mosquitto.conf for the enrolled files in a folder.

    Mosquitto writes its own files into `state` if this folder is given, else into `folder`. Paths are absolute,
    because Mosquitto may be started in any folder.
    """
    root, own = folder.absolute(), (state or folder).absolute()
    limits = queue_limits(listener.memory, listener.devices)
    text = TLS_SETTINGS.format(
        devices=limits.devices, queue=limits.bytes, messages=limits.messages,
        current=root / "current", data=own / DATA_FOLDER, pid=own / PID_FILE, port=listener.port,
        host=listener.host, connections=listener.connections, memory=listener.memory,
        persistence=str(listener.persistence).lower(), sys_seconds=listener.sys_seconds,
        split=str(bool(listener.plain_port)).lower(),
    )  # fmt: skip
    if listener.plain_port:
        text += f"\nlistener {listener.plain_port} 127.0.0.1\nallow_anonymous true\n"
    return f"user {listener.user}\n{text}" if listener.user else text


def access_rules(federation: str, revoked: Iterable[str] = ()) -> str:
    """Return the text of the ACL file.

    The patterns at the end of the file apply to every name that has a certificate. The patterns allow a name to use
    the topics of a device and of an operator with this name. A coordinator knows which of both the name belongs to.
    Three exceptions need rules of their own. The coordinator must not use topics of a device under the coordinator's
    name. Its second name may use only its own two topics. A revoked name must not use any topic, because its client
    may still be connected.
    """
    topics = Topics(federation)
    lines = [f"# Made from the table of topics for federation {federation}; all other topics are denied."]
    denied = set(revoked)
    if COORDINATOR in denied:
        denied.add(STANDBY)
    for name in sorted(denied):
        lines += [f"user {name}", f"topic deny {topics.prefix}#", ""]
    if COORDINATOR not in denied:
        own = [row for row in TOPIC_RULES if "{device}" in row.pattern]
        lines += [f"user {COORDINATOR}"]
        lines += [f"topic deny {_filter(topics, row, COORDINATOR)}" for row in own]
        lines += [f"topic {_access_of_coordinator(row)} {_filter(topics, row, '+')}" for row in TOPIC_RULES]
        lines += ["", *_rules_of_standby(topics), ""]
    others = [row for row in TOPIC_RULES if row.writer != "standby"]
    lines += [f"pattern {_access_of_others(row)} {_filter(topics, row, '%u')}" for row in others]
    return "\n".join(lines) + "\n"


def _rules_of_standby(topics: Topics) -> list[str]:
    """Return the rules of the coordinator's second name, and deny it what the patterns allow every name."""
    lines = [f"user {STANDBY}"]
    for row in TOPIC_RULES:
        access = "write" if row.writer == "standby" else "read" if "standby" in row.more_readers else "deny"
        lines.append(f"topic {access} {_filter(topics, row, '+')}")
    return lines


def _access_of_coordinator(row: TopicRule) -> str:
    return "write" if row.writer == "coordinator" else "read"


def _access_of_others(row: TopicRule) -> str:
    return "read" if row.writer == "coordinator" else "write"


def _filter(topics: Topics, row: TopicRule, device: str) -> str:
    return topics.prefix + row.pattern.format(device=device, digest="+")
