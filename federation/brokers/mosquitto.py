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
from protofleet.protocol.wire.names import COORDINATOR
from protofleet.protocol.wire.topics import TOPIC_RULES, TopicRule, Topics

CONF_FILE: Final = "mosquitto.conf"
ACL_FILE: Final = "acl"
CRL_FILE: Final = "crl.pem"
PID_FILE: Final = "mosquitto.pid"
DATA_FOLDER: Final = "data"

# 20 blocks of 64 KiB in flight fill a line of 200 Mbit/s with a round trip of 50 ms. If a queue is full,
# Mosquitto drops messages but acknowledges them; the receiver asks for the dropped blocks again. Version 2.1
# accepts packets of 2 MB by default, and version 2.0 accepts packets of any size. With the limit, both versions
# accept the same packets.
LIMITS: Final = """\
max_packet_size 2097152
max_inflight_messages 20
max_queued_messages {messages}
max_queued_bytes {queue}
set_tcp_nodelay true
max_keepalive 120
"""

MOST_QUEUE: Final = 512 << 20  # the largest queue of a session in bytes
LEAST_QUEUE: Final = 4 << 20  # the smallest queue in bytes, for the blocks that a device asks for at a time
LEAST_MESSAGES: Final = 256  # the number of blocks that are under way to a coordinator
PACKET: Final = 2 << 20  # bytes; the same as max_packet_size
# further packets of a device: its retained state, its will, and one that is being received
OTHER_PACKETS: Final = 3
FEWEST_DEVICES: Final = 16
DEFAULT_DEVICES: Final = 64  # the number of devices if it is not known


@dataclass(frozen=True, slots=True)
class QueueLimits:
    """The limits of a session's queue, with which all devices' queues fit into three quarters of the memory.

    Mosquitto has one limit for all sessions. It counts bytes for QoS 1 and messages for QoS 0, so both are
    set. The last quarter of the memory is for the coordinator.
    """

    devices: int
    bytes: int
    messages: int

    @property
    def memory_needed(self) -> int:
        """Return the smallest memory_limit, in bytes, into which all devices fit."""
        return (self.devices * (self.bytes + OTHER_PACKETS * PACKET) + self.bytes) * 4 // 3


def queue_limits(memory: int, devices: int) -> QueueLimits:
    """Compute the limits of a session's queue. They change only when the number of devices doubles.

    `devices` is the number of enrolled devices.
    """
    sessions = max(FEWEST_DEVICES, 1 << (devices - 1).bit_length())
    room = memory * 3 // 4 - sessions * OTHER_PACKETS * PACKET
    size = max(LEAST_QUEUE, min(MOST_QUEUE, room // (sessions + 1)))
    return QueueLimits(sessions, size, max(LEAST_MESSAGES, size // DEFAULT_BLOCK))


def queues_are_full(devices: int) -> bool:
    """Return whether this device is the first for which the limits have to change."""
    return (
        devices > DEFAULT_DEVICES and queue_limits(0, devices).devices > queue_limits(0, devices - 1).devices
    )


UNBOUNDED: Final = LIMITS.format(messages=0, queue=MOST_QUEUE)

# These settings are for local clients only: any client on the loopback may connect, and nothing is kept on
# the disk.
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

# Without use_username_as_clientid, a device could take over the session of another one by using its client
# id. With memory_limit, the broker refuses new messages before the machine runs out of memory.
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
    plain_port: int = 0  # a port on the loopback without TLS and access rules; 0: none
    user: str = ""  # the user to which Mosquitto changes when root starts it
    connections: int = 2000
    memory: int = 2 << 30
    devices: int = DEFAULT_DEVICES  # the number of enrolled devices, whose queues share the memory
    persistence: bool = True
    sys_seconds: int = 10


def tls_settings(folder: Path, listener: ListenerSettings, state: Path | None = None) -> str:
    """Return mosquitto.conf for the enrolled files in a folder.

    Mosquitto may write in the folder `state`, or else in the same folder. Paths are absolute, because
    Mosquitto may be started in any folder.
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

    Patterns apply to every name with a certificate, so exceptions are denied by name. The coordinator is
    denied the topics of a device. A revoked name is denied all topics, because it may still be connected.
    """
    topics = Topics(federation)
    lines = [f"# Made from the table of topics for federation {federation}; whatever is not here is denied."]
    denied = set(revoked)
    for name in sorted(denied):
        lines += [f"user {name}", f"topic deny {topics.prefix}#", ""]
    if COORDINATOR not in denied:
        own = [row for row in TOPIC_RULES if "{device}" in row.pattern]
        lines += [f"user {COORDINATOR}"]
        lines += [f"topic deny {_filter(topics, row, COORDINATOR)}" for row in own]
        lines += [f"topic {_access(row, 'coordinator')} {_filter(topics, row, '+')}" for row in TOPIC_RULES]
        lines += [""]
    lines += [f"pattern {_access(row, 'device')} {_filter(topics, row, '%u')}" for row in TOPIC_RULES]
    return "\n".join(lines) + "\n"


def _access(row: TopicRule, role: str) -> str:
    return "write" if row.writer == role else "read"


def _filter(topics: Topics, row: TopicRule, device: str) -> str:
    return topics.prefix + row.pattern.format(device=device, digest="+")
