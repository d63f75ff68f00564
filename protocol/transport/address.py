"""Define the broker's address, and explain in plain words why a broker cannot be used.

This module does not import an MQTT library.
"""

from __future__ import annotations

import socket
import ssl
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Final, TypeAlias

from protofleet.protocol.settings.bounds import Port, Within
from protofleet.protocol.settings.reader import demand_within
from protofleet.protocol.transport.broker_nodes import BrokerNode, demand_host, nodes_in
from protofleet.protocol.transport.tls import BrokerError as BrokerError
from protofleet.protocol.transport.tls import TlsFiles as TlsFiles
from protofleet.protocol.transport.tls import common_name, explain_tls, finish_handshake, tls_context

Qos: TypeAlias = Annotated[int, Within(0, 1)]
# Bytes. A receive queue has space for a full window of the largest blocks.
SMALLEST_BLOCK, LARGEST_BLOCK = 64 * 1024, 256 * 1024
BlockBytes: TypeAlias = Annotated[int, Within(SMALLEST_BLOCK, LARGEST_BLOCK)]
DEFAULT_NODE: Final = BrokerNode("127.0.0.1", 1883)
OF_CERTIFICATE: Final = "certificate"  # The user name that stands for the name in our certificate.
TAKEN_OVER: Final = 142
OTHER_SERVER: Final = (156, 157)
# After these reason codes in CONNACK or DISCONNECT, the client must not try again.
FINAL_REASONS: Final[Mapping[int, str]] = {
    132: "it does not speak MQTT 5; use a broker that does, such as Mosquitto 2",
    133: "it does not accept this client id; the id must be the name that the broker knows us by",
    134: "it does not accept the user name or the password",
    135: "it does not allow this; check user name and password, and the ACL of the broker",
    138: "it has banned this client",
    140: "it requires an authentication method that this client does not have",
    TAKEN_OVER: "another process has connected under the same name; only one may run",
    149: "a packet was larger than the broker accepts; raise max_packet_size of the broker",
    152: "its administrator has ended this session",
    154: "it keeps no retained messages, but our births and wills are retained",
    155: "it does not offer QoS 1",
    156: "it asks us to use another server",
    157: "it asks us to use another server permanently",
}


@dataclass(frozen=True, slots=True)
class BrokerAddress:
    """The address of a broker, and the settings of this party's connection."""

    host: str | None = None
    """Host name or IP address of the broker; if it is left out, it is 127.0.0.1."""
    port: Port | None = None
    """TCP port of the broker; if it is left out, it is 1883."""
    tls: TlsFiles | None = None
    """PEM files for TLS; if they are left out, the connection is not encrypted."""
    hosts: tuple[str, ...] | None = None
    """Addresses of the nodes of a cluster, each with its port, in place of `host` and `port`; a party tries them in
    turn, and its name draws the first one.
    """
    block_qos: Qos = 1
    """MQTT QoS (0 or 1) of the blocks that this party sends; 0 is faster if the broker drops hardly any blocks."""
    block_bytes: BlockBytes = SMALLEST_BLOCK
    """Size in bytes of the blocks that this party sends; larger blocks cost less work, but delay a slow network."""
    username: str | None = None
    """User name for the broker; `certificate` stands for the common name in `tls.cert`; if it is left out, no name
    is sent.
    """
    password: str | None = field(default=None, repr=False)
    """Password that belongs to `username`."""

    def __post_init__(self) -> None:
        if self.hosts is not None:
            given = [name for name in ("host", "port") if getattr(self, name) is not None]
            if given:
                raise ValueError(
                    f"hosts is set beside {given[0]}; leave out host and port, or leave out hosts"
                )
            nodes_in(self.hosts)
        else:
            # The defaults are set here, so that a host beside `hosts` can be told from the default.
            object.__setattr__(self, "host", DEFAULT_NODE.host if self.host is None else self.host)
            object.__setattr__(self, "port", DEFAULT_NODE.port if self.port is None else self.port)
            demand_host(self.nodes[0].host, self._wrong_host())
        if self.username == OF_CERTIFICATE and self.password is not None:
            raise ValueError(
                f'username is "{OF_CERTIFICATE}", which means the name in tls.cert, but a password is set; leave out '
                "the password, or give the user another name"
            )
        demand_within(self)

    def _wrong_host(self) -> str:
        if not self.host:
            return "host is empty; give the broker's name or address"
        return f"host is {self.host!r}, but must be a name or an address"

    @property
    def nodes(self) -> tuple[BrokerNode, ...]:
        """Return the places at which the broker can be reached: one, or those of `hosts`."""
        if self.hosts is not None:
            return nodes_in(self.hosts)
        assert self.host is not None and self.port is not None  # __post_init__ has set both.
        return (BrokerNode(self.host, self.port),)

    @property
    def user_name(self) -> str | None:
        """Return the user name that is sent; raise BrokerError if it is in a certificate that cannot be read."""
        if self.username != OF_CERTIFICATE:
            return self.username
        if self.tls is None or self.tls.cert is None:
            raise BrokerError(
                f'username is "{OF_CERTIFICATE}", but there is no certificate; set tls.cert and tls.key, or another '
                "username"
            )
        return common_name(self.tls.cert)

    def __str__(self) -> str:
        return ", ".join(map(str, self.nodes))


def explain(node: BrokerNode, tls: TlsFiles | None, error: OSError) -> str:
    """Return an error of the system or of TLS in plain words, with advice for the person who set the address."""
    told = error.strerror or str(error)
    match error:
        case ssl.SSLEOFError() | ConnectionResetError() | BrokenPipeError():
            wants = "it does not speak TLS on this port" if tls else "it wants TLS"
            return f"it closed the connection before it answered; it is no MQTT broker, or {wants}"
        case ssl.SSLError() if tls is not None:
            return explain_tls(tls, node.host, error)
        case socket.gaierror():
            return f"the host name {node.host} is unknown ({told}); correct the name, or this machine's DNS"
        case ConnectionRefusedError():
            return f"nothing listens there ({told}); start a broker, or correct host and port"
        case TimeoutError():
            return f"no answer ({told}); is it an MQTT broker, or does a firewall block the port?"
    return told


def preflight(broker: BrokerAddress, client_id: str = "", seconds: float = 5.0) -> str | None:
    """Return None if a node of the broker accepts this client, otherwise a sentence with reasons and advice.

    If the broker takes the client id from the certificate, this check ends a running session of the same
    name. So call this function before the device starts, and not while the device runs.
    """
    problems = []
    try:
        packet = _connect(broker, client_id)
        for node in broker.nodes:
            if (problem := _problem_at(node, broker.tls, packet, seconds)) is None:
                return None
            problems.append(f"{node}: {problem}")
    except BrokerError as error:
        return str(error)
    return "; ".join(problems)


def _problem_at(node: BrokerNode, tls: TlsFiles | None, packet: bytes, seconds: float) -> str | None:
    try:
        return _answered_problem(node, tls, packet, seconds)
    except OSError as error:
        return explain(node, tls, error)


def _answered_problem(node: BrokerNode, tls: TlsFiles | None, packet: bytes, seconds: float) -> str | None:
    with _open(node, tls, seconds) as sock:
        sock.sendall(packet)
        if not (answer := _answer(sock)):
            raise ConnectionResetError
        problem = _problem(answer)
        if problem is None:
            # This is a DISCONNECT. Without it, the broker would log a broken connection.
            sock.sendall(b"\xe0\x00")
        return problem


def _open(node: BrokerNode, tls: TlsFiles | None, seconds: float) -> socket.socket:
    context = tls_context(tls) if tls else None
    sock = socket.create_connection((node.host, node.port), seconds)
    try:
        if context is not None:
            sock = context.wrap_socket(sock, server_hostname=node.host)
        finish_handshake(sock)
    except BaseException:
        sock.close()
        raise
    return sock


def _connect(broker: BrokerAddress, client_id: str) -> bytes:
    """Return an MQTT 5 CONNECT packet with a clean start, a keepalive of 30 s and no properties."""
    user_name = broker.user_name
    credentials = [text for text in (user_name, broker.password) if text is not None]
    flags = 0x02 | (user_name is not None) << 7 | (broker.password is not None) << 6
    body = _text("MQTT") + struct.pack("!BBHB", 5, flags, 30, 0)
    body += b"".join(_text(text) for text in (client_id, *credentials))
    length, rest = b"", len(body)
    while rest > 127:
        length, rest = length + bytes([rest & 127 | 128]), rest >> 7
    return b"\x10" + length + bytes([rest]) + body


def _text(text: str) -> bytes:
    data = text.encode()
    return struct.pack("!H", len(data)) + data


def _answer(sock: socket.socket) -> bytes:
    """Read the broker's first packet up to its reason code: at most 7 bytes."""
    data = b""
    while len(data) < 4 or (data[0] == 0x20 and len(data) < _reason_at(data) + 1):
        piece = sock.recv(7 - len(data))
        if not piece:
            break
        data += piece
    return data


def _reason_at(data: bytes) -> int:
    at = 1
    while at < min(4, len(data)) and data[at] & 128:
        at += 1
    return at + 2


def _problem(answer: bytes) -> str | None:
    if answer[0] == 0x15:  # a TLS alert
        return "it speaks TLS on this port; set tls.ca"
    if answer[0] != 0x20 or len(answer) <= _reason_at(answer):
        return f"the server at this address is no MQTT broker (it said {answer!r})"
    reason = answer[_reason_at(answer)]
    if reason == 0:
        return None
    if reason == 1:  # code 1 of MQTT 3.1.1 means the same as code 132 of MQTT 5
        reason = 132
    message = FINAL_REASONS.get(
        reason, "it does not accept this client now; the reason is in the log of the broker"
    )
    return f"{message} (CONNACK {reason})"
